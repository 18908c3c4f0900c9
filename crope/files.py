"""Files: atomic writes, JSON, lines of metrics, SHA-256."""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np


def json_sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


TEMPORARY = ".tmp"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of a metrics.jsonl; an incomplete last line (the writer was killed inside it) is left
    out.
    """
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


class MetricsWriter:
    """Appends to metrics.jsonl after its first `keep` bytes; a resumed run rewrites the lines after
    them.
    """

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab")
        self.file.truncate(keep)
        self.file.seek(keep)  # truncate leaves the position, which sync() returns, at the old end

    def write(self, row: Mapping[str, Any]) -> None:
        self.file.write((json.dumps(row, allow_nan=False) + "\n").encode())
        self.file.flush()

    def sync(self) -> int:
        """The file's size in bytes, all of it on the disk."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sync()
        self.file.close()


def write_bytes(path: Path, data: bytes) -> None:
    """Writes atomically: a reader sees the old file or the whole new one, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp gives 0600, which a shared results folder cannot use
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name outlasts a power cut too
        finally:
            os.close(folder)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_array(path: Path, values: Any) -> None:
    """A .npy file in float32."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values, dtype=np.float32))
    write_bytes(path, buffer.getvalue())


def remove_temporary_files(folder: Path) -> None:
    """Deletes what killed writers left behind; call it only while no other process writes into the
    folder.
    """
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
