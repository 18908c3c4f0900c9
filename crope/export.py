"""Export of a finished run's weights as a safetensors file: as trained, or with dense Q, K and V.

The dense form writes every structured projection as its full matrix: a plain model with the same
positions (`projection=real`) loads it and has equal outputs. Tensor names are those of
crope.model.gpt; embedding rows past the vocabulary are padding.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from crope.adapt import merge
from crope.compose import load_config
from crope.errors import UserError
from crope.model.gpt import GPT, Block
from crope.record import Record, write_bytes
from crope.run import load_trained


def export(record: Record, out: Path, *, dense: bool, converted: bool = False) -> None:
    """Writes the weights of a run to `out`; `converted`: those of the conversion
    (crope/convert.py).

    The metadata hold the model's configuration (JSON under "model"), vocabulary size, context
    length and run id. Raises UserError if the weights or the package safetensors are missing, if
    `out` has another suffix or cannot be written, or, with `dense`, if the projection's width
    differs from d_model, which no plain model has.
    """
    config, path = load_config(record.config), record.path
    if converted:
        config.model = replace(config.model, projection="complex", tied_head=False)
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: not a safetensors file; choose a name that ends in .safetensors")
    model = load_trained(record, converted=converted)
    model_config = config.model
    if dense:
        if model_config.kv_width != model_config.d_model:
            raise UserError(
                f"{path}: {model_config.projection} Q, K and V have another width; export without --dense"
            )
        merge(model)
        model_config = replace(model_config, projection="real")
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise UserError(
            f"{out}: the package safetensors is missing; install it: pip install safetensors"
        ) from error
    sizes = {"vocab_size": str(config.tokenizer.vocab_size), "max_len": str(config.train.seq_len)}
    metadata = {"model": json.dumps(asdict(model_config)), "run_id": path.name, **sizes}
    data = save({name: value.contiguous() for name, value in model.state_dict().items()}, metadata)
    try:
        write_bytes(out, data)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror}); choose another name or folder"
        ) from error


def blocks_of(model: GPT) -> Iterable[Block]:
    return cast(Iterable[Block], model.blocks)
