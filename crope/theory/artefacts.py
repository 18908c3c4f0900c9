"""`make theory`: what the report's theory section is made of, as JSON in results/theory.

Each file says what it was made from: arguments, weights and the source of the modules behind it. Where these are as
before, it is left alone. Content depends on these alone: no times, no paths.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crope.config import NUMERICS_VERSION, ROOT
from crope.record import Record, sha256_file, write_json
from crope.theory.constructions import Construction, absolute_pointing, pointing
from crope.theory.equations import write_equations
from crope.theory.errata import ERRATA
from crope.theory.function_space import function_space
from crope.theory.kernel import decay_curves, frequencies, kernel, kernel_limit, missed_weight
from crope.theory.pointer_task import EXAMPLE, NEXNEXT, Task, pointer_results
from crope.theory.trained_share import MEASURES, find_trained, measure_gaussian, measure_run

WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
GAINS = tuple(10.0 ** (k / 4) for k in range(13))  # 1 .. 1000
WINDOW = 64  # tokens in the windows over which a missed weight is averaged


@dataclass(frozen=True)
class Artefact:
    """One JSON file: its name, everything it is made from, and how."""

    name: str
    inputs: dict[str, Any]
    build: Callable[[], dict[str, Any]]


def make_theory(
    *, results_dir: Path, folders: Sequence[Path] = (), seeds: int = 5, draws: int = 100, task: Task | None = None
) -> None:
    """Writes results_dir/theory/*.json and docs/equations.md, a line each; what stands for the same inputs is kept.

    `folders` hold run directories (default results_dir/runs): those of Table 1 with weights.pt enter. `seeds` are the
    pointer task's, `draws` the random maps behind each mean and range of the complex share.
    """
    runs = find_trained(list(folders) or [results_dir / "runs"])
    if not runs:
        print("no complete run with weights: shares of random maps only; `make reproduce` makes runs", flush=True)
    for artefact in artefacts(runs, seeds=seeds, draws=draws, task=task or Task()):
        path = results_dir / "theory" / f"{artefact.name}.json"
        if _inputs_of(path) == artefact.inputs:
            print(f"{path}: as before", flush=True)
            continue
        write_json(path, {"inputs": artefact.inputs, **artefact.build()})
        print(f"{path}: made", flush=True)
    print(f"docs/equations.md: {'made' if write_equations() else 'as before'}", flush=True)


def artefacts(runs: Sequence[Record], *, seeds: int, draws: int, task: Task) -> list[Artefact]:
    """All files, quick ones first."""
    weights = {run.path.name: sha256_file(run.path / "weights.pt") for run in runs}
    return [
        Artefact("function_space", _inputs("function_space complex_structure complex_form"), function_space),
        Artefact("decay", _inputs("kernel"), lambda: decay_curves(width=128, longest=256)),
        Artefact("errata", _inputs("errata"), lambda: {"errata": [asdict(erratum) for erratum in ERRATA]}),
        Artefact("constructions", _inputs("constructions kernel attention", task=_plain(task)), lambda: _points(task)),
        Artefact(
            "complex_share",
            _inputs("trained_share complex_structure", draws=draws, weights=weights),
            lambda: _complex_shares(runs, draws=draws),
        ),
        Artefact(
            "pointer_task",
            _inputs("pointer_task attention", seeds=seeds, task=_plain(task)),
            lambda: pointer_results(task, seeds=seeds, report=lambda line: print(f"  {line}", flush=True)),
        ),
    ]


def _points(task: Task) -> dict[str, Any]:
    """Sec. 4.3's constructions: errors by width and gain, weights on EXAMPLE, and at the lengths of the task."""
    theta, distance = frequencies(task.width), np.arange(33)
    offsets = [token + 1 if token <= NEXNEXT else 0 for token in EXAMPLE]
    made = {"absolute": absolute_pointing(offsets, width=task.width, gain=30_000.0)}
    made["rotary"] = pointing(offsets, width=task.width, projection="complex", gain=300.0)
    return {
        "kernel": {
            "distance": distance.tolist(),
            "by_width": {str(width): kernel(distance, frequencies(width)).tolist() for width in (16, 128)},
            "limit": [1.0, *kernel_limit(distance[1:]).tolist()],
        },
        "window": WINDOW,
        "missed_by_width": {
            "widths": list(WIDTHS),
            "scores": [missed_weight(frequencies(d), length=WINDOW, gain=1.0, offsets=(1, 2)) for d in WIDTHS],
            "scores / √D": [
                missed_weight(frequencies(d), length=WINDOW, gain=1.0, offsets=(1, 2), scaled=True) for d in WIDTHS
            ],
        },
        "missed_by_gain": {
            "gains": list(GAINS),
            "width": task.width,
            "scores / √D": [missed_weight(theta, length=WINDOW, gain=g, offsets=(1, 2), scaled=True) for g in GAINS],
        },
        "tokens": list(EXAMPLE),
        "attention": {name: construction.weights().tolist() for name, construction in made.items()},
        "least_weight": {str(length): _least_weights(length, task.width) for length in task.lengths},
    }


def _least_weights(length: int, width: int) -> dict[str, float]:
    """The smallest weight that any pointer of a random text puts on its target, by construction."""
    offsets = np.random.Generator(np.random.Philox(key=length)).integers(0, 3, size=length)
    rows = np.flatnonzero((offsets > 0) & (np.arange(length) + offsets < length))

    def least(made: Construction) -> float:
        return float(made.weights()[rows, rows + offsets[rows]].min())

    return {
        "absolute": least(absolute_pointing(offsets.tolist(), width=width, gain=30_000.0)),
        "rotary": least(pointing(offsets.tolist(), width=width, projection="complex", gain=300.0)),
    }


def _complex_shares(runs: Sequence[Record], *, draws: int) -> dict[str, Any]:
    shape = {"n_layers": 4, "n_heads": 4, "d_model": 128}  # Sec. 5.1
    measured = []
    for run in runs:
        measured.append(measure_run(run, draws=draws))
        print(f"  {run.path.name}", flush=True)
    return {
        "measures": MEASURES,
        "gaussian": {"shape": shape, "draws": draws, "shares": measure_gaussian(**shape, draws=draws)},
        "runs": measured,
    }


def _inputs(modules: str, **arguments: Any) -> dict[str, Any]:
    """What a file depends on; the source of this module, of those named and of the model is one digest."""
    own = [ROOT / "crope" / "theory" / f"{name}.py" for name in ("artefacts", *modules.split())]
    digest = hashlib.sha256()
    for path in [*own, *sorted((ROOT / "crope" / "model").glob("*.py"))]:
        digest.update(path.read_bytes())
    return {"code": digest.hexdigest()[:16], "numerics_version": NUMERICS_VERSION, **arguments}


def _plain(task: Task) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(task)))


def _inputs_of(path: Path) -> dict[str, Any] | None:
    """What a file that stands was made from; None for no file or one that cannot be read."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["inputs"]
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return found
