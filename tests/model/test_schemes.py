"""Every scheme of conf/model: against the written-out decoder, causal, trainable; which combinations exist."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from crope.compose import load_run
from crope.config import ROOT, ModelConfig, keys
from crope.errors import ConfigError
from crope.loss import cross_entropy
from crope.model.attention import ATTENTIONS
from crope.model.positions import Positions, build_positions, find_scheme
from crope.model.projections import PROJECTIONS
from crope.study import study_axes
from tests.model.conftest import LENGTH, MODELS, ORACLES, VOCAB, WIDTH, choices, random_tokens
from tests.model.conftest import small_model as build

NAMES = list(MODELS)
BUILT_IN = tuple(ORACLES)
SCORE_BIASES = ("relative_bias", "alibi")
POSITIONS, PROJECTION_NAMES, ATTENTION_NAMES = (
    keys()[f"model.{name}"].metadata["one_of"] for name in ("position", "projection", "attention")
)
ALL = list(itertools.product(POSITIONS, PROJECTION_NAMES, ATTENTION_NAMES))


def adds_to_scores(position: str) -> bool:
    """From the definitions; of a scheme that this repository does not bring, from what it returns."""
    if position in BUILT_IN:
        return position in SCORE_BIASES
    return build_positions(ModelConfig(position, "real", d_model=WIDTH), max_len=LENGTH).bias(LENGTH) is not None


def is_valid(position: str, projection: str, attention: str) -> bool:
    """From the definitions: linear attention has no scores to add to, and only a rotation can be misaligned with."""
    if attention == "linear" and adds_to_scores(position):
        return False
    return projection != "complex_misaligned" or position == "rotary"


def chosen(name: str) -> tuple[str, str, str]:
    made = choices(name)
    return made["position"], made["projection"], made["attention"]


@pytest.mark.parametrize("position", BUILT_IN)
def test_against_written_out_decoder(position: str, compare_with_loops) -> None:
    compare_with_loops(position, **vars(ORACLES[position]))


def test_every_scheme_is_compared_with_the_written_out_decoder() -> None:
    """Another than those above in a test file of its own, as docs/tutorial.md shows."""
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "model").glob("test_*.py")]
    bare = [name for name in POSITIONS if not any(f'compare_with_loops("{name}"' in text for text in tests)]
    assert set(bare) <= set(BUILT_IN), "no test calls compare_with_loops with it (docs/tutorial.md, section 4)"


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


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_is_the_same_function(name: str, model_config, randomise, tmp_path) -> None:
    config, tokens_BT = model_config(name, d_model=WIDTH), random_tokens()
    trained, fresh = randomise(build(config)), build(config).double()
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(fresh(tokens_BT), trained(tokens_BT))


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
    if attention == "linear" and adds_to_scores(position):
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
        ("model=rope model.position=alibbi", "model.position=alibbi (command line): must be one of alibi, "),
    ],
)
def test_sizes_that_a_scheme_cannot_have(overrides: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(overrides.split())
    assert words in str(caught.value)


@pytest.mark.parametrize(("classes", "words"), [(0, "defines none"), (2, "defines 2: First, Second")])
def test_a_file_defines_one_scheme(classes: int, words: str, monkeypatch) -> None:
    module = ModuleType("crope.model.positions.mine")
    module.taken = Positions  # type: ignore[attr-defined]  # imported there, not defined
    for name in ("First", "Second")[:classes]:
        setattr(module, name, type(name, (Positions,), {"__module__": module.__name__}))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ConfigError) as caught:
        find_scheme("mine")
    assert str(caught.value) == f"crope/model/positions/mine.py: must define one class of Positions, {words}"


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
    wanted = {(position, projection, "softmax") for position in BUILT_IN for projection in ("real", "complex")}
    assert wanted <= set(in_schemes)
    assert set(in_controls) == {("rotary", projection, "softmax") for projection in PROJECTION_NAMES}
    assert {position for position, _, _ in in_length} >= set(BUILT_IN)
    assert study_axes("scaling")["model.d_model"] == ["64", "128", "256", "512"]
    assert all(next(iter(study_axes(study))) == "seed" for study in ("schemes", "controls", "length", "scaling"))
