"""Reading wandb's files back, which is how a full disk shows."""

from __future__ import annotations

import shutil
from pathlib import Path

from crope.config import ROOT
from crope.replay import replay
from crope.wandb_files import read_steps
from tests.wandb_server import history, offline_files

PUBLISHED = next((ROOT / "results" / "published").glob("*/crope-ptb-base-s0-*"))


def test_reading_back_a_file_that_ends_too_early(tmp_path: Path) -> None:
    """Every cut of it holds the first lines and no end; wandb's own reader is the oracle of the whole."""
    shutil.copytree(PUBLISHED, tmp_path / "runs" / PUBLISHED.name)
    replay([PUBLISHED.name], results_dir=tmp_path)
    (file,) = offline_files(tmp_path)
    steps = [line["step"] for line in history(file)]
    assert read_steps(file) == (steps, True)
    data, cut = file.read_bytes(), tmp_path / "cut.wandb"
    for size in (7, 100, len(data) // 2, 32768, len(data) - 1):
        cut.write_bytes(data[:size])
        found, ended = read_steps(cut)
        assert not ended
        assert found == steps[: len(found)]
        assert (len(found) > 0) == (size > 10_000)
