"""Complex shares of run directories: hidden structures are found, gains are folded in, the null keeps what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import ortho_group

from crope.checkpoint import save_weights
from crope.compose import load_run
from crope.config import NUMERICS_VERSION, ModelConfig
from crope.errors import DataError
from crope.model.gpt import GPT
from crope.record import Record, read_record, read_records
from crope.theory import trained_share
from crope.theory.complex_structure import complex_part
from crope.theory.trained_share import (
    MEASURES,
    find_trained,
    load_layers,
    measure_gaussian,
    measure_run,
    random_rotation,
    shares,
    turned,
)

WIDTH, HEADS = 16, 2


def gaussian_layers(n_layers: int = 2, seed: int = 0) -> list[tuple[np.ndarray, ...]]:
    return [tuple(layer) for layer in np.random.default_rng(seed).standard_normal((n_layers, 3, WIDTH, WIDTH))]


def hidden_complex_layers() -> list[tuple[np.ndarray, ...]]:
    """Complex maps behind one random turn of the residual stream; value channels turned inside their heads too."""
    basis = ortho_group.rvs(WIDTH, random_state=3)
    layers = []
    for number, layer in enumerate(gaussian_layers()):
        query, key, value = (complex_part(w) @ basis.T for w in layer)
        heads = np.split(value, HEADS)
        turns = [ortho_group.rvs(len(head), random_state=10 * number + n) for n, head in enumerate(heads)]
        layers.append((query, key, np.concatenate([turn @ head for turn, head in zip(turns, heads, strict=True)])))
    return layers


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Record]:
    """A record with the weights of a small GPT whose LayerNorm gains are not 1."""

    def write(projection: str) -> Record:
        model = {"position": "rotary", "projection": projection, "n_layers": 2, "n_heads": HEADS, "d_model": WIDTH}
        config = {"model": model, "tokenizer": {"vocab_size": 300}, "train": {"seq_len": 8}, "seed": 5}
        gpt = GPT(ModelConfig(**model), vocab_size=300, max_len=8, seed=99)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for block in gpt.blocks:
                block.attn_norm.weight.copy_(0.5 + torch.rand(WIDTH, generator=generator))
        save_weights(tmp_path / "run" / "weights.pt", gpt)
        names = {"run_id": "run", "model": projection, "dataset": "ptb", "scale": "quick", "seed": 5}
        return Record(tmp_path / "run", config, names, {"gpt": gpt})

    return write


def test_hidden_structures_are_found() -> None:
    """In given pairs a perfectly complex model shows one half; Q and K need the stream's J, V its own pairs as well."""
    found = shares(hidden_complex_layers(), n_heads=HEADS)
    assert set(found) == set(MEASURES)
    assert abs(found["given"] - 0.5) < 0.1
    assert found["queries_keys"] == pytest.approx(1, abs=1e-9)
    assert found["values"] == pytest.approx(1, abs=1e-9)
    assert found["layer"] < 0.99  # here V's channels are taken as paired, which they are not
    assert found["model"] <= found["layer"]


def test_layers_with_structures_of_their_own_share_none() -> None:
    """`model` asks for one J; two layers complex in different bases have one each, but none together."""
    first, second = (
        tuple(complex_part(w) @ ortho_group.rvs(WIDTH, random_state=seed).T for w in layer)
        for seed, layer in enumerate(gaussian_layers())
    )
    found = shares([first, second], n_heads=HEADS)
    assert found["layer"] == pytest.approx(1, abs=1e-9)
    assert found["model"] < 0.9


def test_turned_maps_keep_what_each_head_reads() -> None:
    layers = hidden_complex_layers()
    null = turned(layers, n_heads=HEADS, generator=np.random.default_rng(0))
    for layer, other in zip(layers, null, strict=True):
        for w, v in zip(layer, other, strict=True):
            for head, head_turned in zip(np.split(w, HEADS), np.split(v, HEADS), strict=True):
                np.testing.assert_allclose(head_turned.T @ head_turned, head.T @ head, rtol=0, atol=1e-10)
    found = shares(null, n_heads=HEADS)
    assert found["queries_keys"] < 0.95 and abs(found["given"] - 0.5) < 0.15  # the structure is gone


def test_random_rotations_are_orthogonal_and_uniform() -> None:
    """Haar: E q_ij^2 = 1/n and E trace^2 = 1; QR without the signs of R gives a biased diagonal."""
    generator = np.random.default_rng(0)
    draws = np.array([random_rotation(4, generator) for _ in range(4000)])
    np.testing.assert_allclose(draws[0] @ draws[0].T, np.eye(4), rtol=0, atol=1e-12)
    np.testing.assert_allclose((draws**2).mean(0), 0.25, rtol=0, atol=0.02)
    traces = np.trace(draws, axis1=1, axis2=2)
    assert abs(traces.mean()) < 0.07 and traces.var() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("projection", ["real", "complex"])
