"""Files: atomic writes, JSON, YAML, lines of metrics, SHA-256."""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml

TEMPORARY = ".tmp"


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


# The C parser is ten times faster.
SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(SafeLoader):
    """Refuses a key that is given twice, of which PyYAML keeps the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        keys = [str(key.value) for key, _ in node.value]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            text = f"found duplicate key {', '.join(twice)}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Raises yaml.YAMLError."""
    return yaml.load(path.read_bytes(), Loader)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a metrics.jsonl, without an incomplete last line (of a killed writer)."""
    return parse_metrics(path.read_bytes())


def parse_metrics(data: bytes) -> list[dict[str, Any]]:
    lines = data.split(b"\n")[:-1]  # behind the last line feed: nothing, or half a line
    return [json.loads(line) for line in lines]


class MetricsWriter:
    """Writer of metrics.jsonl after its first `keep` bytes; a resumed run rewrites later lines."""

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab")
        self.file.truncate(keep)
        # truncate leaves the position, which sync() returns, at the old end.
        self.file.seek(keep)

    def write(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row, allow_nan=False) + "\n"  # NaN is not JSON: others could not read it
        self.file.write(line.encode())
        self.file.flush()  # `status` and a sweep's progress read it meanwhile

    def sync(self) -> int:
        """Brings the file to the disk; returns its size in bytes."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with self.file:
            self.sync()  # the summary that is written next has the file's digest


def write_bytes(path: Path, data: bytes) -> None:
    """Writes atomically: a reader sees the old or the whole new file, even after a power cut.

    An OSError names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        # Not by tempfile, whose files only their owner can read, whatever the umask says.
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or the name could reach the disk before the bytes
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # that of a failing write does not say of what
        raise
    finally:
        with suppress(OSError):  # renamed; or the disk that refused the write refuses this as well
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def remove_temporary_files(folder: Path) -> None:
    """Deletes what killed writers left; call it only while no other process writes there."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode())
