"""Run directories and cells made by code, with losses that can be checked by hand; no Hydra is needed for them.

Each is what a run would have written, so that crope.verify finds it sound: metrics come first, the summary from them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from crope import paper
from crope.config import NUMERICS_VERSION, ROOT, cell_key, run_hash
from crope.record import Record
from crope.report import build_report
from crope.report.sources import Source
from crope.study import STUDIES, Cell
from crope.summary import speeds, summarise
from crope.verify import read_runs

WriteRun = Callable[..., Path]
SCALE = "quick"
STEPS = 100
# Three bytes a token: the mean of 4.5 nats per token is 1.5 nats per byte.
SPLITS = {
    "train": {"tokens": 4_096_000, "bytes": 12_288_000, "sha256": "a" * 64},
    "validation": {"tokens": 98_656, "bytes": 295_968, "sha256": "b" * 64},
}


def make_config(
    model: str, dataset: str, row: str = "base", *, seed: int = 0, precision: str = "fp32", steps: int = STEPS
) -> dict[str, Any]:
    train = {**paper.ROWS[row], "lr": 0.001, "max_steps": steps, "precision": precision}
    return {
        "model": {**make_choices(model), "tied_head": True, "n_layers": 4, "d_model": train.pop("d_model")},
        "data": {"corpus": dataset},
        "tokenizer": {"name": "bpe", "vocab_size": 4096},
        "train": train,
        "eval": {"every": 20},
        "seed": seed,
    }


def make_choices(model: str) -> dict[str, str]:
    """What makes the model, as its file says; a model without a file is named by its projection."""
    file = ROOT / "conf" / "model" / f"{model}.yaml"
    if not file.exists():
        return {"position": "rotary", "projection": model, "attention": "softmax"}
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def make_parameters(model: str, width: int | float) -> dict[str, int]:
    """Four layers of a GPT-2 block with biases outside Q/K/V, a tied head over 4096 entries."""
    d = int(width)
    parts = {
        "qkv": 4 * 3 * d * d // (2 if model == "crope" else 1), "output_projection": 4 * (d * d + d),
        "ffn": 4 * (8 * d * d + 5 * d), "norms": 9 * 2 * d, "embeddings": 4096 * d,
    }  # fmt: skip
    return {**parts, "total": sum(parts.values())}


def make_metrics(
    final: float, *, sampled: float, std: float | None, best: tuple[int, float], steps: int, noise: float = 0.0
) -> list[dict[str, Any]]:
    """A line every ten steps, falling from 8 to `final`; training runs 0.25 below validation, with `noise` on both.

    The last tenth has two sampled losses with this mean and standard deviation (s of a, b is |b - a| / sqrt(2)), or one
    where `std` is None. `best` is the step and the loss of an earlier full validation.
    """
    lines: list[dict[str, Any]] = []
    for step in range(0, steps + 1, 10):
        loss = final + (8.0 - final) * (1 - step / steps) ** 3 + noise * math.sin(12.9898 * step + 100 * final)
        speed = {"train/lr": 0.001, "time/step_ms": 90.0, "speed/tokens_per_s": 4000.0}
        if step < 0.9 * steps:
            speed["val/loss_nats"] = loss
        lines.append({"step": step, "train/loss_nats": loss - 0.25, **speed})
    if std is not None:
        lines[-2]["val/loss_nats"] = sampled - std / math.sqrt(2)
    lines[-1]["val/loss_nats"] = sampled + (std or 0.0) / math.sqrt(2)
    lines[best[0] // 10] |= {"val_full/loss_nats": best[1], "val_full/tokens": 65_536}
    lines[-1] |= {"val_full/loss_nats": final, "val_full/tokens": 65_536}
    lines[-1] |= {"train_full/loss_nats": final - 0.25, "train_full/tokens": 65_536}
    return lines


def make_run(
    folder: Path, model: str, dataset: str, row: str = "base", *, seed: int = 0, final: float = 5.0,
    sampled: float | None = None, std: float | None = 0.02, best: tuple[int, float] | None = None, steps: int = STEPS,
    precision: str = "fp32", device_kind: str = "cpu", scale: str = SCALE, named: str = "", noise: float = 0.0,
    change: Mapping[str, Mapping[str, Any]] | None = None,
    numerics_version: int = NUMERICS_VERSION, error: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    """One run directory in `folder`.

    `error` makes a failed run, `named` gives the row another name, `change` alters keys of the configuration's parts,
    `provenance` overrides parts of that file.
    """
    config = make_config(model, dataset, row, seed=seed, precision=precision, steps=steps)
    for part, values in (change or {}).items():
        config[part] |= values
    name = f"{model}-{dataset}-{named or row}-s{seed}-{run_hash(config, numerics_version=numerics_version)}"
    path = folder / name
    path.mkdir(parents=True)
    facts = {
        "commit": "0123456789abcdef", "dirty": False, "device": "a CPU", "device_kind": device_kind, "driver": None,
        "python": "3.11.0", "packages": {}, "data": {"splits": SPLITS},
    } | (provenance or {})  # fmt: skip
    rows = make_metrics(
        final, sampled=final if sampled is None else sampled, std=std, best=best or (80, final - 0.125), steps=steps,
        noise=noise,
    )  # fmt: skip
    metrics = "".join(json.dumps(line) + "\n" for line in rows).encode()
    summary = {
        "run_id": name, "model": model, "dataset": dataset, "row": named or row, "scale": scale, "seed": seed,
        "numerics_version": numerics_version, "precision": precision, "device_kind": device_kind,
    }  # fmt: skip
    if error:
        summary |= {"status": "failed", "error": error}
    else:
        seen = steps * config["train"]["batch_size"] * config["train"]["seq_len"]
        summary |= {
            "status": "complete", "error": None, "steps": steps, "train_tokens": seen,
            "train_passes": seen / SPLITS["train"]["tokens"], "unigram_nats": 7.0, "memory_peak_gib": None,
            **summarise(rows, max_steps=steps, validation=SPLITS["validation"]),
            "parameters": make_parameters(model, config["model"]["d_model"]),
            "time": {"total_s": 151.2, **speeds(rows)}, "metrics_sha256": hashlib.sha256(metrics).hexdigest(),
        }  # fmt: skip
    (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (path / "provenance.json").write_text(json.dumps(facts), encoding="utf-8")
    (path / "metrics.jsonl").write_bytes(metrics)
    (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return path


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "results" / "runs"


@pytest.fixture
def read_sound(runs_dir: Path) -> Callable[..., list[Record]]:
    """read_sound(*folders): the runs there (by default in runs_dir), none of which may be damaged."""

    def read(*folders: Path) -> list[Record]:
        found = [read_runs(folder) for folder in folders or (runs_dir,)]
        assert not any(damaged for _, damaged in found)
        return [run for runs, _ in found for run in runs]

    return read


@pytest.fixture
def write_run(runs_dir: Path) -> WriteRun:
    """write_run("crope", "ptb", final=4.1, ...): `make_run`, by default in runs_dir."""
    return lambda *names, folder=runs_dir, **settings: make_run(folder, *names, **settings)


def make_cells(steps: int = STEPS) -> list[Cell]:
    table1 = [("table1", "base", dataset) for dataset in paper.DATASET_LABELS]
    table2 = [("table2", row, "pg19") for row in paper.ROWS]
    return [
        Cell(table, row, dataset, model, SCALE, cell_key(make_config(model, dataset, row, steps=steps)))
        for table, row, dataset in (*table1, *table2)
        for model in paper.MODEL_LABELS
    ]


@pytest.fixture
def cells() -> list[Cell]:
    """Both tables, as `expected_cells` gives them."""
    return make_cells()


@pytest.fixture
def tiny_cells() -> list[Cell]:
    rows = [("table1", "base"), *(("table2", row) for row in paper.ROWS)]
    return [
        Cell(table, row, "tiny", model, SCALE, cell_key(make_config(model, "tiny", row)))
        for table, row in rows
        for model in paper.MODEL_LABELS
    ]


OFFSET = {"xpos": 0.3, "rope": 0.0, "crope": 0.01}
LEVEL = {"pg19": 6.0, "wikitext2": 5.0, "ptb": 4.0}


def make_study(folder: Path, *, seeds: Sequence[int], **settings: Any) -> None:
    """Every cell of both tables; CRoPE lies 0.01 above RoPE, XPOS 0.3. Five seeds make 90 runs."""
    rows = [*((name, "base") for name in LEVEL), *(("pg19", row) for row in list(paper.ROWS)[1:])]
    for dataset, row in rows:
        for model, offset in OFFSET.items():
            for seed in seeds:
                make_run(folder, model, dataset, row, seed=seed, final=LEVEL[dataset] + offset + 0.1 * seed, **settings)


@pytest.fixture
def whole_study(runs_dir: Path) -> None:
    make_study(runs_dir, seeds=(0, 1))


@pytest.fixture(scope="session")
def all_studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of all four studies on two texts, three seeds each; not to be changed."""
    from tests.report.study_runs import make_studies

    folder = tmp_path_factory.mktemp("studies") / "runs"
    make_studies(folder, STUDIES)
    return folder


