"""scripts/reproduce.py: the order of its steps, its plan, what it measures, its exit status."""

import sys
from types import SimpleNamespace

import pytest
import reproduce

from crope.runs.sweep import Plan


@pytest.fixture
def steps(monkeypatch):
    """`called`: what each step was called with, in order; `problems`: what each returns."""
    called = {}
    problems = {name: [] for name in ("data", "training", "lengths", "report")}

    def note(name, value):
        called[name] = value
        return problems[name]

    def with_data(plan):
        return plan, note("data", plan)

    def extrapolate_all(runs):
        return note("lengths", [run.model for run in runs])

    def build_report(*, results_dir, scale, studies):
        return note("report", (results_dir, scale, studies))

    monkeypatch.setattr("crope.runs.sweep.with_data", with_data)
    monkeypatch.setattr("crope.runs.sweep.train_all", lambda runs: note("training", runs))
    monkeypatch.setattr("crope.runs.extrapolate.extrapolate_all", extrapolate_all)
    monkeypatch.setattr("crope.report.page.build_report", build_report)
    monkeypatch.setattr("crope.machine.default_scale", lambda: "medium")
    clock = SimpleNamespace(monotonic=iter([0, 2336]).__next__)
    monkeypatch.setattr(reproduce, "time", clock)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
        return reproduce.main()

    return SimpleNamespace(call=call, called=called, problems=problems)


def test_the_steps_follow_one_another_and_say_how_long_they_took(steps, capsys):
    assert steps.call("--scale=smoke", "--study=pilot") == 0
    assert list(steps.called) == ["data", "training", "lengths", "report"]
    assert capsys.readouterr().out == "took 0:38:56 (h:min:s)\n"


def test_options_are_those_of_the_plan(steps, tmp_path):
    options = ["--scale=smoke", "--seeds=2", "--study=base", "--study=pilot", "tracker=none"]
    steps.call(*options, f"--results-dir={tmp_path}")
    expected = Plan(["base", "pilot"], "smoke", 2, tmp_path, ["tracker=none"])
    assert steps.called["data"] == expected
    assert steps.called["report"] == (tmp_path, "smoke", ["base", "pilot"])


@pytest.mark.parametrize(
    ("options", "scale", "shown"),
    [
        ("--study=pilot", "medium", "medium"),  # that of the device
        ("--study=paper_row", "paper", None),  # the study's own joins the report of most runs
        ("--study=paper_row --scale=smoke", "smoke", "smoke"),
    ],
)
def test_the_scale_of_runs_and_report(options, scale, shown, steps):
    steps.call("--seeds=1", *options.split())
    assert steps.called["data"].scale == scale
    assert steps.called["report"][1] == shown


def test_runs_are_read_beyond_their_length_where_a_contrast_asks_for_it(steps):
    steps.call("--study=length", "--study=pilot", "--seeds=1", "--scale=smoke")
    models = "xpos learned relative_bias alibi nope rope crope"
    assert steps.called["lengths"] == models.split()


def test_runs_are_read_at_a_greater_length_where_a_contrast_asks_for_it(steps):
    steps.call("--study=fair_lr", "--seeds=1", "--scale=smoke")
    assert {"rope", "crope"} <= set(steps.called["lengths"])


def test_runs_at_another_scale_than_the_planned_one_enter_no_number(steps, capsys):
    steps.call("--study=paper_row", "--study=base", "--seeds=1", "--scale=smoke")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paper_row is planned at scale paper: runs at smoke")


def test_seeds_beyond_a_plan_enter_no_number_of_it(steps, capsys):
    """Tables 1 and 2 take them; `base` plans 10."""
    steps.call("--study=table1", "--study=base", "--seeds=11", "--scale=smoke")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("base plans 10 seeds: further ones enter none of its numbers")


@pytest.mark.parametrize("step", ["data", "training", "lengths", "report"])
def test_the_status_is_1_after_a_problem_of_any_step(step, steps):
    steps.problems[step].append("no such luck")
    assert steps.call("--study=pilot", "--scale=smoke") == 1
