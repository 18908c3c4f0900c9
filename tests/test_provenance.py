"""Whether a run's code is that of its commit."""

import subprocess
from pathlib import Path

import pytest

from crope.provenance import is_dirty


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
    "file", ["crope/gpt.py", "crope/new_scheme.py", "conf/model/new.yaml", "scripts/mine.py"]
)
def test_changed_and_untracked_source_files_make_it_dirty(file: str, checkout: Path) -> None:
    (checkout / file).parent.mkdir(parents=True, exist_ok=True)
    (checkout / file).write_text("y = 2\n")
    assert is_dirty(checkout) is True


def test_without_git_it_is_unknown(tmp_path: Path) -> None:
    assert is_dirty(tmp_path) is None
