"""`make bench`: which shapes, and where their tables go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from crope.bench import bench, describe, render_bench
from crope.compose import load_run
from crope.config import ROOT
from crope.record import write_json, write_text

PAGE = ROOT / "docs" / "performance.md"
# The head decides at the paper's vocabulary, the layers at the quick scale's.
CPU_SHAPES = (
    ("scale=paper", "ablation=b2_l512_g09_s1000", "model=crope"),
    ("scale=quick", "model=crope", "train.batch_size=8", "train.seq_len=256"),
)
CUDA_SHAPES = (("scale=paper", "model=crope"), ("scale=paper", "ablation=b2_l512_g09_s1000", "model=crope"))


def run_bench(overrides: Sequence[str], *, rounds: int, out: Path, write: bool) -> None:
    """Times each shape (or the one that `overrides` give), prints its table, keeps it as JSON below `out`."""
    from crope.device import resolve_device

    device = resolve_device("auto").type
    shapes = [tuple(overrides)] if overrides else (CUDA_SHAPES if device == "cuda" else CPU_SHAPES)
    tables = []
    for shape in shapes:
        run = load_run([*shape, "tracker=none"])
        found = describe(run, bench(run, rounds=rounds))
        size = found["shape"]
        write_json(out / f"{device}-{run.model}-b{size['B']}-l{size['L']}-v{size['V']}.json", found)
        tables.append(render_bench(found))
        print(tables[-1], flush=True)
    if write:
        write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), device, "\n".join(tables)))


def with_tables(page: str, device: str, tables: str) -> str:
    """The page with the tables of one kind of device replaced."""
    begin, end = f"<!-- generated: bench {device} -->", "<!-- end of generated -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{PAGE}: has no place for the tables of {device}")
    return pattern.sub(lambda _: f"{begin}\n\n{tables}\n{end}", page)
