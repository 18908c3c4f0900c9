"""What is known when a run starts: the commit, whether the code is that of it, the command."""

import subprocess

import pytest
import torch

from crope.config import RuntimeConfig
from crope.runs import provenance
from crope.runs.provenance import collect, earlier_attempts, is_dirty


def git(folder, *command):
    line = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *command]
    return subprocess.check_output(line, text=True).strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """The code of a run, as committed."""
    (tmp_path / "crope").mkdir()
    (tmp_path / "crope" / "gpt.py").write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(provenance, "ROOT", tmp_path.resolve())
    return tmp_path


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        ("notes.txt", False),
        ("conf/study/mine.yaml", True),  # a plan that the named commit lacks
        ("crope/gpt.py", True),
        ("crope/größer one.py", True),
        ("scripts/mine.py", True),
    ],
)
def test_changed_and_untracked_source_files_make_a_checkout_dirty(file, dirty, checkout):
    (checkout / file).parent.mkdir(parents=True, exist_ok=True)
    (checkout / file).write_text("y = 2\n")
    assert is_dirty(checkout) is dirty


def test_without_git_it_is_unknown(checkout):
    """Also inside another repository, whose commit says nothing about the code."""
    assert is_dirty(checkout / "crope") is None


def test_it_is_said_once_that_runs_cannot_be_published(checkout, monkeypatch, capsys):
    provenance.say_unknown_commit.__wrapped__()  # not from its cache
    assert not capsys.readouterr().err
    (checkout / "crope/mine.py").write_text("x = 1\n")
    provenance.say_unknown_commit.__wrapped__()
    assert "uncommitted" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")  # no git
    provenance.say_unknown_commit.__wrapped__()
    assert "commit" in capsys.readouterr().err


def test_facts_name_the_newest_commit(checkout):
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    (checkout / "crope/.gitignore").write_text("*\n")  # as a __pycache__ that git ignores
    facts = collect(RuntimeConfig(), torch.device("cpu"), {})
    assert facts["commit"] == git(checkout, "rev-parse", "HEAD")
    assert facts["dirty"] is False


def test_edits_and_commits_while_runs_train_are_not_of_their_code(checkout):
    def facts():
        found = collect(RuntimeConfig(), torch.device("cpu"), {})
        return found["commit"], found["dirty"]

    loaded = (git(checkout, "rev-parse", "HEAD"), False)
    assert facts() == loaded
    (checkout / "crope/gpt.py").write_text("x = 2\n")
    assert facts() == loaded
    git(checkout, "commit", "-qam", "second")
    assert facts() == loaded


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("crope/../crope/gpt.py", "crope/gpt.py"),
        ("../mine.py", "mine.py"),
    ],
)
def test_the_command_names_no_folder_of_the_user(program, named, checkout, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(checkout / program), "seed=range(1, 3)"])
    assert (
        collect(RuntimeConfig(), torch.device("cpu"), {})["command"]
        == f"{named} 'seed=range(1, 3)'"
    )


UNKNOWN = dict.fromkeys(["commit", "dirty", "command", "device", "started_utc"])


def test_of_a_corrupt_file_no_attempt_is_known(tmp_path, capsys):
    """Without a commit it is not published."""
    path = tmp_path / "provenance.json"
    path.write_text('{"commit": "1"}')
    assert earlier_attempts(path) == [UNKNOWN]
    assert capsys.readouterr().err.count("provenance.json: corrupt") == 1
