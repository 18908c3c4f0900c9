"""Prepares token files ahead of training: downloads, verifies and tokenises. Prepared corpora are only opened.

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
from crope.data.tokens import prepare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", metavar="corpus", help=f"default: {' '.join(paper.DATASET_LABELS)}")
    parser.add_argument("--scale", help="whose tokenizer; default: paper with a CUDA device, else quick")
    parser.add_argument("--data-dir", help="raw text; default: CROPE_DATA_DIR, else data/raw")
    options = parser.parse_args()
    corpora = options.corpora or list(paper.DATASET_LABELS)
    overrides = [f"scale={options.scale or default_scale()[0]}"]
    overrides += [f"data_dir={options.data_dir}"] if options.data_dir else []
    config, *_ = [load_run([f"data={corpus}", *overrides]).config for corpus in corpora]
    return int(bool(prepare(corpora, config.tokenizer, data_dir=Path(config.data_dir))))


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
