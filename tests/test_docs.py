"""README and docs: their links, commands and examples work."""

import math
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tools
import yaml

from crope.config import PUBLISHED, ROOT, DataConfig, ModelConfig, keys
from crope.model import positions
from crope.plan.compose import GROUPS, check_words, group_files, typed
from crope.report.frame import load_frame
from tests.test_tutorial import TUTORIAL, blocks

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "data" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
TEXT = "\n".join(page.read_text() for page in PAGES)


def commands(script):
    found = re.findall(rf"^    (python scripts/{script}\.py[^\\\n]*)", TEXT, re.MULTILINE)
    return sorted(set(found))


def example(start, page=TUTORIAL):
    """The code block of a page with this line."""
    return next(block for block in blocks(page) if start in block)


def make(*words, cwd=ROOT):
    command, environment = ["make", *words], os.environ | {"MAKEFLAGS": ""}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_make_commands_name_targets():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)
    named = re.findall(r"(?:`|^    )make ([a-z-]+)", TEXT, re.MULTILINE)
    assert named and set(named) <= set(targets)


def test_a_variable_that_make_does_not_know_is_refused():
    """SEED=1 for SEEDS=1 would start every seed."""
    done = make("-n", "help", "SEEDS=1", "SEED=1")
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert "SEED;" in line


def test_variables_of_make_become_options():
    words = ["STUDY=a b", "SEEDS=2", "SCALE=quick", "ARGS=tracker=none"]
    options = ("-n", "--no-print-directory", "-o", ".venv/.stamp")
    recipe = make("reproduce", *options, *words).stdout
    given = "--study a --study b --seeds 2 --scale quick tracker=none"
    assert recipe.split() == f".venv/bin/python scripts/reproduce.py {given}".split()


@pytest.mark.parametrize("command", commands("train"))
def test_training_commands_name_valid_keys(command):
    """Values too, but for what the reader of the tutorial makes."""
    words = [word for word in shlex.split(command, comments=True) if "=" in word]
    check_words(words)
    for word in words:
        key, _, values = word.lstrip("+").partition("=")
        assert key in [*keys(), *GROUPS] or key.startswith("hydra")
        if key in GROUPS and not re.search(r"letters|fineweb|gaussian|\(", values):
            assert set(values.split(",")) <= group_files(key).keys()


@pytest.mark.parametrize("command", commands("tools"))
def test_tool_commands_have_valid_options(command):
    words = shlex.split(command, comments=True)[2:]
    assert tools.build_parser().parse_args(words).call.__name__.strip("_") == words[0]


def test_the_library_example_ends_in_a_loss():
    """An untrained model predicts each of the 256 tokens with nearly equal probability."""
    page = (ROOT / "docs" / "own-model.md").read_text()
    space = {}
    exec(example("from crope import GPT", page), space)
    assert space["loss"].item() == pytest.approx(math.log(256), abs=0.3)


def test_the_frame_of_the_tutorial_gives_the_number_it_prints(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = example("from crope.report.evidence import")
    exec(code, {"Path": Path})
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()


def test_times_of_runs_are_medians_of_the_published_ones():
    page = (ROOT / "docs" / "performance.md").read_text()
    rows = re.findall(r"\|([\d,]+)\|([\d,]+)\|.*\|([\d.]+)\|`(.*)`\|", page)
    assert len(rows) == 5
    for steps, tokens, minutes, name in rows:
        runs = load_frame([PUBLISHED / name])[0]
        batch = runs["config.train.batch_size"] * runs["config.train.seq_len"]
        size = (runs["config.train.max_steps"] == number(steps)) & (batch == number(tokens))
        assert f"{runs.loc[size, 'time.total_s'].median() / 60:.1f}" == minutes


def number(text):
    return int(text.replace(",", ""))


def test_the_hub_corpus_of_the_tutorial_is_valid():
    data = typed(DataConfig, yaml.safe_load(example("# A slice of FineWeb-Edu")))
    assert data.hub and data.hub.revision and data.hub.max_bytes == 50_000_000


def test_the_scheme_of_the_tutorial_works():
    """Its class, in the module that it is meant for, passes its own test; its YAML fits the schema."""
    typed(ModelConfig, yaml.safe_load(example("# A Gaussian window over the past.")))
    space = vars(positions) | {"pytest": pytest, "math": math}
    exec(example("class GaussianBias"), space)
    exec(example("def test_gaussian_window_by_its_formula"), space)
    space["test_gaussian_window_by_its_formula"]()
