"""The README keeps its word: its commands exist, its links lead somewhere, its tables are those of the records."""

from __future__ import annotations

import re
import shlex

import pytest

from crope.compose import check_overrides, load_run
from crope.config import ROOT
from crope.report.published import FIGURE, PUBLISHED, RECORD_FILES, publish, render_readme
from tests.conftest import TOY_OVERRIDES

TEXT = (ROOT / "README.md").read_text()
COMMANDS = [line.strip() for line in TEXT.splitlines() if line.startswith("    ")]
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_targets_exist() -> None:
    named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", TEXT, re.MULTILINE))
    assert {"reproduce", "test", "report"} <= named
    assert named <= TARGETS
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make test" in ci and "make smoke" in ci


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("python ")])
def test_python_commands_compose(command: str) -> None:
    """Each names a script that is there and overrides that the configuration takes."""
    _, script, *words = shlex.split(command, comments=True)
    assert (ROOT / script).is_file()
    overrides = [word for word in words if "=" in word]
    assert overrides
    check_overrides(overrides)
    if "-m" not in words:
        assert load_run(overrides).run_id


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert not missing


def test_tables_and_picture_are_those_of_the_published_records() -> None:
    text, figure = render_readme(TEXT)
    assert text == TEXT, "run `make readme`"
    assert (PUBLISHED / FIGURE).exists()
    assert figure[:8] == b"\x89PNG\r\n\x1a\n"  # its bytes depend on the font renderer's version, so no comparison


def test_publishing_refuses_uncommitted_code(toy_data, tmp_path, monkeypatch) -> None:
    from crope import provenance
    from crope.errors import UserError
    from crope.execute import execute
    from crope.interrupt import StopRequest

    collect = provenance.collect
    monkeypatch.setattr(provenance, "collect", lambda *known: collect(*known) | {"commit": "f" * 40, "dirty": True})
    run = load_run([*TOY_OVERRIDES, "scale=smoke", f"results_dir={tmp_path}"])
    execute(run, stop=StopRequest())
    with pytest.raises(UserError, match="uncommitted code"):
        publish(tmp_path, "here", scale="smoke", published=tmp_path / "published")
    with pytest.raises(UserError, match="letters, digits"):
        publish(tmp_path, "../here", scale="smoke", published=tmp_path / "published")
    with pytest.raises(UserError, match="no complete run of scale paper"):
        publish(tmp_path, "here", scale="paper", published=tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_published_records_name_no_folder_of_the_machine(toy_data, tmp_path, monkeypatch) -> None:
    """And what was measured beyond the training length comes along."""
    from crope import provenance
    from crope.execute import execute
    from crope.interrupt import StopRequest
    from crope.verify import read_runs

    collect = provenance.collect
    clean = {"commit": "f" * 40, "dirty": False, "command": f"scripts/train.py results_dir={tmp_path}"}
    monkeypatch.setattr(provenance, "collect", lambda *known: collect(*known) | clean)
    run = load_run([*TOY_OVERRIDES, "scale=smoke", f"results_dir={tmp_path}"])
    execute(run, stop=StopRequest())
    for name in ("extrapolation.json", "conversion.json"):
        (run.path / name).write_text("{}", encoding="utf-8")
    assert publish(tmp_path, "here", scale="smoke", published=tmp_path / "published") == [run.run_id]
    folder = tmp_path / "published" / "here"
    copies = {path.name: path.read_text(encoding="utf-8") for path in (folder / run.run_id).iterdir()}
    assert copies.keys() == {*RECORD_FILES, "extrapolation.json", "conversion.json"}
    assert not [name for name, text in copies.items() if str(tmp_path) in text]
    assert "results_dir=results" in copies["provenance.json"] and "\nresults_dir: results\n" in copies["config.yaml"]
    sound, damaged = read_runs(folder)
    assert (len(sound), damaged) == (1, [])
