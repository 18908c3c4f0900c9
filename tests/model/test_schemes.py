"""Every scheme of conf/model: against the written-out decoder, causal, trainable; which combinations exist."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from crope.compose import load_run
from crope.config import ROOT, ModelConfig, keys
from crope.errors import ConfigError
from crope.loss import cross_entropy
from crope.model.attention import ATTENTIONS
from crope.model.gpt import GPT
from crope.model.projections import PROJECTIONS
from crope.study import study_axes

NAMES = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))
VOCAB, LENGTH, WIDTH = 70, 12, 48  # heads of 12 channels; of 6 where halved, of 20 where wide
POSITIONS, PROJECTION_NAMES, ATTENTION_NAMES = (
    keys()[f"model.{name}"].metadata["one_of"] for name in ("position", "projection", "attention")
)
ALL = list(itertools.product(POSITIONS, PROJECTION_NAMES, ATTENTION_NAMES))


def random_tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(2))


def build(config: ModelConfig, max_len: int = LENGTH) -> GPT:
    return GPT(config, vocab_size=VOCAB, max_len=max_len, seed=0)


def is_valid(position: str, projection: str, attention: str) -> bool:
    """From the definitions: linear attention has no scores to add to, and only a rotation can be misaligned with."""
    if attention == "linear" and position in ("relative_bias", "alibi"):
        return False
    return projection != "complex_misaligned" or position == "rotary"


def chosen(name: str) -> tuple[str, str, str]:
    file = OmegaConf.load(ROOT / "conf" / "model" / f"{name}.yaml")
    return file.position, file.projection, file.attention


@pytest.mark.parametrize("name", NAMES)
def test_against_written_out_decoder(name: str, model_config, randomise, slow_decoder) -> None:
    config = model_config(name, d_model=WIDTH, qkv_bias=True)
    decoder, tokens_BT = randomise(build(config)), random_tokens()
    found = decoder(tokens_BT).detach().numpy()
    for tokens_T, hidden_TD in zip(tokens_BT.numpy(), found, strict=True):
        np.testing.assert_allclose(hidden_TD, slow_decoder(decoder, tokens_T, config), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [0, 7, LENGTH - 1])
def test_a_token_changes_no_output_before_it_but_all_from_it(name: str, at: int, model_config, randomise) -> None:
    decoder, tokens_BT = randomise(build(model_config(name, d_model=WIDTH))), random_tokens(batch=1)
    changed_BT = tokens_BT.clone()
    changed_BT[0, at] = (tokens_BT[0, at] + 1) % VOCAB
    with torch.no_grad():
        moved_T = (decoder(tokens_BT) - decoder(changed_BT)).abs().amax(dim=(0, 2))
    assert (moved_T[:at] < 1e-12).all()
    assert (moved_T[at:] > 1e-6).all()


@pytest.mark.parametrize("name", NAMES)
def test_order_matters_but_where_nothing_tells_it(name: str, model_config, randomise) -> None:
    """Without positions the last token of a layer sees a set; the causal mask orders from the second layer on."""
    decoder = randomise(build(model_config(name, d_model=WIDTH, n_layers=1)))
    with torch.no_grad():
        first, swapped = (decoder(torch.tensor([tokens]))[0, -1] for tokens in ([3, 9, 27, 4], [9, 3, 27, 4]))
    assert torch.allclose(first, swapped, rtol=0, atol=1e-12) == (chosen(name)[0] == "none")


@pytest.mark.parametrize("name", NAMES)
def test_three_updates_reach_every_parameter_and_lower_the_loss(name: str, model_config) -> None:
    decoder, tokens_BT = build(model_config(name, d_model=WIDTH, qkv_bias=True)), random_tokens(batch=4)
    targets_BT = tokens_BT.roll(-1, dims=1)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3)
    losses, touched = [], set()
    for _ in range(3):
        optimizer.zero_grad()
        loss = cross_entropy(decoder, tokens_BT, targets_BT)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        touched |= {key for key, value in decoder.named_parameters() if value.grad is not None and value.grad.any()}
    assert np.isfinite(losses).all()
    assert losses[0] > losses[1] > losses[2]
    assert touched == {key for key, _ in decoder.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_the_numeric_one(name: str, model_config, randomise) -> None:
    """In each tensor along a random direction: (loss(x + h d) - loss(x - h d)) / 2h in float64, off by O(h^2)."""
    decoder, tokens_BT, step = randomise(build(model_config(name, d_model=WIDTH))), random_tokens(), 1e-5
    targets_BT = tokens_BT.roll(-1, dims=1)
    cross_entropy(decoder, tokens_BT, targets_BT).backward()
    generator = torch.Generator().manual_seed(5)
    for key, parameter in decoder.named_parameters():
        if "ffn" in key or key.startswith("blocks.1"):
            continue  # the same in every scheme, and the same code as in the first block
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        assert parameter.grad is not None
        expected = (parameter.grad * direction).sum().item()
        with torch.no_grad():
            kept, ends = parameter.clone(), []
            for sign in (1, -1):
                parameter.copy_(kept + sign * step * direction)
                ends.append(cross_entropy(decoder, tokens_BT, targets_BT).item())
            parameter.copy_(kept)
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(expected, rel=1e-5, abs=1e-8), key


@pytest.mark.parametrize("choice", [choice for choice in ALL if is_valid(*choice)], ids="-".join)
def test_valid_combinations_compose_build_and_run(choice: tuple[str, str, str]) -> None:
    names = ("position", "projection", "attention")
    overrides = [f"model.{key}={value}" for key, value in zip(names, choice, strict=True)]
    config = load_run([*overrides, f"model.d_model={WIDTH}", "train.precision=fp32"]).config.model
    decoder = build(replace(config, n_layers=1))
    tokens_BT = random_tokens()
    with torch.autocast("cpu", torch.bfloat16):  # as in training at bf16
        loss = cross_entropy(decoder, tokens_BT, tokens_BT.roll(-1, dims=1))
    loss.backward()
    assert loss.item() == pytest.approx(cross_entropy(decoder, tokens_BT, tokens_BT.roll(-1, dims=1)).item(), rel=2e-3)
    assert all(parameter.grad is not None for parameter in decoder.parameters())


@pytest.mark.parametrize("choice", [choice for choice in ALL if not is_valid(*choice)], ids="-".join)
def test_invalid_combinations_are_refused_with_the_reason(choice: tuple[str, str, str]) -> None:
    position, projection, attention = choice
    overrides = [f"model.position={position}", f"model.projection={projection}", f"model.attention={attention}"]
    with pytest.raises(ConfigError) as caught:
        load_run(overrides)
    words = str(caught.value)
    if attention == "linear" and position in ("relative_bias", "alibi"):
        assert f"model.position={position} (command line): is added to the matrix of scores" in words
    else:
        assert "is misaligned with the rotation of model.position=rotary" in words
    assert "\n" not in words


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("model=halved model.d_model=24", "gives heads of odd width 3 (model.n_heads=4, model.projection=halved)"),
        ("model=lowrank model.d_model=2 model.n_heads=1", "leaves model.projection=lowrank no rank"),
        ("model=complex_misaligned model.d_model=8", "needs two pairs of channels a head to misalign"),
        ("model=rope model.position=alibbi", "must be one of sinusoidal, rotary, learned, relative_bias, alibi, none"),
    ],
)
def test_sizes_that_a_scheme_cannot_have(overrides: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(overrides.split())
    assert words in str(caught.value)


def test_registries_are_what_the_schema_allows() -> None:
    assert set(PROJECTIONS) == set(PROJECTION_NAMES)
    assert set(ATTENTIONS) == set(ATTENTION_NAMES)


def test_no_two_files_are_the_same_model() -> None:
    choices = [chosen(name) for name in NAMES]
    assert len(set(choices)) == len(choices)
    assert all(is_valid(*choice) for choice in choices)
    assert {choice[0] for choice in choices} == set(POSITIONS)
    assert {choice[1] for choice in choices} == set(PROJECTION_NAMES)


def test_studies_cover_what_they_say() -> None:
    in_schemes, in_controls, in_length = (
        [chosen(name) for name in study_axes(study)["model"]] for study in ("schemes", "controls", "length")
    )
    wanted = {(position, projection, "softmax") for position in POSITIONS for projection in ("real", "complex")}
    assert wanted <= set(in_schemes)
    assert set(in_controls) == {("rotary", projection, "softmax") for projection in PROJECTION_NAMES}
    assert {position for position, _, _ in in_length} == set(POSITIONS)
    assert study_axes("scaling")["model.d_model"] == ["64", "128", "256", "512"]
    assert all(next(iter(study_axes(study))) == "seed" for study in ("schemes", "controls", "length", "scaling"))
