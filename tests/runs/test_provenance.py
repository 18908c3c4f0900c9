"""Whether a run's code is that of its commit."""

import json
import subprocess
from pathlib import Path

import pytest

from crope.config import RuntimeConfig
from crope.runs import provenance
from crope.runs.provenance import ATTEMPT, collect, earlier_attempts, is_dirty


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "crope").mkdir()
    (tmp_path / "crope" / "gpt.py").write_text("x = 1\n")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", "-C", str(tmp_path), *command.split()], check=True)
    return tmp_path


def test_a_checkout_as_committed_is_clean(checkout: Path) -> None:
    assert is_dirty(checkout) is False
    (checkout / "notes.txt").write_text("mine\n")
    assert is_dirty(checkout) is False


@pytest.mark.parametrize(
    "file",
    [
        "crope/gpt.py",
        "crope/new_scheme.py",
        "conf/model/my own.yaml",
        "conf/model/größer.yaml",
        "scripts/mine.py",
    ],
)
def test_changed_and_untracked_source_files_make_it_dirty(file: str, checkout: Path) -> None:
    (checkout / file).parent.mkdir(parents=True, exist_ok=True)
    (checkout / file).write_text("y = 2\n")
    assert is_dirty(checkout) is True


def test_facts_name_the_newest_commit_and_say_whether_the_code_differs(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "ROOT", checkout)
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "second"], check=True)
    log = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True)
    facts = collect(RuntimeConfig(device="cpu"), {})
    assert (facts["commit"], facts["dirty"]) == (log.stdout.split()[0], False)
    (checkout / "crope" / "gpt.py").write_text("y = 2\n")
    assert collect(RuntimeConfig(device="cpu"), {})["dirty"] is True


@pytest.mark.parametrize(
    ("program", "named"), [("crope/../crope/gpt.py", "crope/gpt.py"), ("../mine.py", "mine.py")]
)
def test_the_command_names_no_folder_of_the_user(
    program: str, named: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "ROOT", checkout.resolve())
    monkeypatch.setattr("sys.argv", [str(checkout / program), "seed=1,2"])
    assert collect(RuntimeConfig(device="cpu"), {})["command"] == f"{named} seed=1,2"


def test_without_git_it_is_unknown(checkout: Path) -> None:
    """Also inside another repository, whose commit says nothing about the code."""
    assert is_dirty(checkout / "crope") is None


FACTS = dict.fromkeys(ATTEMPT, "known")


def test_earlier_attempts_are_kept_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    path.write_text(json.dumps(FACTS | {"python": "3", "resumed_from": [FACTS | {"commit": "0"}]}))
    assert earlier_attempts(path) == [FACTS | {"commit": "0"}, FACTS]


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"commit": ',
        "null",
        "[]",
        "{}",
        json.dumps(FACTS | {"resumed_from": [{}]}),
        "[" * 100_000,
    ],
)
def test_of_a_corrupt_file_no_attempt_is_known(content: str, tmp_path: Path, capsys) -> None:
    """Without a commit it is not published (tests/report/test_publish.py)."""
    path = tmp_path / "provenance.json"
    path.write_text(content)
    assert earlier_attempts(path) == [dict.fromkeys(ATTEMPT)]
    assert capsys.readouterr().err.count("provenance.json") == 1
