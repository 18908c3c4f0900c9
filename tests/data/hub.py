"""The Hugging Face hub's protocol on loopback: repository info, tree, files behind a redirect with
ranges, and faults.
"""

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FAULTS = ("silent", "401", "404", "500", "truncated", "dies")


class Hub(http.server.ThreadingHTTPServer):
    """Serves `folder`: <owner>/<name>/... are datasets and models alike, other paths plain files.

    Every name of a revision but "missing" stands for COMMIT. `fault` ("slow" or one of FAULTS) acts
    on requests whose path matches `fault_path`; `requests` lists "<method> <path>".
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.fault, self.fault_path = "", "*"
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
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        fault = self.server.fault if fnmatch(path, self.server.fault_path) else ""
        if fault == "silent":
            self.server.released.wait(30)
            self.close_connection = True
        elif fault in ("401", "404", "500"):
            self.send_json({"error": "fault"}, int(fault))
        else:
            if fault == "slow":
                time.sleep(0.05)
            self.route(path, body, fault)

    def route(self, path: str, body: str, fault: str) -> None:
        parts = path.strip("/").split("/")
        if parts[0] == "cdn":
            self.send_file(self.server.folder / "/".join(parts[1:]), fault)
        elif "resolve" in parts:
            self.redirect(parts)
        elif parts[0] == "api":
            self.send_api(parts[1:], body)
        else:
            self.send_file(self.server.folder / path.lstrip("/"), fault)

    def redirect(self, parts: list[str]) -> None:
        """Of a file to where its content is; `refs/convert/parquet` is a revision of three parts."""
        where = parts.index("resolve")
        repository = "/".join(parts[where - 2 : where])
        rest = parts[where + 1 :]
        name = "/".join(rest[3:] if rest[0] == "refs" else rest[1:])
        file = self.server.folder / repository / name
        headers = {"X-Repo-Commit": rest[0] if len(rest[0]) == len(COMMIT) else COMMIT}
        if not file.is_file():
            self.send_json({}, 404, {**headers, "X-Error-Code": "EntryNotFound"})
            return
        headers["X-Linked-Etag"] = f'"{_sha256(file)}"'
        headers["X-Linked-Size"] = str(file.stat().st_size)
        cdn = self.server.url.replace("127.0.0.1", "localhost")  # another host, as the hub's
        headers["Location"] = f"{cdn}/cdn/{repository}/{name}"
        self.send_json({}, 302, headers)

    def send_api(self, parts: list[str], body: str) -> None:
        repository = "/".join(parts[1:3])
        kind = parts[3] if len(parts) > 3 else "revision"
        if not (self.server.folder / repository).is_dir():
            self.send_json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif kind == "revision" and "missing" in parts:
            self.send_json({"error": "Invalid rev"}, 404, {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            self.send_json({"id": repository, "sha": COMMIT, "siblings": []})
        elif kind == "tree":
            under = "/".join(parts[7:] if parts[4] == "refs" else parts[5:])
            recursive = "recursive" in self.path and "recursive=false" not in self.path.lower()
            self.send_json(self.entries(repository, under, recursive))
        elif kind == "paths-info":
            wanted = json.loads(body)["paths"] if body[:1] == "{" else parse_qs(body)["paths"]
            everything = self.entries(repository, "", recursive=True)
            self.send_json([entry for entry in everything if entry["path"] in wanted])

    def entries(self, repository: str, under: str, recursive: bool) -> list[dict[str, Any]]:
        root = self.server.folder / repository
        found = (root / under).rglob("*") if recursive else (root / under).glob("*")
        return [_entry(path, root) for path in sorted(found)]

    def send_json(self, value: object, status: int = 200, headers: Any = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_file(self, file: Path, fault: str) -> None:
        if not file.is_file():
            self.send_json({}, 404)
            return
        size = file.stat().st_size
        first, last = 0, size - 1
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if asked:
            start, _, end = asked.partition("-")
            first, last = int(start), min(last, int(end or last))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        length = last + 1 - first
        cut = length // 2
        self.send_header("Content-Length", str(cut if fault == "truncated" else length))
        self.end_headers()
        if self.command == "HEAD":
            return
        with file.open("rb") as content:
            content.seek(first)
            self.wfile.write(content.read(cut if fault in ("truncated", "dies") else length))
        if fault == "dies":
            self.server.fault, self.server.fault_path = "500", "*"  # from now on
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True


def _entry(path: Path, root: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": str(path.relative_to(root)), "oid": "0" * 40}
    if path.is_dir():
        return entry | {"type": "directory", "size": 0}
    size = path.stat().st_size
    lfs = {"oid": _sha256(path), "size": size, "pointerSize": 130}
    return entry | {"type": "file", "size": size, "lfs": lfs}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


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
