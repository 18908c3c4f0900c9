"""Prepares token files ahead of training: `python scripts/prepare.py ptb wikitext2 --tokenizer gpt2`.

What is already prepared is only opened. Layout of local files and sources: data/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from crope.config import TokenizerConfig
from crope.data.corpora import CORPORA, RAW_DIR, SPLITS, shown
from crope.data.tokenizer import GPT2_VOCAB_SIZE
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import UserError

PAPER_CORPORA = ["pg19", "wikitext2", "ptb"]
QUICK_VOCAB_SIZE = 4096  # of conf/scale/quick.yaml


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    size = options.vocab_size or (GPT2_VOCAB_SIZE if options.tokenizer == "gpt2" else QUICK_VOCAB_SIZE)
    tokenizer = TokenizerConfig(name=options.tokenizer, vocab_size=size)
    failed = False
    for corpus in options.corpora or PAPER_CORPORA:
        try:
            print(render_line(corpus, load_tokens(corpus, tokenizer, data_dir=options.data_dir)))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prepare token files ahead of training.")
    parser.add_argument("corpora", nargs="*", metavar="corpus", help=f"of {', '.join(CORPORA)}; default: the paper's")
    parser.add_argument("--tokenizer", default="bpe", help="gpt2 or bpe (default)")
    parser.add_argument("--vocab-size", type=int, help=f"default: {QUICK_VOCAB_SIZE} for bpe")
    parser.add_argument("--data-dir", type=Path, help="raw text; default: CROPE_DATA_DIR, else data/raw")
    options = parser.parse_args(arguments)
    options.data_dir = options.data_dir or Path(os.environ.get("CROPE_DATA_DIR") or RAW_DIR)
    return options


def render_line(corpus: str, tokens: TokenSet) -> str:
    counts = [(split, tokens.meta["splits"][split]) for split in SPLITS]
    parts = [f"{name} {n['tokens']:,} tokens, {n['words']:,} words, {n['bytes']:,} bytes" for name, n in counts]
    return f"{corpus}: {'; '.join(parts)}; {shown(tokens.folder)}"


if __name__ == "__main__":
    sys.exit(main())
