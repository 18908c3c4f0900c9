"""The run directory: the only memory of a run. Everything else (tables, figures, wandb) is made from it.

results/runs/<run_id>/
    config.yaml       the whole resolved configuration
    provenance.json   commit, command, versions, device, data hashes, start and end (UTC)
    metrics.jsonl     one JSON object a line, each with "step" = optimiser updates done
    summary.json      comes last; "status": "complete" in it is the only meaning of done
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TEMPORARY = ".tmp"


@dataclass(frozen=True)
class Record:
    """One run as it stands on disk."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.path / "metrics.jsonl")


def read_record(path: Path) -> Record:
    """Reads one run directory. Raises OSError or ValueError where a file is absent or cut short."""
    return Record(
        path=path,
        config=yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")),
        summary=json.loads((path / "summary.json").read_text(encoding="utf-8")),
        provenance=json.loads((path / "provenance.json").read_text(encoding="utf-8")),
    )


def read_records(root: Path) -> list[Record]:
    """Every finished (complete or failed) run below `root`, sorted by run id."""
    return [read_record(summary.parent) for summary in sorted(root.glob("*/summary.json"))]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of a metrics.jsonl; a torn last line (the writer was killed inside it) is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


@dataclass(frozen=True)
class Mark:
    """A place in a metrics.jsonl: its first `size` bytes and their sha256."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> Mark:
        """The mark after `size` bytes of a file (None: at its end); the start where there is no file."""
        data = path.read_bytes()[:size] if path.exists() else b""
        return cls(len(data), hashlib.sha256(data).hexdigest())


START = Mark(0, hashlib.sha256().hexdigest())


class MetricsWriter:
    """Appends to metrics.jsonl after `keep`; what stands behind it is cut, since the resumed run writes it again."""

    def __init__(self, path: Path, *, keep: Mark) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab")
        self.file.truncate(keep.size)
        self.hash = hashlib.sha256(path.read_bytes())
        if self.hash.hexdigest() != keep.sha256:
            raise ValueError(f"{path}: its first {keep.size} bytes are not the ones that were marked")

    def write(self, row: dict[str, Any]) -> None:
        line = _line(row).encode()
        self.file.write(line)
        self.file.flush()
        self.hash.update(line)

    def mark(self) -> Mark:
        """Where the file ends now; everything up to there is on the disk."""
        os.fsync(self.file.fileno())
        return Mark(self.file.tell(), self.hash.hexdigest())

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.mark()
        self.file.close()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic: a reader sees the old file or the whole new one, after a power cut too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp gives 0600, which a shared results folder cannot use
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a writer that was killed; call it only where no other process writes into the folder."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
