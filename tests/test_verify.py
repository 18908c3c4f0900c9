"""Every way in which a run directory can be spoilt, and the line that the user then reads; sound ones pass."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from crope.compose import load_run
from crope.config import ROOT, cell_key
from crope.execute import execute
from crope.interrupt import StopRequest
from crope.record import read_record
from crope.verify import check_record, damage_of, read_runs
from tests.conftest import TOY_OVERRIDES

PUBLISHED = sorted(path.parent for path in (ROOT / "results" / "published").glob("*/*/summary.json"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of a published record, to be spoilt."""
    return Path(shutil.copytree(PUBLISHED[0], tmp_path / PUBLISHED[0].name))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    """Edits a .json or .yaml file in place."""
    value = load(path)
    edit(value)
    path.write_text(json.dumps(value), "utf-8")  # JSON is YAML


def set_(file: str, key: str, value: Any) -> Callable[[Path], None]:
    """Sets a dotted key of one of the run's files; `...` removes it."""

    def edit(content: Any) -> None:
        *above, last = key.split(".")
        for name in above:
            content = content[name]
        content.pop(last) if value is ... else content.__setitem__(last, value)

    return lambda run: change(run / file, edit)


def cut(file: str, keep: float) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        data = (run / file).read_bytes()
        (run / file).write_bytes(data[: int(keep * len(data))])

    return edit


def write(file: str, text: str | bytes) -> Callable[[Path], None]:
    return lambda run: (run / file).write_bytes(text if isinstance(text, bytes) else text.encode()) and None


def remove(file: str) -> Callable[[Path], None]:
    return lambda run: (run / file).unlink()


def resign(edit: Callable[[list[str]], None]) -> Callable[[Path], None]:
    """Edits the lines of metrics.jsonl and writes the new sha256 into the summary, as a careful hand would."""

    def edit_both(run: Path) -> None:
        path = run / "metrics.jsonl"
        lines = path.read_text("utf-8").splitlines()
        edit(lines)
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        set_("summary.json", "metrics_sha256", hashlib.sha256(path.read_bytes()).hexdigest())(run)

    return edit_both


SUMMARY, CONFIG, FACTS, METRICS = "summary.json", "config.yaml", "provenance.json", "metrics.jsonl"
BEFORE = load(PUBLISHED[0] / SUMMARY)
FINAL, VERSION = BEFORE["val_full"]["final_nats"], BEFORE["numerics_version"]
NO_HASH = f"config.yaml does not have the run id's hash at numerics version {VERSION}; one was edited"

DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (cut(SUMMARY, 0.5), "summary.json is cut short or damaged ("),
    (cut(SUMMARY, 0), "summary.json is empty"),
    (write(SUMMARY, "\n"), "summary.json is empty"),
    (write(SUMMARY, "complete"), "summary.json is cut short or damaged ("),
    (write(SUMMARY, "[1, 2]"), "summary.json holds no keys and values"),
    (write(SUMMARY, b'{"status": "\xff"}'), "summary.json is cut short or damaged ("),
    (write(SUMMARY, "[" * 100_000), "summary.json is cut short or damaged ("),
    (set_(SUMMARY, "status", ...), "summary.json lacks status"),
    (set_(SUMMARY, "status", "done"), "summary.json: status is 'done', which no run writes"),
    (set_(SUMMARY, "seed", "0"), "summary.json: seed is '0', which no run writes"),
    (set_(SUMMARY, "numerics_version", True), "summary.json: numerics_version is True, which no run writes"),
    (set_(SUMMARY, "unigram_nats", float("nan")), "summary.json is cut short or damaged (NaN is no JSON number)"),
    (set_(SUMMARY, "unigram_nats", 10**400), "summary.json: unigram_nats is 1000"),
    (set_(SUMMARY, "error", {"type": "Error"}), "summary.json: error is {'type': 'Error'}, which no run writes"),
    (set_(SUMMARY, "val_full", ...), "summary.json lacks val_full"),
    (set_(SUMMARY, "val_full", None), "summary.json lacks val_full.final_nats"),
    (set_(SUMMARY, "time.total_s", ...), "summary.json lacks time.total_s"),
    (set_(SUMMARY, "metrics_sha256", ...), "summary.json lacks metrics_sha256"),
    # A number typed by hand.
    (set_(SUMMARY, "val_full.final_nats", 4.5), f"val_full.final_nats is 4.5, but {FINAL!r} by metrics.jsonl"),
    (set_(SUMMARY, "val_full.final_nats", FINAL + 1e-8), f"but {FINAL!r} by metrics.jsonl"),
    (set_(SUMMARY, "val_full.final_nats", "4.5"), "val_full.final_nats is '4.5', but "),
    (set_(SUMMARY, "val_full.best_nats", 1.0), "val_full.best_nats is 1.0, but "),
    (set_(SUMMARY, "val_full.whole_split", 1), "val_full.whole_split is 1, but "),
    (set_(SUMMARY, "val_sampled.mean_nats", 4.5), "val_sampled.mean_nats is 4.5, but "),
    (set_(SUMMARY, "val_sampled.std_nats", None), "val_sampled.std_nats is None, but "),
    (set_(SUMMARY, "val_sampled.std_nats", 0.001), "val_sampled.std_nats is 0.001, but "),
    (set_(SUMMARY, "train.final_nats", 4.5), "train.final_nats is 4.5, but "),
    (set_(SUMMARY, "train_val_gap_nats", 0.0), "train_val_gap_nats is 0.0, but "),
    (set_(SUMMARY, "val_nats_per_byte", 1.0), "val_nats_per_byte is 1.0, but "),
    (set_(SUMMARY, "time.median_step_ms", 1.0), "time.median_step_ms is 1.0, but "),
    (set_(SUMMARY, "memory_peak_gib", 1.5), f"memory_peak_gib is 1.5, but {BEFORE['memory_peak_gib']} by "),
    (set_(SUMMARY, "steps", 7), f"summary.json: steps is 7, but {BEFORE['steps']} by config.yaml; one was edited"),
    (set_(SUMMARY, "train_tokens", 1), f"train_tokens is 1, but {BEFORE['train_tokens']} by config.yaml"),
    (set_(SUMMARY, "train_passes", 1.0), "train_passes is 1.0, but "),
    (set_(SUMMARY, "parameters.total", 1), "parameters.total is 1, but "),
    (set_(SUMMARY, "parameters.qkv", 1.5), "summary.json: parameters.qkv is 1.5, which no run writes"),
    # Another identity.
    (set_(SUMMARY, "model", "rope2"), "summary.json: model, dataset, row and seed give 'rope2-"),
    (set_(SUMMARY, "seed", 7), "summary.json: model, dataset, row and seed give "),
    (set_(SUMMARY, "run_id", "../../x"), "summary.json is of the run '../../x', which is not the directory's name"),
    (set_(SUMMARY, "run_id", "a\nb"), r"summary.json is of the run 'a\nb', which is not the directory's name"),
    (set_(SUMMARY, "precision", "fp64"), f"precision is 'fp64', but {BEFORE['precision']!r} by config.yaml"),
    (set_(SUMMARY, "device_kind", "tpu"), f"device_kind is 'tpu', but {BEFORE['device_kind']!r} by provenance.json"),
    (set_(SUMMARY, "numerics_version", VERSION + 1), NO_HASH.replace(f"version {VERSION}", f"version {VERSION + 1}")),
    (set_(CONFIG, "train.lr", 0.002), NO_HASH),
    (set_(CONFIG, "seed", 1), NO_HASH),
    (set_(CONFIG, "train.precision", "auto"), NO_HASH),
    (set_(CONFIG, "eval", ...), "config.yaml lacks eval"),
    (set_(CONFIG, "model", "crope"), "config.yaml: model is 'crope', which no run writes"),
    # Files that are not there or not whole.
    (remove(CONFIG), "config.yaml is missing"),
    (cut(CONFIG, 0.5), "config.yaml lacks "),
    (write(CONFIG, "a: [1,"), "config.yaml is cut short or damaged (while parsing a flow node"),
    (write(CONFIG, "- 1\n"), "config.yaml holds no keys and values"),
    (remove(FACTS), "provenance.json is missing"),
    (cut(FACTS, 0.9), "provenance.json is cut short or damaged ("),
    (set_(FACTS, "commit", 1), "provenance.json: commit is 1, which no run writes"),
    (set_(FACTS, "data", ...), "provenance.json lacks data"),
    (set_(FACTS, "data.splits.train.sha256", ...), "provenance.json lacks data.splits.train.sha256"),
    (set_(FACTS, "data.splits.train.tokens", 0), "provenance.json: data.splits.train.tokens is 0, which no run writes"),
    (set_(FACTS, "data.splits.validation.bytes", 1), "val_nats_per_byte is "),
    (remove(METRICS), "metrics.jsonl is missing"),
    (cut(METRICS, 0), "metrics.jsonl is empty"),
    (cut(METRICS, 0.99), "metrics.jsonl is cut short: it ends inside a line"),
    (lambda run: (run / METRICS).unlink() or (run / METRICS).mkdir(), "metrics.jsonl cannot be read (Is a directory)"),
    (
        lambda run: (run / METRICS).write_bytes((run / METRICS).read_bytes().replace(b'"step": 10,', b'"step": 11,')),
        "metrics.jsonl was edited or damaged: its sha256 is not metrics_sha256 of summary.json",
    ),
    (resign(lambda lines: lines.__setitem__(2, "{}")), "metrics.jsonl, line 3: not finite numbers by name at a step"),
    (resign(lambda lines: lines.__setitem__(2, '{"step": 1e999}')), "metrics.jsonl, line 3: not finite numbers"),
    (resign(lambda lines: lines.insert(5, lines[2])), "metrics.jsonl, line 6: not finite numbers by name at a step"),
    (resign(lambda lines: lines.__setitem__(0, '{"step": 0, "val/loss_nats": NaN}')), "metrics.jsonl, line 1: not fin"),
    (resign(lambda lines: lines.pop()), "metrics.jsonl lacks what summary.json sums up (KeyError: "),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "expected"), DAMAGE, ids=[expected[:60] for _, expected in DAMAGE])
