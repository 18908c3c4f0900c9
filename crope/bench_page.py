"""`make bench`: which shapes, and where their tables go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from crope.bench import bench, describe, render_bench
from crope.bench_seeds import bench_seeds, describe_seeds, render_seeds
from crope.compose import Run, load_run
from crope.config import ROOT
from crope.record import write_json, write_text

PAGE = ROOT / "docs" / "performance.md"
# The head decides at the paper's vocabulary, the layers at the quick scale's.
# Several seeds are timed in the row that keeps the machine least busy.
SMALL = ("ablation=b2_l512_g09_s1000", "model=crope")
SHAPES = {
    ("steps", "cpu"): (
        ("scale=paper", *SMALL),
        ("scale=quick", "model=crope", "train.batch_size=8", "train.seq_len=256"),
    ),
    ("steps", "cuda"): (("scale=paper", "model=crope"), ("scale=paper", *SMALL)),
    ("seeds", "cpu"): (("scale=quick", *SMALL),),
    ("seeds", "cuda"): (("scale=paper", *SMALL),),
}
PARTS, SEEDS_AT_ONCE = ("steps", "seeds"), (2, 4)


def run_bench(overrides: Sequence[str], *, rounds: int, out: Path, write: bool, parts: Sequence[str] = PARTS) -> None:
    """Times each shape (or the one that `overrides` give), prints its table, keeps it as JSON below `out`.

    `parts`: a step beside the peers, and the ways to train several seeds; each has its place on the page.
    """
    from crope.device import resolve_device

    device = resolve_device("auto").type
    tables: dict[str, list[str]] = {}
    for part in parts:
        for shape in [tuple(overrides)] if overrides else SHAPES[part, device]:
            run = load_run([*shape, "tracker=none"])
            name, table = _steps(run, device, rounds, out) if part == "steps" else _seeds(run, device, rounds, out)
            tables.setdefault(name, []).append(table)
            print(table, flush=True)
            if write:  # at once: what comes after may fail
                write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), name, "\n".join(tables[name])))


def _steps(run: Run, device: str, rounds: int, out: Path) -> tuple[str, str]:
    found = describe(run, *bench(run, rounds=rounds))
    size = found["shape"]
    write_json(out / f"{device}-{run.model}-b{size['B']}-l{size['L']}-v{size['V']}.json", found)
    return device, render_bench(found)


def _seeds(run: Run, device: str, rounds: int, out: Path) -> tuple[str, str]:
    found = describe_seeds(run, bench_seeds(run, counts=SEEDS_AT_ONCE, rounds=rounds))
    write_json(out / f"{device}-{run.model}-seeds.json", found)
    return f"{device} seeds", render_seeds(found)


def with_tables(page: str, device: str, tables: str) -> str:
    """The page with the tables of one kind of device (`cpu`, `cuda`, `cpu seeds`, ...) replaced."""
    begin, end = f"<!-- generated: bench {device} -->", "<!-- end of generated -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{PAGE}: has no place for the tables of {device}")
    return pattern.sub(lambda _: f"{begin}\n\n{tables}\n{end}", page)
