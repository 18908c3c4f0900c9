"""Curves of several runs: which runs a name stands for, the last values and their differences."""

import pandas as pd
import pytest
import yaml

from crope.errors import UserError
from crope.files import write_json, write_text
from crope.report.plot import draw, end_values, find_runs, legend_label, plot
from crope.runs.compose import load_run

KEY = "val/loss_nats"
METRICS = """\
{"step": 0, "val/loss_nats": 5.0}
{"step": 10, "val/loss_nats": 4.0}
"""


def write_run(results, *overrides, metrics=METRICS):
    """A run that still trains."""
    common = ("data=ptb", "scale=quick", "train.precision=fp32", f"results_dir={results}")
    run = load_run([*common, *overrides])
    write_text(run.path / "metrics.jsonl", metrics)
    write_text(run.path / "config.yaml", yaml.safe_dump(run.container))
    write_json(run.path / "provenance.json", {"scale": "quick"})
    return run.path


def curves(**losses):
    """By run, then by step."""
    return {name: pd.Series(values) for name, values in losses.items()}


def test_values_end_at_the_last_step_and_differ_at_the_last_common_one():
    lines = end_values(curves(a={0: 5.0, 10: 4.0}, b={0: 5.5, 10: 4.25, 20: 3.0}, c={5: 1.25e-4}))
    assert lines.to_numpy().tolist() == [
        ["a", "10", "4.0000", ""],
        ["b", "20", "3.0000", "+0.2500"],
        ["c", "5", "0.00012500", ""],
    ]


def test_the_command_writes_a_picture_and_prints_what_differs(tmp_path):
    first = write_run(tmp_path, "model=rope")
    metrics = METRICS.replace("4.0", "3.9")
    second = write_run(tmp_path, "model=rope", "train.lr=0.003", metrics=metrics)
    printed = plot([first.name, str(second)], key=KEY, out=None, results_dir=tmp_path)
    *_, line, file = printed.splitlines()
    assert line.split() == [second.name, "train.lr=0.003", "10", "3.9000", "-0.1000"]
    assert file == f"{tmp_path}/plot.png"
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_was_executed_twice_has_two_lines(tmp_path):
    folders = [str(write_run(tmp_path / name, "model=rope")) for name in ("first", "second")]
    printed = plot(folders, key=KEY, out=None, results_dir=tmp_path)
    assert f"({folders[1]})" in printed.splitlines()[2]


def test_a_line_is_labelled_and_early_losses_leave_the_frame():
    """Of 100 steps, the first ten."""
    figure = draw(curves(a={0: 9.0, 10: 5.0, 100: 4.0}, b={0: 9.0, 10: 6.0, 100: 4.5}), KEY)
    (axis,) = figure.axes
    assert [line.get_label() for line in axis.lines] == ["a", "b"]
    assert axis.get_ylim() == pytest.approx((3.9, 6.1))
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("step", KEY)


def test_a_name_is_a_folder_an_id_its_start_or_a_pattern(tmp_path):
    rope = write_run(tmp_path, "model=rope", "seed=101")
    crope = write_run(tmp_path, "model=crope", "seed=101")
    for names in ([str(rope), "crope-ptb-base-s101"], [rope.name, "*-s101-*"]):
        assert find_runs(names, tmp_path) == [rope, crope]


def test_a_pattern_means_published_runs_where_it_matches_none_of_the_users(tmp_path):
    """They are more than can be told apart."""
    with pytest.raises(UserError, match="runs match; name at most 20"):
        find_runs(["rope-ptb-*"], tmp_path)
    own = write_run(tmp_path, "model=rope", "seed=0")
    assert find_runs(["rope-ptb-*"], tmp_path) == [own]


def test_a_published_run_is_found_and_titled(tmp_path):
    (path,) = find_runs(["rope-ptb-base-s0-d61c05fd"], tmp_path)
    assert legend_label(path) == "rope-ptb-base-s0-d61c05fd"


def test_what_cannot_be_drawn_is_refused(tmp_path):
    run = write_run(tmp_path, "model=rope")
    with pytest.raises(UserError, match=KEY):
        plot([run.name], key="val/nosuch", out=None, results_dir=tmp_path)
    with pytest.raises(UserError, match="svg"):
        plot([run.name], key=KEY, out=tmp_path / "a.pdf", results_dir=tmp_path)
