"""Data ahead of training: the token files of corpora."""

from collections.abc import Sequence
from pathlib import Path

from crope.config import TokenizerConfig
from crope.data.corpora import SPLITS
from crope.data.tokens import load_tokens
from crope.errors import UserError, log_line


def make_tokens(
    corpora: Sequence[str], tokenizer: TokenizerConfig, *, data_dir: Path
) -> dict[str, UserError]:
    """Makes the token files of each corpus, prints a line each, and returns the errors by corpus.

    Raises OSError: no other corpus could be written either.
    """
    failed: dict[str, UserError] = {}
    for corpus in corpora:
        try:
            tokens = load_tokens(corpus, tokenizer, data_dir=data_dir)
        except UserError as error:  # a corpus that cannot be had costs no other
            failed[corpus] = error
            log_line(f"error: {error}")
        else:
            counts = ", ".join(
                f"{split} {tokens.meta['splits'][split]['tokens']:,} tokens" for split in SPLITS
            )
            print(f"{corpus}: {counts}\n  data/tokens/{tokens.folder.name}", flush=True)
    return failed
