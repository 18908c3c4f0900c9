"""`did you mean ...?`: the valid name that a misspelt one most likely stands for."""

from collections.abc import Sequence
from difflib import SequenceMatcher

# Words of other projects for keys of this one.
SYNONYMS = {
    "model.n_layers": "depth layers layer num_layers",
    "model.n_heads": "heads head num_heads",
    "model.d_model": "width dim hidden hidden_size n_embd embed_dim",
    "model.ffn_ratio": "mlp_ratio",
    "train.max_steps": "steps iterations iters max_iters num_steps epochs",
    "train.batch_size": "bs batch micro_batch_size",
    "train.seq_len": "length context context_length block_size max_len",
    "train.lr": "learning_rate rate",
    "train.lr_gamma": "gamma decay",
    "train.warmup_steps": "warmup",
    "train.weight_decay": "wd l2",
    "train.precision": "dtype amp bf16 fp16",
    "tokenizer.vocab_size": "vocab",
    "runtime.device": "gpu cuda",
    "runtime.jobs": "workers n_jobs num_workers",
    "results_dir": "out output out_dir output_dir save_dir",
    "data": "dataset corpus",
    "tracker": "wandb logger",
}


def nearest(name: str, valid: Sequence[str]) -> str:
    """' did you mean x?' with the nearest valid name, or where to look: no hint is better than a
    wrong one. `d_model` is near `model.d_model`.
    """
    word = _last_part(name).replace("-", "_")  # as flags of other programs are written
    for key in valid:
        if word in SYNONYMS.get(key, "").split():
            return f" did you mean {key}?"

    def likeness(key: str) -> tuple[float, float]:
        """Of the last parts, which decides, and of the whole names."""
        last, whole = SequenceMatcher(None, word, _last_part(key)), name.lower()
        swapped = sorted(word) == sorted(_last_part(key))
        return max(last.ratio(), swapped), SequenceMatcher(None, whole, key).ratio()

    near = max(valid, key=likeness, default="")
    # Less alike are names that share letters alone: train.optimizer and train.eps.
    if near and likeness(near)[0] > 0.75:
        return f" did you mean {near}?"
    return f" valid: {', '.join(valid)}" if len(valid) < 30 else " the keys are in crope/config.py"


def _last_part(name: str) -> str:
    return name.rsplit(".", 1)[-1].lower()
