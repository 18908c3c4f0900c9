"""scripts/reproduce.py: the order of its steps, its plan, what it measures, its exit status."""

import sys
from types import SimpleNamespace

import pytest
import reproduce

from crope.runs.sweep import Plan


@pytest.fixture
def steps(monkeypatch):
    """The steps note what they are called with; what they return is set by the test."""
    noted = ("order", "plans", "measured", "reports")
    returned = ("data", "training", "lengths", "invalid")
    steps = SimpleNamespace(**{name: [] for name in (*noted, *returned)})

    def prepare(plan):
        steps.order.append("data")
        steps.plans.append(plan)
        return plan, list(steps.data)

    def train_all(runs):
        steps.order.append("training")
        return steps.training

    def extrapolate_all(runs):
        steps.order.append("lengths")
        steps.measured += [run.model for run in runs]
        return steps.lengths

    def build_report(*, results_dir, scale, studies):
        steps.order.append("report")
        steps.reports.append(scale)
        return steps.invalid

    monkeypatch.setattr("crope.runs.sweep.prepare", prepare)
    monkeypatch.setattr("crope.runs.sweep.train_all", train_all)
    monkeypatch.setattr("crope.runs.extrapolate.extrapolate_all", extrapolate_all)
    monkeypatch.setattr("crope.report.page.build_report", build_report)
    monkeypatch.setattr("crope.train.device.default_scale", lambda: "medium")
    clock = SimpleNamespace(monotonic=iter(range(0, 10000, 2336)).__next__)
    monkeypatch.setattr(reproduce, "time", clock)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
        return reproduce.main()

    steps.call = call
    return steps


def test_the_steps_follow_one_another_and_say_how_long_they_took(steps, capsys):
    assert steps.call("--scale=smoke", "--study=pilot") == 0
    assert steps.order == ["data", "training", "lengths", "report"]
    assert capsys.readouterr().out == "took 0:38:56 (h:min:s)\n"


def test_options_are_those_of_the_plan(steps, tmp_path):
    options = ["--scale=smoke", "--seeds=2", "--study=base", "--study=pilot", "tracker=none"]
    steps.call(*options, f"--results-dir={tmp_path}")
    expected = Plan(["base", "pilot"], "smoke", 2, tmp_path, ["tracker=none"])
    assert steps.plans == [expected]


@pytest.mark.parametrize(
    ("study", "scale"),
    [
        ("pilot", "medium"),
        ("paper_row", "paper"),
        ("cost", "quick"),
    ],
)
def test_the_scale_is_that_of_the_study_else_of_the_device(study, scale, steps):
    steps.call(f"--study={study}", "--seeds=1")
    assert steps.plans[0].scale == scale


def test_both_tables_are_the_default(steps):
    steps.call("--seeds=1")
    assert steps.plans[0].studies == ("table1", "table2")


def test_runs_are_read_beyond_their_length_where_a_contrast_asks_for_it(steps):
    steps.call("--study=length", "--study=pilot", "--seeds=1", "--scale=smoke")
    assert steps.measured == [
        "xpos", "learned", "relative_bias", "alibi", "nope", "rope", "crope",
    ]  # fmt: skip


def test_a_study_at_its_own_scale_joins_the_report_of_most_runs(steps):
    steps.call("--study=paper_row", "--seeds=1")
    steps.call("--study=paper_row", "--seeds=1", "--scale=smoke")
    assert steps.reports == [None, "smoke"]


def test_runs_at_another_scale_than_the_planned_one_enter_no_number(steps, capsys):
    steps.call("--study=paper_row", "--study=base", "--seeds=1", "--scale=smoke")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paper_row is planned at scale paper: runs at smoke")


@pytest.mark.parametrize("step", ["data", "training", "lengths", "invalid"])
def test_the_status_is_1_after_a_problem_of_any_step(step, steps):
    setattr(steps, step, ["no such luck"])
    assert steps.call("--study=pilot", "--scale=smoke") == 1


def test_problems_are_listed_at_the_end(steps, capsys):
    steps.data, steps.training = ["ptb: corrupt"], ["a run: failed"]
    steps.call("--study=pilot", "--scale=smoke")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == ["2 failed:", "  ptb: corrupt", "  a run: failed"]
