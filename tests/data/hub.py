"""The Hugging Face hub's protocol on loopback: repository info, tree, files behind a redirect with
ranges; and faults.
"""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves `folder`: <owner>/<name>/... are datasets and models alike, other paths plain files.

    Every name of a revision but "missing" stands for COMMIT. `fault` ("silent", or a status such as
    "500") answers requests whose path matches `fault_path`; `requests` lists "<method> <path>".
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.fault = ""
        self.fault_path = "*"
        self.requests: list[str] = []
        self.released = threading.Event()

    def handle_error(self, *_: object) -> None:
        """A client that gave up is no error."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        fault = self.server.fault
        if not fnmatch(path, self.server.fault_path):
            fault = ""
        if fault == "silent":
            self.server.released.wait(30)
            self.close_connection = True
        elif fault:
            self.send_json({"error": "fault"}, int(fault))
        elif path.startswith("/api/"):
            self.send_api(path.split("/"))
        elif "/resolve/" in path:
            self.redirect(path)
        else:
            self.send_file(self.server.folder / path.removeprefix("/cdn").lstrip("/"))

    def send_api(self, parts: list[str]) -> None:
        """Of /api/datasets/OWNER/NAME/revision/... and /api/datasets/OWNER/NAME/tree/COMMIT/..."""
        repository = self.server.folder / parts[3] / parts[4]
        if not repository.is_dir():
            self.send_json({}, 404, {"X-Error-Code": "RepoNotFound"})
        elif "missing" in parts:
            self.send_json({}, 404, {"X-Error-Code": "RevisionNotFound"})
        elif parts[5] == "revision":
            self.send_json({"id": "/".join(parts[3:5]), "sha": COMMIT, "siblings": []})
        else:
            under = repository.joinpath(*parts[7:])
            pattern = "**/*" if "recursive=true" in self.path.lower() else "*"
            entries = [entry(path, repository) for path in sorted(under.glob(pattern))]
            self.send_json(entries)

    def redirect(self, path: str) -> None:
        """Of a file to where its content is: another host, as the hub's."""
        before, after = path.split("/resolve/")
        repository = before.removeprefix("/datasets").strip("/")
        name = after.split("/", 1)[1]
        file = self.server.folder / repository / name
        if not file.is_file():
            self.send_json({}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        cdn = self.server.url.replace("127.0.0.1", "localhost")
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{sha256(file)}"',
            "X-Linked-Size": str(file.stat().st_size),
            "Location": f"{cdn}/cdn/{repository}/{name}",
        }
        self.send_json({}, 302, headers)

    def send_json(self, value: object, status: int = 200, headers: Any = None) -> None:
        self.send(json.dumps(value).encode(), status, headers or {})

    def send_file(self, file: Path) -> None:
        if not file.is_file():
            self.send_json({}, 404)
            return
        content = file.read_bytes()
        asked = self.headers.get("Range")
        if not asked:
            self.send(content, 200, {})
            return
        start, end = asked.removeprefix("bytes=").split("-")
        first = int(start)
        last = min(len(content) - 1, int(end or len(content)))
        headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self.send(content[first : last + 1], 206, headers)

    def send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def entry(path: Path, root: Path) -> dict[str, Any]:
    """A file or folder in a tree's listing."""
    entry: dict[str, Any] = {"path": str(path.relative_to(root)), "oid": "0" * 40}
    if path.is_dir():
        return entry | {"type": "directory", "size": 0}
    size = path.stat().st_size
    lfs = {"oid": sha256(path), "size": size, "pointerSize": 130}
    return entry | {"type": "file", "size": size, "lfs": lfs}


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def serve(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)
    threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.released.set()
        hub.shutdown()
        hub.server_close()
