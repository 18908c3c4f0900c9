"""`make theory`: results/theory with the numbers as JSON, the figures and theory.md.

The same code gives the same bytes. Every number in theory.md is read from the data beside it.
"""

from pathlib import Path

from crope.files import write_bytes, write_json, write_text
from crope.style import render
from crope.theory.complex_maps import tied_entries
from crope.theory.constructions import construction_results
from crope.theory.figures import draw_attention, draw_entries, draw_function_space
from crope.theory.rotary import kernel_limit

TEMPLATE = """# The theory in numbers

Written by `make theory`. Equations, code, tests and errata: `docs/equations.md`.

## Figs. 1 and 2: the function space of CRoPE

![Fig. 1: free numbers of a weight between 6 channels; one name is one number, − its negative (Eq. 30)](fig1.svg)
![Fig. 2: a letter (dotted) under the four bases of real 2x2 matrices (top) and under maps (bottom)](fig2.svg)

## Eqs. 21, 23 and 28: distance from a delta function

The sums are no delta function: for D → ∞ they keep {limit:.3f} of the peak at distance 1. The softmax weight that
misses the target (mean over {window} tokens, scores / √D) does fall: from {missed_by_width[0]:.3f} at D = {widths[0]}
to {missed_by_width[1]:.3f} at D = {widths[1]}; at D = {width}, from {missed_by_gain[0]:.3f} at gain 1 of the queries
to {missed_by_gain[1]:.3f} at gain {gain:.0f}.

## Fig. 3: attending to the targets of “next” and “nexnext”

By hand: Eqs. 27 to 29 with the conjugate phase (CRoPE's weights), and absolute sinusoids in one layer, which Sec. 4.3
calls impossible and a finite window allows.

![Fig. 3: attention of the pointers of one sequence; frames mark the targets](fig3.svg)
"""


def make_theory(out_dir: Path) -> None:
    """Writes all files of `out_dir`."""
    by_hand = construction_results(width=64)
    # What Figs. 1 and 2 show is exact and needs no numbers.
    write_json(out_dir / "constructions.json", by_hand)
    figures = {
        "fig1": draw_entries(tied_entries(width=6)),
        "fig2": draw_function_space(),
        "fig3": draw_attention(by_hand["attention"]),
    }
    for name, figure in figures.items():
        write_bytes(out_dir / f"{name}.svg", render(figure))
    text = TEMPLATE.format(limit=kernel_limit(1), **by_hand)
    write_text(out_dir / "theory.md", text)
    print(f"{out_dir / 'theory.md'}: written, with its data and figures", flush=True)
