"""wandb's files under <results_dir>/wandb: what one of them holds, which are superseded, what was mirrored.

results/wandb/
    offline-run-<time>-<run_id>/run-<run_id>.wandb    one attempt; `wandb sync` leaves a .synced beside it
    mirrored/<run_id>.json                            the run is mirrored whole, and where
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from crope.record import sha256_file, write_json

PREAMBLE, BLOCK, HEADER = 7, 32768, struct.Struct("<IHB")  # chunk header: crc32, length, type
COMPLETE, LAST = 1, 4  # chunk types that end a record


def read_steps(path: Path) -> tuple[list[int], bool]:
    """`step` of every history line in a .wandb file, and whether the file holds its end (the exit record).

    wandb writes LevelDB's log format (chunks that do not cross blocks of 32 KiB) with one protobuf message a record.
    Where the disk was full it goes on without a word, so a mirror is believed only after it was read back.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, position, record = path.read_bytes(), PREAMBLE, b""
    steps, ended = [], False
    while position + HEADER.size <= len(data):
        if BLOCK - position % BLOCK < HEADER.size:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, position)
        position += HEADER.size + length
        if kind == 0 or position > len(data):
            break
        record += data[position - length : position]
        if kind in (COMPLETE, LAST):
            message, record = Record.FromString(record), b""
            ended = ended or message.HasField("exit")
            items = message.history.item if message.HasField("history") else ()
            steps += [json.loads(item.value_json) for item in items if (item.key or item.nested_key[0]) == "step"]
    return steps, ended


def remove_superseded(folder: Path, run_id: str) -> None:
    """Removes the offline folders of earlier attempts at a run that `folder` now holds whole, unless synced."""
    name = re.compile(rf"offline-run-\d{{8}}_\d{{6}}-{re.escape(run_id)}(-\d+)?")
    for path in folder.parent.glob("offline-run-*"):
        synced = (path / f"run-{run_id}.wandb.synced").exists()
        if name.fullmatch(path.name) and path.name != folder.name and not synced:
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Mirrored:
    """That a run was mirrored whole: where to, and of which metrics.jsonl."""

    mode: str
    lines: int
    folder: str
    metrics_sha256: str
    utc: str

    @classmethod
    def of(cls, record: Path, *, mode: str, lines: int, folder: Path) -> Mirrored:
        return cls(mode, lines, folder.name, _sha256(record), datetime.now(UTC).isoformat(timespec="seconds"))

    def is_of(self, record: Path) -> bool:
        """Whether the record still has the lines that were mirrored."""
        return self.metrics_sha256 == _sha256(record)


def _sha256(record: Path) -> str:
    metrics = record / "metrics.jsonl"
    return sha256_file(metrics) if metrics.exists() else ""


def _note(results_dir: Path, run_id: str) -> Path:
    # Not in the run's own folder: that may be a published one, and a new results/wandb is to be filled again.
    return results_dir / "wandb" / "mirrored" / f"{run_id}.json"


def write_mirrored(results_dir: Path, run_id: str, mirrored: Mirrored) -> None:
    with suppress(OSError):  # without it, a replay mirrors the run once more
        write_json(_note(results_dir, run_id), asdict(mirrored))


def read_mirrored(results_dir: Path, run_id: str) -> Mirrored | None:
    """None where nothing is known, or where the files that it speaks of are gone."""
    with suppress(OSError, ValueError, TypeError):
        mirrored = Mirrored(**json.loads(_note(results_dir, run_id).read_text(encoding="utf-8")))
        if mirrored.mode == "online" or (results_dir / "wandb" / mirrored.folder).exists():
            return mirrored
    return None
