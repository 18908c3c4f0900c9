"""Fixtures shared by all tests: a toy corpus and toy runs."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from crope.config import ROOT
from crope.data.tokens import TokenSet
from crope.files import read_metrics
from crope.plan.study import compose_runs
from crope.train import loop as trainer
from crope.train.update import Updates

# A shell starts background commands with SIGINT ignored, nohup with SIGHUP; every process that a test
# starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Tiny tensors: threads that wait for each other would take most of the time.
torch.set_num_threads(1)
# Left out by `make test-fast`: they compile, start processes, train every model, compose many runs,
# or read all published records.
SLOW = (
    "data/test_tokens.py",
    "interop/",
    "report/test_page.py",
    "report/test_published_docs.py",
    "plan/test_compose.py::test_every_file_",
    "runs/test_extrapolate.py",
    "runs/test_faults.py",
    "plan/test_study.py",
    "runs/test_sweep.py",
    "runs/test_tracking.py::test_a_continued_run_is_whole",
    "records/test_verify.py::test_every_published_record",
    "test_reproduce.py",
    "test_scripts.py::test_a_m",
    "test_scripts.py::test_an_invalid_record",
    "test_scripts.py::test_reproduce_",
    "theory/",
    "train/test_checkpoint.py",
    "train/test_golden.py",
    "train/test_loop.py::test_compiled_training",
    "train/test_loop.py::test_each_part_is_one_graph",
)
TOY_VOCAB = 300
TOY_OVERRIDES = (
    "data=tiny",
    "scale=quick",
    "tracker=none",
    f"tokenizer.vocab_size={TOY_VOCAB}",
    "train.max_steps=12",
    "train.batch_size=2",
    "train.seq_len=16",
    "train.lr_step_size=4",
    "train.precision=fp32",
    "eval.every=4",
    "eval.full_every=6",
    "eval.full_tokens=64",
    "model.d_model=16",
    "model.n_layers=1",
    "runtime.device=cpu",
    "runtime.log_every=3",
    "runtime.checkpoint_seconds=5",
)


def make_toy_tokens(folder):
    """Two short splits of random ids with the meta that a prepared corpus has."""
    ids = np.random.default_rng(1).integers(TOY_VOCAB, size=1200).astype(np.uint16)
    splits = {"train": ids[:900], "validation": ids[900:]}
    meta = {
        "corpus": "tiny",
        "tokenizer": {"name": "bpe", "vocab_size": TOY_VOCAB},
        "splits": {},
    }
    for name, part in splits.items():
        meta["splits"][name] = {"tokens": len(part), "bytes": 3 * len(part), "sha256": name}
    return TokenSet(folder, meta, **splits)


def pytest_collection_modifyitems(items):
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker("slow")


def pytest_collection_finish():
    gc.freeze()  # every run collects garbage; the modules of torch and pandas are none


@pytest.fixture
def toy_tokens(tmp_path):
    return make_toy_tokens(tmp_path)


@pytest.fixture(params=["train", "validation"])
def split(request):
    return request.param


@pytest.fixture
def toy_data(toy_tokens, monkeypatch):
    """Every run trains on the toy corpus."""
    monkeypatch.setattr("crope.runs.run.load_tokens", lambda *_, **__: toy_tokens)
    monkeypatch.setattr("crope.runs.load.load_tokens", lambda *_, **__: toy_tokens)
    return toy_tokens


@pytest.fixture
def own_conf(tmp_path, monkeypatch):
    """A copy of conf/ to be changed, from which everything is composed."""
    copy = shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.setattr("crope.plan.compose.CONF_DIR", copy)
    return copy


def toy_run(results, *more):
    """A run as `load_run` composes it; that would take Hydra 0.2 s each time."""
    values = {"model": "crope"}
    for text in (*TOY_OVERRIDES, f"results_dir={results}", *more):
        key, _, value = text.partition("=")
        values[key] = value
    (run,) = compose_runs([values], [])
    return run


def begin(run, metrics=""):
    """The folder of a run that has begun and logged these lines."""
    run.path.mkdir(parents=True)
    (run.path / "run.json").touch()
    (run.path / "metrics.jsonl").write_text(metrics)
    return run.path


@contextmanager
def raises_one_line(error, match):
    """pytest.raises for an error that is shown to users: its message has no line feed."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def run_script(name, *arguments, root=ROOT, **environment):
    """The ended process of one of the scripts of this repository or of a copy."""
    command = [sys.executable, f"scripts/{name}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(root)} | environment
    options = {"capture_output": True, "text": True, "timeout": 1000, "check": False}
    return subprocess.run(command, cwd=root, env=environment, **options)


def count_steps_as_seconds(set_attribute=setattr):
    """Replaces the trainer's clock by one that each update moves by a second."""
    clock, real = SimpleNamespace(now=0.0), Updates.train_step

    def step(*args, **kwargs):
        loss = real(*args, **kwargs)
        clock.now += 1
        return loss

    set_attribute(Updates, "train_step", step)
    set_attribute(trainer, "time", SimpleNamespace(perf_counter=lambda: clock.now))


@contextmanager
def during_step(at, action):
    """Calls `action` before update number at + 1 of every run within the block."""
    real = Updates.train_step

    def step_with_action(*args, step, **kwargs):
        if step == at:
            action()
        return real(*args, step=step, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updates, "train_step", step_with_action)
        yield


def stop():
    """Requests a stop of this process."""
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def step_clock(monkeypatch):
    """With it, runtime.checkpoint_seconds=5 saves every 5 steps."""
    count_steps_as_seconds(monkeypatch.setattr)


def contents(folder, pattern="*"):
    """The bytes of a folder's files."""
    return {path.name: path.read_bytes() for path in folder.glob(pattern)}


def losses(run):
    """Every loss and learning rate of metrics.jsonl; times are left out."""
    found = []
    for row in read_metrics(run.path / "metrics.jsonl"):
        for key in row:
            if key.endswith(("_nats", "/lr")):
                found.append((row["step"], key, row[key]))
    return found


def same_bits(one, other):
    """Whether two runs have equal losses and equal weights."""
    first, second = (load_file(run.path / "weights.safetensors") for run in (one, other))
    same_weights = all(torch.equal(first[name], second[name]) for name in first)
    return losses(one) == losses(other) and same_weights
