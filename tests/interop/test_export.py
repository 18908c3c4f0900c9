"""Export: read back with the format's own library, without code of this project for `transformers`;
the outputs are the run's.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from crope.config import ModelConfig
from crope.errors import UserError
from crope.files import sha256_file, write_json
from crope.interop.export import as_transformers, export, export_transformers, refusal, render_card
from crope.interop.generate import generate, sample_token
from crope.model.gpt import GPT
from crope.runs.compose import load_config
from crope.runs.identity import numerics_version
from crope.runs.record import Record
from tests.conftest import TOY_VOCAB, make_toy_tokens, toy_run
from tests.model.oracles import CHOICES, assert_close, build, model_config, randomise
from tests.report.records import make_conversion
from tests.toy_runs import toy_corpus, train_toy

LENGTH = 16


def randomised(config: ModelConfig) -> GPT:
    """A model whose parameters are all of order 1."""
    return randomise(build(config, vocab=TOY_VOCAB, max_len=LENGTH)).float()


def record_of(
    folder: Path, *overrides: str, weights: str = "weights.pt", **changes: object
) -> tuple[Record, GPT]:
    """A run with random weights of order 1; `changes` are made to the model whose weights are
    saved.
    """
    run = toy_run(folder, *overrides)
    model = randomised(replace(run.config.model, **changes))
    run.path.mkdir(parents=True)
    torch.save(model.state_dict(), run.path / weights)
    digest = sha256_file(run.path / weights)
    if weights == "converted.pt":
        write_json(run.path / "conversion.json", make_conversion() | {"converted_sha256": digest})
        digest = make_conversion()["weights_sha256"]
    summary = {"status": "complete", "weights_sha256": digest}
    summary["numerics_version"] = numerics_version(run.container["model"])
    return Record(run.path, run.container, summary, {}), model


def read_back(path: Path) -> tuple[dict[str, str], GPT]:
    with safe_open(path, "pt") as file:
        about = file.metadata()
    config = ModelConfig(**json.loads(about["model"]))
    model = GPT(config, vocab_size=int(about["vocab_size"]), max_len=int(about["max_len"]), seed=0)
    model.load_state_dict(load_file(path))
    return about, model


def logits(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model.double().logits(model(torch.arange(LENGTH)[None]))


@pytest.mark.parametrize(
    "name", ["crope", "lowrank", "blockdiag", "complex_misaligned", "complex_v", "conjugate"]
)
@pytest.mark.parametrize("more", [(), ("model.qkv_bias=true", "model.tied_head=false")])
def test_dense_export_has_equal_logits_in_a_plain_model(
    name: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    record, source = record_of(tmp_path, f"model={name}", *more)
    export(record, tmp_path / "dense.safetensors", dense=True)
    about, plain = read_back(tmp_path / "dense.safetensors")
    assert about["run_id"] == record.path.name
    assert json.loads(about["model"])["projection"] == "real"
    assert_close(logits(plain), logits(source), atol=1e-5)


def test_as_trained_the_tensors_are_those_of_the_run(tmp_path: Path, monkeypatch) -> None:
    """Also those of layers that share their weights."""
    record, model = record_of(tmp_path, "model=crope")
    model.blocks[0].attn.k_proj.a = model.blocks[0].attn.q_proj.a
    monkeypatch.setattr("crope.interop.export.load_trained", lambda *_, **__: model)
    out = tmp_path / "new" / "crope.safetensors"
    export(record, out, dense=False)
    read, expected = load_file(out), model.state_dict()
    assert read.keys() == expected.keys() and any(name.endswith("q_proj.b") for name in read)
    assert all(torch.equal(read[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dense", [False, True])
def test_converted_weights_are_exported_with_the_configuration_that_loads_them(
    dense: bool, tmp_path: Path
) -> None:
    record, converted = record_of(
        tmp_path, "model=rope", weights="converted.pt", projection="complex", tied_head=False
    )
    export(record, tmp_path / "converted.safetensors", dense=dense, converted=True)
    about, model = read_back(tmp_path / "converted.safetensors")
    assert json.loads(about["model"])["projection"] == ("real" if dense else "complex")
    assert_close(logits(model), logits(converted), atol=1e-5)


def test_weights_that_are_not_the_converted_ones_are_not_exported(tmp_path: Path) -> None:
    """Those of the run itself: tests/runs/test_run.py."""
    changes = {"projection": "complex", "tied_head": False}
    record, _ = record_of(tmp_path, "model=rope", weights="converted.pt", **changes)
    torch.save({}, record.path / "converted.pt")
    with pytest.raises(UserError, match=r"converted\.pt: corrupt"):
        export(record, tmp_path / "x.safetensors", dense=False, converted=True)


@pytest.mark.parametrize("name", ["mqa", "halved", "complex_wide"])
def test_no_dense_export_where_k_and_v_have_another_width(name: str, tmp_path: Path) -> None:
    record, _ = record_of(tmp_path, f"model={name}")
    with pytest.raises(UserError, match="width"):
        export(record, tmp_path / "out.safetensors", dense=True)


def test_what_cannot_be_exported_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = record_of(tmp_path, "model=complex_wide")
    with pytest.raises(UserError, match=r"\.safetensors"):
        export(record, tmp_path / "out.bin", dense=False)
    with pytest.raises(UserError, match=r"converted\.pt"):
        export(record, tmp_path / "out.safetensors", dense=False, converted=True)
    (tmp_path / "file").touch()
    (tmp_path / "folder.safetensors").mkdir()
    for out in ("file/out.safetensors", "folder.safetensors"):
        with pytest.raises(UserError, match=out):
            export(record, tmp_path / out, dense=False)
    other, _ = record_of(tmp_path, "model=rope", n_layers=2)
    with pytest.raises(UserError, match=r"weights\.pt"):
        export(other, tmp_path / "out.safetensors", dense=False)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UserError, match="install"):
        export(record, tmp_path / "out.safetensors", dense=False)


REFUSED = {
    "alibi": "position=alibi",
    "relative_bias": "position=relative_bias",
    "rope_linear": "attention=linear",
    "crope_linear": "attention=linear",
    "complex_wide": "projection=complex_wide",
}


@pytest.mark.parametrize("name", [name for name in CHOICES if name not in REFUSED])
@pytest.mark.parametrize("other", [False, True])
def test_transformers_computes_the_logits_of_every_model(
    name: str, other: bool, tmp_path: Path
) -> None:
    """Random weights of order 1, so that attention, positions and biases matter."""
    config = model_config(name, d_model=16)
    if other:
        config = replace(config, qkv_bias=True, tied_head=False, embed_scale="one")
    assert not refusal(config)
    source = randomised(config)
    as_transformers(source).save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert opened.config.model_type == ("gpt_neox" if config.position == "rotary" else "gpt2")
    tokens_BT = torch.randint(TOY_VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = source.logits(source(tokens_BT))
        assert_close(opened(tokens_BT).logits, expected, atol=1e-5)
    assert expected.std() > 0.1


@pytest.mark.parametrize("name", REFUSED)
def test_what_neither_architecture_has_is_refused_by_name(name: str, tmp_path: Path) -> None:
    record, _ = record_of(tmp_path, f"model={name}")
    with pytest.raises(UserError, match=REFUSED[name]):
        export_transformers(record, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_position_scheme_that_a_user_adds_is_refused() -> None:
    assert "gaussian" in refusal(replace(model_config("rope"), position="gaussian"))


@pytest.fixture(scope="module")
def crope(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """A trained run whose validation is the whole split."""
    folder = tmp_path_factory.mktemp("runs")
    with toy_corpus(folder):
        yield train_toy(folder, "model=crope", "eval.full_tokens=0", "train.lr=0.01")


@pytest.fixture(scope="module")
def opened(crope: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "new" / "folder"
    for _ in range(2):  # the second time over the first
        export_transformers(crope, out)
    return out


def test_a_plain_loop_gives_the_validation_loss_of_the_record(crope: Record, opened: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(opened).eval()
    split = torch.from_numpy(make_toy_tokens(opened).validation.astype("int64"))
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(split) - 1, LENGTH):
            window = split[start : start + LENGTH + 1]
            logits_TV = model(window[None, :-1]).logits[0]
            total += F.cross_entropy(logits_TV, window[1:], reduction="sum").item()
    final = crope.summary["val_full"]["final_nats"]
    assert total / (len(split) - 1) == pytest.approx(final, rel=1e-6)


def test_the_folder_holds_what_the_ecosystem_reads(crope: Record, opened: Path) -> None:
    assert sorted(path.name for path in opened.iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((opened / "config.json").read_text())
    assert "auto_map" not in config and config["rotary_pct"] == 1  # read by versions before 5
    card = (opened / "README.md").read_text(encoding="utf-8")
    final, commit = crope.summary["val_full"]["final_nats"], crope.provenance["commit"]
    for fact in (
        crope.path.name,
        f"{final:.4f} nats",
        commit,
        "900 tokens",
        "seed 0",
        'model="folder"',
        "tags: [rotary-position-embedding, complex-linear]",
    ):
        assert fact in card
    exported = AutoModelForCausalLM.from_pretrained(opened)
    absolute = replace(load_config(crope.config).model, position="sinusoidal")
    assert "tags: [complex-linear]" in render_card(crope, exported, absolute, opened)


def test_pipeline_and_tokenizer_are_those_of_the_run(crope: Record, opened: Path) -> None:
    """Greedy text of the pipeline, up to the context's end, is that of `generate`."""
    tokenizer = AutoTokenizer.from_pretrained(opened)
    prompt = "the other"
    ids = Tokenizer.from_file(str(opened / "tokenizer.json")).encode(prompt).ids
    assert tokenizer(prompt)["input_ids"] == ids and tokenizer.decode(ids) == prompt
    written = pipeline("text-generation", model=str(opened))(prompt, do_sample=False)
    expected = generate(crope, prompt, tokens=LENGTH - len(ids), temperature=0, top_k=0, seed=0)
    assert written[0]["generated_text"] == expected


