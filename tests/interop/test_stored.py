"""Halved weights on disk and layouts: equal outputs or one error."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from crope.adapt import complexify, layout, load, merge, restore, save
from tests.conftest import contents
from tests.interop.toys import EXPERTS, GROUPED, Adapted, Attention, build, logits, same_logits

WEIGHTS = "model.complex.safetensors"


def complexified():
    model = build()
    complexify(model)
    return model


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("Qwen2ForCausalLM", GROUPED | {"tie_word_embeddings": True}),  # biases
        ("MixtralForCausalLM", EXPERTS),  # the names in its files are not those of its parameters
    ],
)
def test_a_family_is_saved_loaded_and_merged(family, sizes, tmp_path):
    model = build(family, **sizes)
    complexify(model)
    save(model, tmp_path)
    with pytest.raises(OSError, match="no file named"):  # instead of random Q, K and V
        type(model).from_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert type(loaded) is type(model) and layout(loaded) == layout(model)
    assert same_logits(loaded, model)
    merge(loaded)
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-5)


SHARDS = {"max_shard_size": "20KB"}


@pytest.mark.parametrize(("first", "second"), [({}, SHARDS), (SHARDS, {})])
def test_a_second_save_into_a_folder_leaves_nothing_of_the_first(first, second, tmp_path):
    model = complexified()
    save(model, tmp_path, **first)
    (tmp_path / "tokenizer.json").write_text("{}")
    nn.init.ones_(model.model.layers[1].self_attn.q_proj.a)
    save(model, tmp_path, **second)
    assert same_logits(load(tmp_path), model)
    sharded = not (tmp_path / WEIGHTS).exists()
    assert sharded == (second == SHARDS)
    assert sharded == bool(list(tmp_path.glob("model.complex-*")))
    assert (tmp_path / "tokenizer.json").exists()


def test_a_save_that_fails_leaves_the_first_as_it_was(tmp_path):
    model = complexified()
    save(model, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError):
        save(model, tmp_path, max_shard_size="twenty")
    assert contents(tmp_path) == before


def test_a_save_that_stops_midway_does_not_leave_a_mixture(tmp_path, monkeypatch):
    model = complexified()
    save(model, tmp_path, **SHARDS)
    moves, move = iter(range(3)), Path.replace

    def stop_at_the_third(file, target):
        if next(moves) == 2:
            raise OSError
        move(file, target)

    monkeypatch.setattr("pathlib.Path.replace", stop_at_the_third)
    with pytest.raises(OSError):
        save(model, tmp_path, **SHARDS)
    with pytest.raises(ValueError, match="missing"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-00001-of-00002.safetensors"])
def test_weights_that_from_pretrained_would_open_are_in_the_way(name, tmp_path):
    model = complexified()
    save(model, tmp_path)
    (tmp_path / name).write_bytes(b"newer")
    with pytest.raises(ValueError, match=f"{name}: from_pretrained would open"):
        load(tmp_path)
    with pytest.raises(ValueError, match=f"{name}: from_pretrained would open"):
        save(model, tmp_path)


def configuration(**values):
    def edit(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return edit


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (configuration(num_hidden_layers=3), "missing_keys.*layers.2"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"x" * 99), "damaged"),
        (configuration(architectures=["Own"]), "no attribute Own"),
        (configuration(head_dim=16), "the width of a head is 16"),
    ],
)
def test_load_names_what_is_wrong_with_the_files(damage, word, tmp_path):
    save(complexified(), tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=word):
        load(tmp_path)


def test_a_folder_of_earlier_versions_has_the_layout_in_a_file(tmp_path):
    model = complexified()
    model.save_pretrained(tmp_path, variant="complex")
    (tmp_path / "complex_layers.json").write_text(json.dumps(layout(model)))
    assert same_logits(load(tmp_path), model)


def test_load_and_save_need_a_complexified_model_of_transformers(tmp_path):
    model = build()
    with pytest.raises(ValueError, match="save_pretrained"):
        save(model, tmp_path)
    with pytest.raises(ValueError, match="missing"):
        load(tmp_path)
    model.__class__ = type("Own", (type(model),), {})
    complexify(model)
    with pytest.raises(ValueError, match="Own is no class"):
        save(model, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["q_proj", "o_proj"])
def test_save_refuses_adapters_that_load_could_not_open(name, tmp_path):
    model = complexified()
    attention = model.model.layers[0].self_attn
    setattr(attention, name, Adapted(attention.get_submodule(name)))
    with pytest.raises(ValueError, match="merge_and_unload"):
        save(model, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_model_of_another_class_is_restored_from_its_layout():
    model, again = Attention(), Attention()
    complexify(model, pairing="half")
    restore(again, layout(model))
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.v_proj.weight, model.v_proj.weight)


@pytest.mark.parametrize(
    ("name", "pairing", "word"),
    [
        ("w_proj", "half", "w_proj is missing"),
        ("v_proj", "interleaved", "pairing='half'"),
    ],
)
def test_restore_refuses_another_layout_and_changes_nothing(name, pairing, word):
    model = Attention()
    model.config = SimpleNamespace(model_type="llama")
    right = {"pairing": "half", "head_dim": 4}
    with pytest.raises(ValueError, match=word):
        restore(model, {"q_proj": right, name: right | {"pairing": pairing}})
    assert type(model.q_proj) is nn.Linear