def read_source(*folders: Path, scale: str = SCALE, machine: str = "") -> Source:
    found = [read_runs(folder) for folder in folders]
    runs, damaged = [run for sound, _ in found for run in sound], [run for _, broken in found for run in broken]
    return Source(scale, folders, runs, damaged, machine)


@pytest.fixture
def build(runs_dir: Path, cells: list[Cell]) -> Callable[..., Path]:
    """build(): the report of the runs in runs_dir, in a folder beside it; every file that was written is returned."""

    def build(
        *,
        name: str = "report",
        scale: str = SCALE,
        expected: list[Cell] | None = None,
        runs: Path | None = None,
        **options: Any,
    ) -> Path:
        out_dir = runs_dir.parent / name
        options = {"unavailable": {}} | options
        files, _ = build_report(
            read_source(runs or runs_dir, scale=scale), expected or cells, out_dir=out_dir, **options
        )
        assert files[-1].name == "index.html"
        assert {path.name for path in files} == {path.name for path in out_dir.iterdir()}
        return out_dir

    return build


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a report's time, and has tests of its own."""
    monkeypatch.setattr("crope.report.figures.render_files", lambda plot, **_: {})
    monkeypatch.setattr("crope.report.html.render_pictures", lambda plot: [])
    monkeypatch.setattr("crope.report.html.plotly_script", lambda: "")
