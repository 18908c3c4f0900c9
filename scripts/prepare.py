"""Prepares token files ahead of training: downloads, checks and tokenises. What is prepared is only opened.

python scripts/prepare.py                                # the paper's datasets, the tokenizer of the default scale
python scripts/prepare.py ptb wikitext2 --scale paper

Layout of local files and sources: data/README.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crope import paper
from crope.cli import default_scale, main_errors
from crope.compose import load_run
from crope.data.corpora import SPLITS, shown
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", metavar="corpus", help=f"default: {' '.join(paper.DATASET_LABELS)}")
    parser.add_argument("--scale", help="whose tokenizer; default: paper with a CUDA device, else quick")
    parser.add_argument("--data-dir", help="raw text; default: CROPE_DATA_DIR, else data/raw")
    options = parser.parse_args()
    overrides = [f"scale={options.scale or default_scale()[0]}"]
    overrides += [f"data_dir={options.data_dir}"] if options.data_dir else []
    failed = False
    for corpus in options.corpora or paper.DATASET_LABELS:
        config = load_run([f"data={corpus}", *overrides]).config
        try:
            print(
                render_line(corpus, load_tokens(corpus, config.tokenizer, data_dir=Path(config.data_dir))), flush=True
            )
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def render_line(corpus: str, tokens: TokenSet) -> str:
    counts = [(split, tokens.meta["splits"][split]) for split in SPLITS]
    parts = [f"{name} {n['tokens']:,} tokens, {n['words']:,} words, {n['bytes']:,} bytes" for name, n in counts]
    return f"{corpus}: {'; '.join(parts)}; {shown(tokens.folder)}"


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
