"""The Hugging Face hub's protocol on loopback: repository info, tree, files with ranges; and faults."""

import http.server
import json
import time
import zlib
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves `folder`: <owner>/<name>/... are datasets and models alike, other paths plain files.

    Every name of a revision but "missing" stands for COMMIT. `fault` ("silent", or a status such as
    "500") answers all requests; `requests` lists "<method> <path>".
    """

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.fault = ""
        self.requests = []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        hub = self.server
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").removeprefix("datasets/").split("/")
        if hub.fault == "silent":
            time.sleep(1)  # longer than the client waits
            self.close_connection = True
        elif hub.fault or "missing" in parts:
            self.send({}, int(hub.fault or 404))
        elif parts[0] == "api":
            self.send_api(*parts[2:5])
        else:
            if "resolve" in parts:
                del parts[2:4]  # and the commit
            self.send_file(hub.folder.joinpath(*parts))

    do_HEAD = do_GET

    def send_api(self, owner, name, what):
        """Of /api/datasets/OWNER/NAME/revision/... and /api/datasets/OWNER/NAME/tree/COMMIT/..."""
        if what != "tree":
            self.send({"id": f"{owner}/{name}", "sha": COMMIT})
            return
        root, entries = self.server.folder / owner / name, []
        for path in root.rglob("*"):
            kind = "directory" if path.is_dir() else "file"
            entry = {
                "type": kind,
                "oid": "0",
                "path": str(path.relative_to(root)),
                "size": path.stat().st_size,
            }
            entries.append(entry)
        self.send(entries)

    def send_file(self, file):
        if not file.is_file():
            self.send({}, 404)
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{zlib.crc32(content)}"', "X-Repo-Commit": COMMIT}
        status = 200
        if asked := self.headers.get("Range"):
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content = content[first : last + 1]
            status = 206
        self.send(content, status, headers)

    def send(self, content, status=200, headers=()):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", len(content))
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
