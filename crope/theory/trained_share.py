"""How complex-linear trained Q, K and V maps are (Sec. 3.2), against random maps that are granted the same freedom.

The maps are read from the normalised residual: LayerNorm gains are folded into them. Queries and keys have their pairs
fixed by rotary; a structure J of the residual stream may be chosen freely, and value channels have no pairs of their
own, because the output projection can undo any turn of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crope import paper
from crope.config import NUMERICS_VERSION, ModelConfig, cell_key
from crope.errors import DataError
from crope.model.gpt import GPT
from crope.record import Record
from crope.report import SCALES
from crope.seeding import stream
from crope.study import expected_cells
from crope.theory.complex_structure import (
    Array,
    best_output_structure,
    best_structure,
    complex_part,
    joint_share,
    standard_structure,
)
from crope.verify import read_runs

Layers = list[tuple[Array, Array, Array]]  # Q, K and V of each layer, (D, D) each

MEASURES = {
    "given": "interleaved channels are pairs: Q, K and V of all layers",
    "layer": "best J of each layer, shared by its Q, K and V",
    "queries_keys": "best J of each layer, shared by its Q and K",
    "values": "V under the J that is best for Q and K, value pairs free",
    "model": "best J, shared by Q, K and V of all layers",
}


def shares(layers: Layers, *, n_heads: int) -> dict[str, float]:
    """The complex share (energy over energy) under each of MEASURES; `layer` to `values` are joint over layers."""
    every = [w for layer in layers for w in layer]
    return {
        "given": joint_share(every, standard_structure(every[0].shape[1])),
        "layer": _share_of_layers(layers),
        "queries_keys": _share_of_layers([layer[:2] for layer in layers]),
        "values": _share_of_values(layers, n_heads),
        "model": joint_share(every, best_structure(every)),
    }


def turned(layers: Layers, *, n_heads: int, generator: np.random.Generator) -> Layers:
    """The same maps with the channels inside each head turned at random, Q, K and V each for itself.

    What each head reads and with which singular values is kept, so W^T W is; only the relation to the rotary pairs is
    lost. Training lowers the rank of the maps, and with it the best share of *any* pairing: this, not a Gaussian
    matrix, is what a trained map has to be compared with.
    """

    def turn(w_ED: Array) -> Array:
        heads = np.split(w_ED, n_heads)
        return np.concatenate([random_rotation(len(head), generator) @ head for head in heads])

    return [(turn(q), turn(k), turn(v)) for q, k, v in layers]


def random_rotation(width: int, generator: np.random.Generator) -> Array:
    """Uniform (Haar) on the orthogonal group: Q of a Gaussian matrix, its signs fixed by R."""
    q, r = np.linalg.qr(generator.standard_normal((width, width)))
    return q * np.sign(np.diag(r))


def load_layers(record: Record, *, trained: bool) -> Layers:
    """Q, K and V with the LayerNorm's gains folded in: of weights.pt, or as the run's seed initialises them.

    The gains of a pair differ after training, so CRoPE's maps are complex-linear from the scaled, not quite from the
    normalised residual. Centring, which takes one direction out of the stream, is left out of account.
    Raises DataError where weights.pt does not belong to the run's configuration.
    """
    config = record.config
    model = GPT(
        ModelConfig(**config["model"]),
        vocab_size=config["tokenizer"]["vocab_size"],
        max_len=config["train"]["seq_len"],
        seed=config["seed"],
    )
    if trained:
        path = record.path / "weights.pt"
        try:
            model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except RuntimeError as error:
            raise DataError(f"{path}: not the weights of its config.yaml; remove the run and make it again") from error
    return [_read_maps(block) for block in model.blocks]


def find_trained(folders: Sequence[Path]) -> list[Record]:
    """Complete, not stale runs of Table 1 that still have weights.pt, of the largest scale that has any; by run id."""
    found = [
        record
        for folder in folders
        for record in read_runs(folder)[0]
        if (record.summary["status"], record.summary["numerics_version"]) == ("complete", NUMERICS_VERSION)
        and (record.path / "weights.pt").exists()
    ]
    for scale in (name for name in SCALES if any(record.summary["scale"] == name for record in found)):
        cells = expected_cells(scale, datasets=[*paper.DATASET_LABELS, "tiny"])
        keys = {cell.key for cell in cells if cell.table == "table1"}
        chosen = [record for record in found if cell_key(record.config) in keys]
        if chosen:
            return sorted(chosen, key=lambda record: record.path.name)
    return []


def measure_run(record: Record, *, draws: int) -> dict[str, Any]:
    """Shares before and after training, and their mean and range over `draws` random turns of the trained maps."""
    n_heads = record.config["model"]["n_heads"]
    trained = load_layers(record, trained=True)
    generator = stream(0, f"theory/turned/{record.path.name}")
    null = [shares(turned(trained, n_heads=n_heads, generator=generator), n_heads=n_heads) for _ in range(draws)]
    identity = {name: record.summary[name] for name in ("run_id", "model", "dataset", "scale", "seed")}
    return identity | {
        "before": shares(load_layers(record, trained=False), n_heads=n_heads),
        "after": shares(trained, n_heads=n_heads),
        "turned": _summarise(null),
    }


def measure_gaussian(*, n_layers: int, n_heads: int, d_model: int, draws: int) -> dict[str, dict[str, float]]:
    """Mean and range of the shares of Gaussian maps of the same size: what initial weights are a draw of."""
    generator, shape = stream(0, "theory/gaussian"), (n_layers, 3, d_model, d_model)
    return _summarise(
        [shares([tuple(layer) for layer in generator.standard_normal(shape)], n_heads=n_heads) for _ in range(draws)]
    )


def _share_of_layers(layers: Sequence[Sequence[Array]]) -> float:
    kept = [joint_share(layer, best_structure(layer)) * _energy(layer) for layer in layers]
    return sum(kept) / sum(_energy(layer) for layer in layers)


def _share_of_values(layers: Layers, n_heads: int) -> float:
    kept = 0.0
    for query, key, value in layers:
        j_DD = best_structure([query, key])
        for head in np.split(value, n_heads):
            kept += _energy([complex_part(head, j_DD, best_output_structure(head, j_DD))])
    return kept / _energy([layer[2] for layer in layers])


def _energy(weights: Sequence[Array]) -> float:
    return float(sum(np.sum(w**2) for w in weights))


def _read_maps(block: Any) -> tuple[Array, Array, Array]:
    gains_D = block.attn_norm.weight.detach().double().numpy()
    query, key, value = (
        projection.weight.detach().double().numpy() * gains_D
        for projection in (block.attn.q_proj, block.attn.k_proj, block.attn.v_proj)
    )
    return query, key, value


def _summarise(draws: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    columns = {name: np.array([draw[name] for draw in draws]) for name in MEASURES}
    return {
        name: {"mean": float(x.mean()), "std": float(x.std(ddof=1)), "low": float(x.min()), "high": float(x.max())}
        for name, x in columns.items()
    }
