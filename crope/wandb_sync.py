"""`make wandb-sync`: brings to the service what is mirrored in offline files only, each run once."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from crope.errors import UserError
from crope.replay import NotMirrored, find_run, replay_run
from crope.wandb_files import read_mirrored

OFFLINE = re.compile(r"offline-run-\d{8}_\d{6}-(?P<run_id>.+)")
IN_A_ROW = 2  # so many runs that wandb does not take: it is not the runs


def offline_runs(results_dir: Path) -> dict[str, Path]:
    """Run id -> its newest offline folder, for runs that neither `wandb sync` nor this module has brought online."""
    found = {}
    for folder in sorted((results_dir / "wandb").glob("offline-run-*")):
        match = OFFLINE.fullmatch(folder.name)
        if match is None or list(folder.glob("*.wandb.synced")):
            continue
        mirrored = read_mirrored(results_dir, match["run_id"])
        if mirrored is None or mirrored.mode != "online":
            found[match["run_id"]] = folder
    return found


def sync(results_dir: Path) -> int:
    """Uploads from the records, which hold more than a file that was cut short. Returns the exit status.

    A run that is taken leaves a note and loses its offline files, so a command that was interrupted goes on where it
    was. A run under way, or without a record, is named and left. Two in a row that the service does not take end it.
    """
    waiting, taken, problems, in_a_row = offline_runs(results_dir), 0, 0, 0
    for number, (run_id, folder) in enumerate(waiting.items()):
        try:
            print(replay_run(find_run(run_id, results_dir), results_dir, "online"), flush=True)
            taken, in_a_row = taken + 1, 0
        except NotMirrored as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            problems, in_a_row = problems + 1, in_a_row + 1
            if in_a_row == IN_A_ROW:
                left = len(waiting) - number - 1
                print(
                    f"stopped; {left} runs not tried, the same command goes on with them", file=sys.stderr, flush=True
                )
                break
        except UserError as error:
            print(f"left: {error}; `wandb sync {folder}` uploads its file as it is", file=sys.stderr, flush=True)
            problems += 1
    print(f"{taken} of {len(waiting)} runs uploaded" if waiting else "nothing to upload")
    return int(problems > 0)
