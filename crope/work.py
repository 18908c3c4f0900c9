"""How much work a run is: tokens, forward passes of validation, floating-point operations. Imports no torch."""

from __future__ import annotations

from crope.compose import Run
from crope.model.counting import train_flops_per_token

FORWARD_SHARE = 1 / 3  # of a training step, by operation count (forward 1, backward 2)

# GPT-2 tokens of the validation splits (data/README.md), for scales that measure the whole split.
WHOLE_SPLIT_TOKENS = {"pg19": 4_592_150, "wikitext2": 258_659, "ptb": 92_830}


def run_tokens(run: Run) -> int:
    """Training tokens of one run."""
    train = run.config.train
    return train.max_steps * train.batch_size * train.seq_len


def run_forwards(run: Run) -> float:
    """Forward passes over B x L tokens that validation adds to the training steps."""
    train, evaluation = run.config.train, run.config.eval
    sampled = train.max_steps / evaluation.every * evaluation.batches
    full_tokens = evaluation.full_tokens or WHOLE_SPLIT_TOKENS.get(run.dataset, 0)
    fulls = train.max_steps // evaluation.full_every + 1  # and once the train split
    return sampled + fulls * full_tokens / (train.batch_size * train.seq_len)


def run_flops(run: Run) -> float:
    """Floating-point operations of one run: training, and validation as a third of that a token."""
    config, train = run.config, run.config.train
    per_token = train_flops_per_token(
        config.model, vocab_size=config.tokenizer.vocab_size, seq_len=config.train.seq_len
    )
    return per_token * train.batch_size * train.seq_len * (train.max_steps + FORWARD_SHARE * run_forwards(run))
