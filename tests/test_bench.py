"""The benchmark's figures: what a time is worth, and the ways to train several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from crope import bench_page
from crope.bench import OURS, PLAIN, Contender, Timing, bench, contenders, describe, render_bench
from crope.bench_seeds import BATCHED, IN_TURN, PROCESSES, Way, bench_seeds, describe_seeds, render_seeds
from crope.compose import load_run
from crope.peers import Setting

from .conftest import TOY_OVERRIDES

TOY = load_run(TOY_OVERRIDES)  # 2 sequences of 16 tokens


def test_a_table_says_how_many_times_a_peer_s_pace_our_fastest_setting_has() -> None:
    eager, compiled = Setting("fp32", False, True), Setting("fp32", True, True)
    found = describe(
        TOY,
        [
            Timing(Contender(OURS, eager), 8.0, 7.0, 0.5, 1.0),
            Timing(Contender(OURS, compiled), 4.0, 3.0, 0.5, 9.0),
            Timing(Contender(PLAIN, eager), 10.0, 9.0, 0.5, 1.0),
        ],
    )
    assert [line["tokens_per_s"] for line in found["contenders"]] == [4000, 8000, 3200]
    assert found["contenders"][1]["tflop_per_s"] == pytest.approx(found["flops_per_step"] / 4e-3 / 1e12)
    assert [line.split(" | ")[-1] for line in render_bench(found).splitlines()[4:]] == [
        "2.00 × |",
        "1.00 × |",
        "2.50 × |",
    ]


def test_contenders_are_timed_and_one_that_fails_is_named() -> None:
    """Three of them: each is a process that has to load torch."""
    chosen = [one for one in contenders(TOY) if one.name in (OURS, PLAIN) and not one.setting.compiled][:2]
    wrong = Contender(OURS, Setting("fp32", False, True, loss="liger"))
    timings, failed = bench(TOY, rounds=2, chosen=[wrong, *chosen])
    assert len(failed) == 1 and failed[0].startswith(f"{wrong.label}: ConfigError: runtime.loss=liger")
    assert [timing.contender for timing in timings] == chosen
    for timing in timings:
        assert timing.contender != wrong
        assert 0 < timing.fastest_ms <= timing.median_ms < 1000 * timing.first_step_s
        assert 0.05 < timing.peak_gib < 8  # a process that has torch loaded


def test_several_seeds_are_timed_in_every_way() -> None:
    ways = {(way.seeds, way.name): way for way in bench_seeds(TOY, counts=(2,), rounds=2)}
    assert list(ways) == [(2, IN_TURN), (2, PROCESSES), (2, BATCHED)]
    assert all(way.median_ms > 0 for way in ways.values())
    assert ways[2, PROCESSES].peak_gib > 1.5 * ways[2, BATCHED].peak_gib  # two processes hold torch twice


def test_pace_of_several_seeds_is_that_of_all_together() -> None:
    ways = [Way(IN_TURN, 2, 20.0, 0.4, 1.0), Way(PROCESSES, 2, 10.0, 0.8, 1.0), Way(BATCHED, 2, 16.0, 0.5, 2.0)]
    found = describe_seeds(TOY, ways)
    assert [way["tokens_per_s"] for way in found["ways"]] == [3200, 6400, 4000]
    assert [line.split(" | ")[-1] for line in render_seeds(found).splitlines()[4:]] == [
        "1.00 × |",
        "2.00 × |",
        "1.25 × |",
    ]


def test_each_part_finds_its_place_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "performance.md"
    page.write_text(bench_page.PAGE.read_text(encoding="utf-8"))
    monkeypatch.setattr(bench_page, "PAGE", page)
    monkeypatch.setattr(bench_page, "bench_seeds", lambda run, **_: [Way(IN_TURN, 2, 20.0, 0.4, 1.0)])
    before = page.read_text()
    bench_page.run_bench([], rounds=1, out=tmp_path / "out", write=True, parts=["seeds"])
    head, table, rest = "<!-- generated: bench cpu seeds -->", "one after another | 20.0", "\n## On a GPU"
    assert table in page.read_text().split(head)[1].split("<!-- end")[0]
    assert page.read_text().split(head)[0] == before.split(head)[0]
    assert page.read_text().split(rest)[1] == before.split(rest)[1]
    assert (tmp_path / "out" / "cpu-crope-seeds.json").exists()