def test_gains_are_folded_into_the_trained_maps(projection: str, write_model) -> None:
    """A map read from the normalised residual: W diag(gain), against the layer's own output without its bias."""
    record = write_model(projection)
    gpt = record.provenance["gpt"]
    x_D = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    for block, layer in zip(gpt.blocks, load_layers(record, trained=True), strict=True):
        normed = x_D * block.attn_norm.weight
        for projected, w in zip((block.attn.q_proj, block.attn.k_proj, block.attn.v_proj), layer, strict=True):
            np.testing.assert_allclose(w @ x_D.double().numpy(), projected(normed).detach().numpy(), atol=1e-6)


def test_cropes_maps_are_complex_before_and_nearly_so_after_training(write_model) -> None:
    """Gains of 1 leave Eq. 30 as it is; gains that differ inside a pair bend it a little."""
    found = measure_run(write_model("complex"), draws=3)
    assert found["before"]["given"] == pytest.approx(1, abs=1e-12)
    assert 0.9 < found["after"]["given"] < 1 - 1e-4
    assert found["turned"]["given"]["high"] < 0.8
    assert (found["run_id"], found["dataset"], found["seed"]) == ("run", "ptb", 5)


def test_initial_maps_are_those_of_the_runs_seed_and_a_draw_of_gaussian_ones(write_model) -> None:
    record = write_model("real")
    expected = GPT(ModelConfig(**record.config["model"]), vocab_size=300, max_len=8, seed=5)
    initial = load_layers(record, trained=False)
    np.testing.assert_array_equal(initial[1][2], expected.blocks[1].attn.v_proj.weight.detach().double().numpy())
    gaussian = measure_gaussian(n_layers=2, n_heads=HEADS, d_model=WIDTH, draws=60)
    for name, share in shares(initial, n_heads=HEADS).items():
        assert abs(share - gaussian[name]["mean"]) < 5 * gaussian[name]["std"]
    assert gaussian["given"]["mean"] == pytest.approx(0.5, abs=0.01)
    assert gaussian["given"]["low"] < gaussian["given"]["mean"] < gaussian["given"]["high"]


def test_weights_of_another_model_are_one_line(write_model) -> None:
    record = write_model("real")
    record.config["model"]["d_model"] = 2 * WIDTH
    with pytest.raises(DataError, match=r"not the weights of its config\.yaml"):
        load_layers(record, trained=True)


def write_record(folder: Path, overrides: list[str], *, weights: bool = True, **summary: Any) -> Record:
    """A finished run of a real cell, with a file in the place of its weights."""
    run = load_run(["train.precision=fp32", *overrides])
    path = folder / run.run_id
    path.mkdir(parents=True)
    whole = {
        "status": "complete",
        "numerics_version": NUMERICS_VERSION,
        "run_id": run.run_id,
        "scale": run.scale,
    } | summary
    (path / "config.yaml").write_text(yaml.safe_dump(run.container))
    (path / "summary.json").write_text(json.dumps(whole))
    (path / "provenance.json").write_text("{}")
    if weights:
        (path / "weights.pt").write_bytes(b"")
    return read_record(path)


def test_runs_of_table_1_with_weights_are_found_at_the_largest_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These records hold no curves, which verification would miss.
    monkeypatch.setattr(trained_share, "read_runs", lambda folder: (read_records(folder), []))
    rope = write_record(tmp_path, ["model=rope", "data=ptb", "scale=quick"])
    crope = write_record(tmp_path, ["model=crope", "data=tiny", "scale=quick", "seed=3"])
    write_record(tmp_path, ["model=rope", "data=ptb", "scale=smoke"])  # a smaller scale
    write_record(tmp_path, ["model=rope", "data=pg19", "scale=quick", "ablation=b2_l512_d64"])  # Table 2
    write_record(tmp_path, ["model=rope", "data=ptb", "scale=quick", "train.lr=0.01"])  # no table's
    write_record(tmp_path, ["model=xpos", "data=ptb", "scale=quick"], weights=False)
    write_record(tmp_path, ["model=xpos", "data=pg19", "scale=quick"], status="failed")
    write_record(tmp_path, ["model=xpos", "data=wikitext2", "scale=quick"], numerics_version=NUMERICS_VERSION - 1)
    assert [record.path for record in find_trained([tmp_path])] == [crope.path, rope.path]
    assert find_trained([tmp_path / "nothing"]) == []
