"""Export: read back with `transformers`, without code of this project; the outputs are the run's."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from crope.errors import UserError
from crope.interop.export import architecture_of, as_transformers, export_transformers
from crope.interop.generate import generate
from tests.conftest import TOY_VOCAB, contents, make_toy_tokens
from tests.model.oracles import (
    CHOICES,
    assert_close,
    build,
    model_config,
    random_tokens,
    randomise,
    slow_losses,
)
from tests.toy_runs import toy_corpus, train_toy

LENGTH = 16  # of the context
REFUSED = {
    "alibi": "position=alibi",
    "relative_bias": "position=relative_bias",
    "rope_linear": "attention=linear",
    "crope_linear": "attention=linear",
    "complex_wide": "projection=complex_wide",
    "halved": "projection=halved",
}


@pytest.fixture(scope="module")
def crope(tmp_path_factory):
    """A trained run whose validation is the whole split."""
    folder = tmp_path_factory.mktemp("runs")
    with toy_corpus(folder):
        yield train_toy(folder, "model=crope", "eval.full_tokens=0", "train.lr=0.01")


@pytest.fixture(scope="module")
def opened(crope, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "new" / "folder"
    export_transformers(crope, out)
    export_transformers(crope, out)  # over the first
    return out


# Weights


@pytest.mark.parametrize("name", [name for name in CHOICES if name not in REFUSED])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qkv_bias": True, "tied_head": False, "embed_scale": "one", "rope_base": 500.0},
    ],
)
def test_transformers_computes_the_logits_of_every_model(name, changes):
    """Random weights of order 1, so that attention, positions and biases matter."""
    config = model_config(name, d_model=16, **changes)
    ours = randomise(build(config, vocab=TOY_VOCAB, max_len=LENGTH)).float()
    exported = as_transformers(ours)
    tokens_BT = random_tokens(length=LENGTH, vocab=TOY_VOCAB)
    with torch.no_grad():
        expected = ours.logits(ours(tokens_BT))
        assert_close(exported(tokens_BT).logits, expected, atol=1e-5)
    assert expected.std() > 0.1


def test_a_plain_loop_gives_the_validation_loss_of_the_record(crope, opened):
    model = AutoModelForCausalLM.from_pretrained(opened).eval()
    model.logits = lambda outputs: outputs.logits
    nats = slow_losses(model, make_toy_tokens(opened).validation, LENGTH).mean()
    assert nats == pytest.approx(crope.summary["val_full"]["final_nats"], rel=1e-6)


# The folder


def test_its_end_and_padding_token_changes_no_text(opened):
    """lm-eval needs both; a token more than the model has would be out of its range."""
    tokenizer = AutoTokenizer.from_pretrained(opened)
    text = "a the\n other\n"
    assert tokenizer.eos_token_id == tokenizer.pad_token_id < TOY_VOCAB
    plain = Tokenizer.from_file(str(opened / "tokenizer.json"))
    assert tokenizer(text)["input_ids"] == plain.encode(text).ids
    assert tokenizer.decode(plain.encode(text).ids, skip_special_tokens=True) == text
    assert tokenizer("Ĕ")["input_ids"] == plain.encode("Ĕ").ids


def test_the_pipeline_continues_as_generate_does_by_half_a_context(crope, opened):
    written = pipeline("text-generation", model=str(opened))("the other", do_sample=False)
    expected = generate(crope, "the other", tokens=8, temperature=0, top_k=0, seed=0)
    assert written[0]["generated_text"] == expected


def test_the_card_states_the_run_and_its_losses(crope, opened):
    card = (opened / "README.md").read_text(encoding="utf-8")
    for fact in (
        "position rotary, projection complex",
        "12 steps, fp32",
        f"| validation loss | {crope.summary['val_full']['final_nats']:.4f} nats",
        f"| commit | {crope.provenance['commit']}",
    ):
        assert fact in card


def test_an_export_that_is_cut_off_is_no_model_of_two_runs(crope, tmp_path):
    """A full disk leaves the earlier one; a kill between two renames none, until it is repeated."""
    out, other = tmp_path / "out", train_toy(tmp_path, "model=rope")
    export_transformers(crope, out)
    first = contents(out, "[!.]*")
    full = mock.patch("crope.interop.export.write_text", side_effect=OSError)
    killed = mock.patch("pathlib.Path.replace", side_effect=OSError)
    with full, pytest.raises(OSError):
        export_transformers(other, out)
    assert contents(out, "[!.]*") == first
    with killed, pytest.raises(OSError):
        export_transformers(other, out)
    assert not (out / "config.json").exists()
    export_transformers(other, out)
    assert other.run_id in (out / "config.json").read_text()
    assert contents(out).keys() == first.keys()


# Refusals


@pytest.mark.parametrize("name", REFUSED)
def test_what_neither_architecture_has_is_refused_by_name(name):
    with pytest.raises(UserError, match=REFUSED[name]):
        architecture_of(model_config(name))


def test_a_refused_run_writes_nothing(crope, tmp_path):
    alibi = crope.config | {"model": crope.config["model"] | {"position": "alibi"}}
    with pytest.raises(UserError, match="position=alibi"):
        export_transformers(replace(crope, config=alibi), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_export_is_left_alone(crope, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no earlier export"):
        export_transformers(crope, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
