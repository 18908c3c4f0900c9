"""`make clean-failed`: removes the folders of failed runs, never one that a process works on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from crope.lock import LOCK, try_lock


def failed_runs(results_dir: Path) -> dict[Path, str]:
    """Folder -> why, for every run in <results_dir>/runs whose summary says that it failed.

    Damaged records are not among them: what they hold may be worth a look.
    """
    found = {}
    for summary in sorted((results_dir / "runs").glob("*/summary.json")):
        try:
            facts = json.loads(summary.read_text(encoding="utf-8"))
            if facts["status"] == "failed":
                found[summary.parent] = " ".join(str(facts["error"]["message"]).split())
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return found


def clean_failed(results_dir: Path, *, dry_run: bool) -> list[Path]:
    """Removes failed runs and prints each with its reason. Returns the folders removed (dry_run: that would be)."""
    gone = []
    for path, why in failed_runs(results_dir).items():
        lock = try_lock(path / LOCK)
        if lock is None:
            print(f"kept     {path}: a process works on it")
            continue
        with lock:
            if path not in failed_runs(results_dir):  # made since by the process that had the lock
                print(f"kept     {path}: no longer failed")
                continue
            print(f"{'would go' if dry_run else 'removed '} {path}: {why}")
            if not dry_run:
                shutil.rmtree(path)
            gone.append(path)
    print(
        f"{len(gone)} failed runs {'would be removed' if dry_run else 'removed'}" if gone else "no failed run to remove"
    )
    return gone
