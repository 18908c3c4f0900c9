"""Sites on this machine: plain files, and as much of the Hugging Face hub as `datasets` asks for; and their faults.

The hub's part was written from what `huggingface_hub` 2 and `datasets` 5 request: README.md, `revision`, `tree` and
`paths-info` of the API, and `resolve`, which sends readers of large files on to another path with X-Linked headers.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import socket
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

# As in the repository of that name: it also says how many rows the whole data set has.
WIKITEXT_README = """---
dataset_info:
- config_name: wikitext-2-v1
  features:
  - name: text
    dtype: string
  splits:
  - name: test
    num_examples: 4358
  - name: train
    num_examples: 36718
  - name: validation
    num_examples: 3760
configs:
- config_name: wikitext-2-v1
  data_files:
  - split: test
    path: wikitext-2-v1/test-*
  - split: train
    path: wikitext-2-v1/train-*
  - split: validation
    path: wikitext-2-v1/validation-*
---
"""


class Site(http.server.ThreadingHTTPServer):
    """Serves `files` (URL path -> bytes). `faults` (part of a URL path -> fault) says what it does wrong:

    "silent" never answers, "stall" stops in the middle of the body, "cut" closes there, an integer is an HTTP status;
    the first `fault_count` times.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, str | int] = {}
        self.fault_count = 10**6
        self.requests: list[tuple[str, str]] = []  # (method, path)
        self.tunnel: tuple[str, int] | None = None
        self.logins: list[str | None] = []  # of CONNECT requests
        self.closing = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, part: str = "") -> list[str]:
        """Paths of the GET requests whose path has `part`."""
        return [path for method, path in self.requests if method == "GET" and part in path]

    def fault(self, method: str, path: str) -> str | int | None:
        found = next((fault for part, fault in self.faults.items() if part in path), None)
        if found in ("stall", "cut") and method == "HEAD":
            return None
        self.fault_count -= found is not None
        return found if self.fault_count >= 0 else None

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, self.files[path]) if path in self.files else (404, {}, b"")


class Handler(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        query = parse_qs(url.query)
        if self.command == "POST":
            query = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.requests.append((self.command, path))
        fault = self.server.fault(self.command, path)
        if fault == "silent":
            self.server.closing.wait()
            return
        status, headers, body = self.server.answer(path, query) if not isinstance(fault, int) else (fault, {}, b"")
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            broken = fault in ("stall", "cut") and status == 200
            self.wfile.write(body[: len(body) // 2] if broken else body)
            self.wfile.flush()
            if broken and fault == "stall":
                self.server.closing.wait()

    do_HEAD = do_POST = do_GET

    def do_CONNECT(self) -> None:
        """As a proxy: to the site that `tunnel` names, whatever was asked for; without one it refuses."""
        self.server.logins.append(self.headers["Proxy-Authorization"])
        if self.server.tunnel is None:
            self.send_error(403, "Forbidden by policy")
            return
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(self.server.tunnel) as far:
            back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
            back.start()
            _pump(self.connection, far)

    def log_message(self, *_: Any) -> None:
        pass


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


class Hub(Site):
    """Repositories by (kind, name, revision); kind is "datasets" or "models"."""

    def __init__(self) -> None:
        super().__init__()
        self.repositories: dict[tuple[str, str, str], dict[str, bytes]] = {}
        # Lies: headers over the true ones, the commit that the API names, entries that are only listed.
        self.headers: dict[str, str] = {}
        self.api_commit = ""
        self.listed: list[dict[str, Any]] = []

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        for (kind, name, revision), files in self.repositories.items():
            commit = hashlib.sha1(f"{kind}/{name}@{revision}".encode()).hexdigest()
            for prefix in (f"/api/{kind}/{name}/", f"/{kind}/{name}/".replace("/models/", "/")):
                what, _, rest = path.removeprefix(prefix).partition("/")
                for at in (revision, commit, self.api_commit or commit):
                    if path.startswith(prefix) and f"{rest}/".startswith(f"{at}/"):
                        return self.page(what, rest[len(at) + 1 :], files, commit, query)
        if path.startswith("/cdn/"):
            everything = {digest(data): data for files in self.repositories.values() for data in files.values()}
            return 200, {}, everything[path.split("/")[2]]
        return (200, {}, b"") if path == "/" else (404, {"X-Error-Code": "RepoNotFound"}, b"")

    def page(
        self, what: str, path: str, files: dict[str, bytes], commit: str, query: dict[str, list[str]]
    ) -> tuple[int, dict[str, str], bytes]:
        if what == "revision":
            return 200, {}, json.dumps({"id": "x/y", "sha": self.api_commit or commit, "siblings": []}).encode()
        if what == "tree":
            return 200, {}, json.dumps(_entries(files, path) + self.listed).encode()
        if what == "paths-info":
            found = [entry for entry in _entries(files, "", recursive=True) if entry["path"] in query.get("paths", [])]
            return 200, {}, json.dumps(found).encode()
        assert what == "resolve", what
        if path not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit} | self.headers, b""
        data, name = files[path], digest(files[path])
        facts = {"X-Repo-Commit": commit, "ETag": f'"{name}"'}
        if not path.endswith(".parquet"):
            return 200, facts | self.headers, data
        facts |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{name}"'}
        # To another host, as far as the client can see.
        facts["Location"] = f"http://localhost:{self.server_address[1]}/cdn/{name}/{path}"
        return 302, facts | self.headers, b""


def _entries(files: dict[str, bytes], folder: str, *, recursive: bool = False) -> list[dict[str, Any]]:
    """Files and folders right in `folder`, or all of them."""
    found: dict[str, dict[str, Any]] = {}
    for path, data in files.items():
        oid, parts = digest(data), path.split("/")
        for depth in range(1, len(parts)):
            name = "/".join(parts[:depth])
            found[name] = {"type": "directory", "path": name, "oid": digest(name.encode())}
        found[path] = {"type": "file", "path": path, "oid": oid, "size": len(data)}
        if path.endswith(".parquet"):
            found[path]["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 100}
    return [entry for name, entry in found.items() if recursive or name.rpartition("/")[0] == folder]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parquet(column: str, rows: Sequence[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({column: list(rows)}), file)
    return file.getvalue()


def wikitext_repository(train: str, validation: str) -> dict[str, bytes]:
    """The hub's rows keep their line feed, but an empty line is ""."""

    def rows(text: str) -> list[str]:
        return [f"{line}\n" if line.strip() else "" for line in text.split("\n")[:-1]]

    texts = {"train": train, "validation": validation, "test": "never read \n"}
    names = {split: f"wikitext-2-v1/{split}-00000-of-00001.parquet" for split in texts}
    files = {names[split]: parquet("text", rows(text)) for split, text in texts.items()}
    return {"README.md": WIKITEXT_README.encode()} | files


def ptb_repository(train: str, validation: str) -> dict[str, bytes]:
    """The hub's rows are stripped lines."""
    texts = {"train": train, "validation": validation, "test": "never read \n"}
    rows = {split: [line.strip() for line in text.split("\n")[:-1]] for split, text in texts.items()}
    return {f"penn_treebank/{split}/0000.parquet": parquet("sentence", lines) for split, lines in rows.items()}
