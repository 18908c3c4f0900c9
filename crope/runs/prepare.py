"""Data ahead of training: the token files of corpora and the losses of n-gram models on them."""

from collections.abc import Sequence
from pathlib import Path

from crope.config import TokenizerConfig
from crope.data.corpora import SPLITS
from crope.data.ngrams import NGRAMS_FILE, ORDERS, load_ngrams
from crope.data.tokens import load_tokens
from crope.errors import StorageError, UserError, log_line


def prepare(
    corpora: Sequence[str], tokenizer: TokenizerConfig, *, data_dir: Path
) -> dict[str, UserError]:
    """Makes the token files and n-gram losses of each corpus and prints two lines per corpus;
    returns the error of those that failed.

    Raises StorageError: no other corpus could be written either.
    """
    failed: dict[str, UserError] = {}
    for corpus in corpora:
        try:
            tokens = load_tokens(corpus, tokenizer, data_dir=data_dir)
            counts = ", ".join(
                f"{split} {tokens.meta['splits'][split]['tokens']:,} tokens" for split in SPLITS
            )
            print(f"{corpus}: {counts}; data/tokens/{tokens.folder.name}", flush=True)
            losses = load_ngrams(tokens)["loss_nats"]
            values = " / ".join(f"{losses[name]:.4f}" for name in ORDERS)
            print(f"{corpus}: {' / '.join(ORDERS)} loss {values} nats per token", flush=True)
        except StorageError:
            raise
        except UserError as error:  # a corpus that cannot be had costs no other
            failed[corpus] = error
            log_line(f"error: {error}")
        except OSError as error:  # a run needs the tokens alone
            log_line(f"warning: {corpus}: cannot write {NGRAMS_FILE} ({error.strerror or error})")
    return failed