def test_damage_is_named_in_one_line(run: Path, spoil: Callable[[Path], None], expected: str) -> None:
    spoil(run)
    found = damage_of(run)
    assert found is not None and expected in found
    assert "\n" not in found and found.isprintable() and len(found) < 400
    assert found.startswith(("summary.json", "config.yaml", "provenance.json", "metrics.jsonl"))
    sound, (damaged,) = read_runs(run.parent)
    assert (sound, damaged.path, damaged.reason) == ([], run, found)
    assert damaged.advice == f"{found}; remove its directory and make the run again"


def test_every_published_record_is_sound() -> None:
    assert len(PUBLISHED) >= 54
    assert {path.name: damage_of(path) for path in PUBLISHED} == {path.name: None for path in PUBLISHED}
    assert check_record(read_record(PUBLISHED[0])) is None


def test_a_copy_under_another_name_is_damaged(run: Path) -> None:
    run = run.rename(run.with_name("best run"))
    assert damage_of(run) == f"summary.json is of the run '{BEFORE['run_id']}', which is not the directory's name"


def test_a_run_of_the_trainer_is_sound_whether_complete_or_failed(toy_data, tmp_path: Path) -> None:
    made = [load_run([*TOY_OVERRIDES, f"results_dir={tmp_path}", lr]) for lr in ("train.lr=0.001", "train.lr=1e30")]
    assert [execute(one, stop=StopRequest()).status for one in made] == ["complete", "failed"]
    sound, damaged = read_runs(tmp_path / "runs")
    assert (len(sound), damaged) == (2, [])
    failed = made[1].path
    (failed / "metrics.jsonl").write_text('{"step": 0, "va')  # read by nobody
    set_("provenance.json", "device_kind", "cuda")(failed)  # a new attempt that was killed
    assert damage_of(failed) is None
    set_("summary.json", "error.message", ...)(failed)
    assert damage_of(failed) == "summary.json lacks error.message"
    set_("summary.json", "error", None)(failed)
    assert damage_of(failed) == "summary.json lacks error.type"


def test_a_run_under_way_is_no_finished_run(run: Path) -> None:
    (run / "summary.json").unlink()
    assert read_runs(run.parent) == ([], [])
    assert read_runs(run / "nowhere") == ([], [])
    assert damage_of(run) == "summary.json is missing"


def test_what_can_be_read_of_a_damaged_run_says_where_it_belongs(run: Path) -> None:
    config = load(run / "config.yaml")
    cut("summary.json", 0.5)(run)
    _, (damaged,) = read_runs(run.parent)
    assert (damaged.names, damaged.scale, damaged.key) == ((run.name,), None, cell_key(config))
    shutil.copy(PUBLISHED[0] / "summary.json", run)
    set_("config.yaml", "train.lr", 1.0)(run)
    _, (damaged,) = read_runs(run.parent)
    assert (damaged.names, damaged.scale, damaged.key) == ((run.name,), BEFORE["scale"], None)
    set_("summary.json", "run_id", "another")(run)
    _, (damaged,) = read_runs(run.parent)
    assert damaged.names == (run.name, "another")


def test_verifying_imports_neither_torch_nor_wandb() -> None:
    code = "import sys, crope.verify; sys.exit('torch' in sys.modules or 'wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
