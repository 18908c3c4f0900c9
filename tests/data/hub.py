"""The Hugging Face hub's protocol on loopback: repository info, tree, files with ranges; and faults."""

import hashlib
import http.server
import json
import time
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

    def handle_error(self, *_):
        """A client that gave up is no error."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        before, _, name = path.strip("/").partition("/resolve/")
        if hub.fault == "silent":
            time.sleep(1)  # longer than the client waits
            self.close_connection = True
        elif hub.fault:
            self.send({"error": "fault"}, int(hub.fault))
        elif path.startswith("/api/"):
            self.send_api(path.split("/"))
        elif name:  # the rest of the path after the commit
            repository = before.removeprefix("datasets/")
            self.send_file(hub.folder / repository / name.partition("/")[2])
        else:
            self.send_file(hub.folder / before)

    do_HEAD = do_GET

    def send_api(self, parts):
        """Of /api/datasets/OWNER/NAME/revision/... and /api/datasets/OWNER/NAME/tree/COMMIT/..."""
        root = self.server.folder / parts[3] / parts[4]
        if parts[5] == "tree":
            pattern = "**/*" if "recursive=true" in self.path.lower() else "*"
            entries = []
            for path in sorted(root.joinpath(*parts[7:]).glob(pattern)):
                entry = {"type": "directory" if path.is_dir() else "file", "oid": "0" * 40}
                entry["path"] = str(path.relative_to(root))
                entry["size"] = path.stat().st_size
                entries.append(entry)
            self.send(entries)
        elif "missing" in parts:
            self.send({}, 404, {"X-Error-Code": "RevisionNotFound"})
        else:
            self.send({"id": "/".join(parts[3:5]), "sha": COMMIT, "siblings": []})

    def send_file(self, file):
        if not file.is_file():
            self.send({}, 404)
            return
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT}
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
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
