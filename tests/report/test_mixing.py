"""What may not share a mean or a difference is refused by name; what may, does."""

from __future__ import annotations

import copy

import pytest

from crope.errors import UserError
from crope.report.frame import resolve_cells
from tests.report.conftest import SPLITS

OTHER_TEXT = {"data": {"splits": copy.deepcopy(SPLITS)}}
OTHER_TEXT["data"]["splits"]["train"]["sha256"] = "c" * 64

KINDS = [
    ({"precision": "bf16"}, "precision or device", "bf16 on cpu: {other}; fp32 on cpu: {first}"),
    ({"seed": 1, "device_kind": "cuda"}, "precision or device", "fp32 on cpu: {first}; fp32 on cuda: {other}"),
    (
        {"seed": 1, "provenance": OTHER_TEXT},
        "data",
        "train tokens aaaaaaaaaaaa, validation tokens bbbbbbbbbbbb: {first};"
        " train tokens cccccccccccc, validation tokens bbbbbbbbbbbb: {other}",
    ),
]


@pytest.mark.parametrize(("other", "what", "found"), KINDS)
@pytest.mark.parametrize("model", ["crope", "rope"])
def test_runs_that_do_not_mix_are_named(write_run, cells, read_sound, model, other, what, found) -> None:
    """Within a cell no mean, between the cells of a row no difference."""
    first, second = write_run("crope", "ptb"), write_run(model, "ptb", **other)
    with pytest.raises(UserError) as caught:
        resolve_cells(read_sound(), cells, unavailable={})
    assert str(caught.value) == (
        f"table1/base/ptb: runs of different {what} share no mean and no difference"
        f" ({found.format(first=first.name, other=second.name)});"
        " move one kind to a folder of its own, name it with --runs"
    )


@pytest.mark.parametrize("other", [{"provenance": {"commit": "f" * 40, "dirty": True}}, {"scale": "smoke"}])
def test_what_changes_no_number_mixes(write_run, cells, read_sound, other) -> None:
    """Another commit of the same numerics; a scale that a sweep's overrides turned into this one."""
    write_run("crope", "ptb", final=4.0)
    write_run("crope", "ptb", seed=1, final=5.0, **other)
    (result,) = [r for r in resolve_cells(read_sound(), cells, unavailable={}) if r.n]
    assert (result.n, result.full.mean_nats, result.notes) == (2, 4.5, ())


def test_rows_may_differ(write_run, cells, read_sound) -> None:
    write_run("crope", "ptb")
    write_run("crope", "wikitext2", precision="bf16", device_kind="cuda", provenance=OTHER_TEXT)
    assert [r.n for r in resolve_cells(read_sound(), cells, unavailable={}) if r.n] == [1, 1]
