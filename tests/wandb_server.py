"""wandb without its service: a loopback server that takes runs or fails as it is told, and wandb's reader of files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from crope.compose import Run, load_run
from tests.conftest import TOY_OVERRIDES

# What goes wrong: every answer is 500, or none comes; or only where history is uploaded, 404 or none.
FAULTS = ("", "500", "silence", "uploads refused", "uploads unanswered")


class WandbServer(ThreadingHTTPServer):
    """`lines[run]`: its history as uploaded, each line at the offset that the client named; `runs[run]`: its facts;
    `reports`: what was saved."""

    daemon_threads = True

    def __init__(self, fault: str = "") -> None:
        assert fault in FAULTS
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fault, self.over = fault, threading.Event()
        self.lines: dict[str, dict[int, dict[str, Any]]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.reports: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self) -> dict[str, str]:
        """What a client needs to talk to this server, with a key of the right form."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "k" * 40}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was ended while it waited is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        upload = self.path.endswith("/file_stream")
        if self.server.fault == "silence" or (upload and self.server.fault == "uploads unanswered"):
            self.server.over.wait()
            self.close_connection = True
        elif self.server.fault == "500":
            self._answer(500, {})
        elif upload and self.server.fault == "uploads refused":
            self._answer(404, {})
        elif upload:
            self._answer(200, self._take_lines(json.loads(body)))
        elif self.path == "/graphql":
            self._answer(200, {"data": self._graphql(json.loads(body))})
        else:
            self._answer(200, {})  # the upload of a file

    do_PUT = do_GET = do_POST

    def _take_lines(self, stream: dict[str, Any]) -> dict[str, Any]:
        chunk = stream.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
        lines = self.server.lines.setdefault(self.path.split("/")[-2], {})
        lines.update(enumerate(map(json.loads, chunk["content"]), chunk["offset"]))
        return {"limits": {}}

    def _graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        variables = request.get("variables") or {}
        if any(word in request["query"] for word in ("upsertView", "viewer", "ProjectInternalId", "GetProjects")):
            return self._report(request["query"], variables)
        if "upsertBucket" in request["query"]:
            name = variables["name"]
            known = self.server.runs.setdefault(name, {})
            known.update({key: value for key, value in variables.items() if value is not None})
            project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "tester"}}
            bucket = {"id": name, "name": name, "displayName": name, "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}}
        if "RunResumeStatus" in request["query"]:  # asked with `resume`, to add to what is there
            lines = self.server.lines.get(variables["name"], {})
            counts = {"historyLineCount": len(lines), "eventsLineCount": 0, "logLineCount": 0}
            tails = {"historyTail": json.dumps([json.dumps(lines[max(lines)])] if lines else []), "eventsTail": "[]"}
            texts = {"summaryMetrics": "{}", "config": "{}", "wandbConfig": '{"t": 1}', "tags": []}
            bucket = {"id": variables["name"], "name": variables["name"], **counts, **tails, **texts}
            return {"model": {"id": "p", "name": variables["project"], "bucket": bucket if lines else None}}
        if "createRunFiles" in request["query"]:
            files = [{"name": name, "uploadUrl": f"{self.server.url}/upload"} for name in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def _report(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """What wandb-workspaces asks on the way to a saved report."""
        if "viewer" in query:
            return {
                "viewer": {"id": "u", "entity": "tester", "username": "tester", "flags": "{}", "teams": {"edges": []}}
            }
        if "ProjectInternalId" in query:
            known = {run["project"] for run in self.server.runs.values()}
            return {"project": {"id": "p", "internalId": "77"} if variables["projectName"] in known else None}
        if "GetProjects" in query:
            facts = {"__typename": "Project", "id": "p", "entityName": "tester", "createdAt": "2026-01-01T00:00:00"}
            names = sorted({run["project"] for run in self.server.runs.values()})
            edges = [{"node": {**facts, "name": name, "isBenchmark": False, "user": None}} for name in names]
            page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
            return {"models": {"pageInfo": page, "edges": edges}}
        self.server.reports.append(variables)
        project = {"id": "p", "name": variables["projectName"], "entityName": variables["entityName"]}
        view = {key: variables[key] for key in ("type", "name", "displayName", "description", "spec")}
        return {
            "upsertView": {
                "view": {"id": variables["id"] or f"view{len(self.server.reports)}", **view, "project": project},
                "inserted": True,
            }
        }

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def wandb_server(fault: str = "") -> Iterator[WandbServer]:
    server = WandbServer(fault)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def isolate(monkeypatch: pytest.MonkeyPatch, home: Path, **environment: str) -> None:
    """No key, no settings of the user's, and no server but one on the loopback, by default one that is not there."""
    for key in [key for key in os.environ if key.startswith("WANDB_")]:
        monkeypatch.delenv(key)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_CONFIG_DIR": str(home), "NETRC": str(home / "netrc")}
    for key, value in {**nobody, "HOME": str(home), **environment}.items():
        monkeypatch.setenv(key, value)


def wandb_run(results_dir: Path, *more: str) -> Run:
    return load_run([*TOY_OVERRIDES, "tracker=wandb", f"results_dir={results_dir}", *more])


def write_lines(run: Run, steps: range, tracker: Any) -> None:
    """As the trainer does: into metrics.jsonl, then to the tracker."""
    run.path.mkdir(parents=True, exist_ok=True)
    with (run.path / "metrics.jsonl").open("a") as file:
        for step in steps:
            line = {"step": step, "val/loss_nats": 7.0 - step / 100}
            file.write(json.dumps(line) + "\n")
            file.flush()
            tracker.log(line)


def offline_files(results_dir: Path) -> list[Path]:
    return sorted(results_dir.glob("wandb/offline-run-*/*.wandb"))


def inspect(file: Path) -> list[dict[str, Any]]:
    """Every record of a .wandb file, by wandb's own reader."""
    wandb = Path(sys.executable).with_name("wandb")
    command = [wandb, "leet", "inspect", "--json", file]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [json.loads(line) for line in shown.splitlines() if line.strip()]


def history(file: Path) -> list[dict[str, Any]]:
    """The lines of a .wandb file, without the keys that wandb adds (`_step` and the like)."""
    items = [record["history"]["item"] for record in inspect(file) if record["type"] == "history"]
    return [plain(item) for item in items]


def plain(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith("_")}
