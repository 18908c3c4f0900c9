"""docs/config.md is what the schema says; commands and links of the guides lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from crope.compose import check_overrides, load_run
from crope.config import ROOT, keys
from crope.reference import FILE, render_reference
from crope.study import jobs

GUIDES = sorted((ROOT / "docs").glob("*.md"))
COMMANDS = [
    line.strip()
    for guide in GUIDES
    for line in guide.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    if line.startswith("    python scripts/")
]


OPEN = ("| `model.position`", "| `data.corpus`", "- `")  # lists that a file of the user's own makes longer


def test_the_page_is_current() -> None:
    """But for names of files that were added since: they need no edit of what is there."""
    page, rendered = FILE.read_text(encoding="utf-8").splitlines(), render_reference().splitlines()
    for listed, expected in zip(page, rendered, strict=True):
        if expected.startswith(OPEN):
            names = iter(re.split(r", | \| |: ", expected))
            assert all(name in names for name in re.split(r", | \| |: ", listed)), "run `make docs`"  # in this order
        else:
            assert listed == expected, "run `make docs`"


def test_every_key_has_one_row_with_its_default() -> None:
    text = render_reference()
    assert re.findall(r"^\| `([a-z_.0-9]+)` \|", text, re.MULTILINE) == sorted(keys(), key=list(keys()).index)
    assert "| `train.lr` | `0.001` | initial learning rate | number > 0 |" in text
    assert (
        "| `tokenizer.vocab_size` | set by the group file | entries, padding not counted | whole number >= 257 |"
        in text
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_name_a_script_and_keys_that_exist(command: str) -> None:
    _, script, *words = shlex.split(command, comments=True)
    assert (ROOT / script).is_file()
    if script == "scripts/train.py":
        # What a guide has the reader add is not there yet.
        check_overrides([word for word in words if "=" in word and not re.search("[=,](gaussian|letters|heads)", word)])


def test_the_tutorials_study_is_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (study,) = re.findall(r"`conf/study/heads.yaml`:\n\n```yaml\n(.*?)```", text, re.DOTALL)
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "study" / "heads.yaml").write_text(study)
    monkeypatch.setattr("crope.compose.CONF_DIR", tmp_path / "conf")
    found = jobs(["heads"], scale="smoke", seeds=[0, 1])
    runs = [load_run([*job, "train.precision=fp32"]) for job in found]
    # The first axis varies slowest, the last fastest.
    assert [(run.config.seed, run.config.model.n_heads, run.model) for run in runs] == [
        (seed, heads, model) for seed in (0, 1) for heads in (2, 4) for model in ("rope", "crope")
    ]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", guide.read_text(encoding="utf-8")) if "://" not in link]
    assert not [link for link in links if not (guide.parent / link).exists()]


def test_make_targets_of_the_guides_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        name
        for guide in GUIDES
        for name in re.findall(r"(?:^    |`)make ([a-z-]+)", guide.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named and named <= targets