def test_generation_goes_on_past_the_context_and_repeats_with_its_seed(crope: Record) -> None:
    settings = {"tokens": 2 * LENGTH, "temperature": 1.0, "top_k": 0}
    first, again, other = (generate(crope, "a", seed=seed, **settings) for seed in (1, 1, 2))
    assert first == again != other and first.startswith("a")
    likeliest = generate(crope, "a", seed=1, **settings | {"top_k": 1})
    assert likeliest == generate(crope, "a", seed=2, **settings | {"temperature": 0})
    assert likeliest == generate(crope, "a", seed=2, **settings | {"temperature": 1e-310})
    for wrong in ({"temperature": -1.0}, {"tokens": 0}, {"top_k": -1}, {"seed": 2**64}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            generate(crope, "a", **{"seed": 0} | settings | wrong)
    for prompt, word in {"": "empty", "\udcff": "UTF-8"}.items():
        with pytest.raises(UserError, match=word):
            generate(crope, prompt, seed=0, **settings)


def test_draws_follow_the_softmax_of_the_kept_logits() -> None:
    generator, logits_V = torch.Generator().manual_seed(0), torch.tensor([0.0, 2.0, -1.0, 1.0])
    drawn = [
        sample_token(logits_V, temperature=2.0, top_k=3, generator=generator) for _ in range(4000)
    ]
    expected = torch.tensor([1.0, 2.718282, 0.0, 1.648721])
    shares = torch.bincount(torch.tensor(drawn), minlength=4) / 4000
    assert_close(shares, expected / expected.sum(), atol=0.03)


def test_a_folder_that_is_no_export_is_left_alone(crope: Record, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no earlier export"):
        export_transformers(crope, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_what_cannot_be_written_is_one_line(
    crope: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        export_transformers(crope, tmp_path / "file" / "out")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="install"):
        export_transformers(crope, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tokens_of_another_corpus_are_not_packed_with_the_weights(
    crope: Record, tmp_path: Path
) -> None:
    changed = json.loads(json.dumps(crope.provenance))
    changed["data"]["splits"]["train"]["sha256"] = "other"
    with pytest.raises(UserError, match="tokens"):
        export_transformers(replace(crope, provenance=changed), tmp_path / "out")
