"""Where the records of runs lie: the user's own first, then the committed ones. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import yaml

from crope.config import ROOT
from crope.errors import DataError, UserError
from crope.record import Record, read_record

PUBLISHED = ROOT / "results" / "published"


def record_folders(results_dir: Path, published: Path = PUBLISHED) -> list[Path]:
    """Folders that hold run directories, in the order in which they are searched."""
    return [results_dir / "runs", *sorted(published.glob("*/"))]


def find_run(name: str, *, results_dir: Path, published: Path = PUBLISHED) -> Record:
    """A run by its directory, its id or the start of its id; the first folder that has it counts.

    Raises UserError where there is no such run or several, DataError where its record is not whole.
    """
    if (Path(name) / "config.yaml").exists():
        return _read(Path(name))
    there: dict[str, Path] = {}
    for folder in record_folders(results_dir, published):
        for config in sorted(folder.glob("*/config.yaml")):
            there.setdefault(config.parent.name, config.parent)
    found = [name] if name in there else [run_id for run_id in there if run_id.startswith(name)]
    if len(found) == 1:
        return _read(there[found[0]])
    if found:
        raise UserError(f"run '{name}': {len(found)} runs start so: {', '.join(found)}")
    where = f"no such directory, and no run of {results_dir / 'runs'} or results/published starts so"
    raise UserError(f"run '{name}': {where};{did_you_mean(name, list(there))}")


def did_you_mean(name: str, valid: Sequence[str], most: int = 3) -> str:
    """' did you mean a, b?', nearest first; or that there is nothing to mean."""
    near = difflib.get_close_matches(name, valid, n=most, cutoff=0.5)
    if near:
        return f" did you mean {', '.join(near)}?"
    return f" there are: {', '.join(valid[:most])}{', ...' if len(valid) > most else ''}" if valid else " there is none"


def _read(path: Path) -> Record:
    if not (path / "summary.json").exists():
        raise DataError(f"{path}: the run is not finished (no summary.json); the command that began it goes on")
    try:
        return read_record(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path}: the run cannot be read ({' '.join(str(error).split())})") from error


def shown(path: Path) -> str:
    """Relative to where the user stands, where it lies below."""
    whole = path.resolve()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(path)
