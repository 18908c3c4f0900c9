"""Text of a run: what it is drawn from, its seed, its settings."""

import pytest
import torch

from crope.errors import UserError
from crope.interop.generate import generate, next_logits, sample_token
from tests.model.oracles import assert_close, build, model_config, random_tokens, randomise
from tests.toy_runs import toy_corpus, train_toy

SETTINGS = {
    "tokens": 32,  # two contexts
    "temperature": 1.0,
    "top_k": 0,
    "seed": 1,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """With dropout, which must not act while text is drawn."""
    folder = tmp_path_factory.mktemp("runs")
    with toy_corpus(folder):
        yield train_toy(folder, "model=crope", "train.lr=0.01", "model.dropout=0.5")


def text(record, prompt="a", **changes):
    return generate(record, prompt, **SETTINGS | changes)


def test_text_repeats_with_its_seed(trained):
    assert text(trained).startswith("a")
    assert text(trained) == text(trained) != text(trained, seed=2)


def test_the_likeliest_text_is_the_same_at_every_seed(trained):
    """And with dropout it would not be."""
    assert text(trained, top_k=1) == text(trained, temperature=0, seed=2)


def test_the_context_is_its_last_tokens():
    """12 of 24: what is drawn past the context's length counts."""
    model = randomise(build(model_config("rope")))
    context = random_tokens(batch=1, length=24)[0].tolist()
    found = next_logits(model, context)
    with torch.no_grad():
        expected = model.logits(model(torch.tensor([context[12:]])))[0, -1]
    assert_close(found, expected.float(), atol=0)


def test_draws_follow_the_softmax_of_the_kept_logits():
    """Of 3 of 4, at temperature 2: e^1, e^0.5 and e^0 over their sum."""
    logits_V, generator = torch.tensor([0.0, 2.0, -1.0, 1.0]), torch.Generator().manual_seed(0)
    drawn = [sample_token(logits_V, 2.0, 3, generator) for _ in range(4000)]
    shares = torch.bincount(torch.tensor(drawn), minlength=4) / 4000
    assert shares.tolist() == pytest.approx([0.1863, 0.5065, 0.0, 0.3072], abs=0.03)


def test_an_empty_prompt_is_refused(trained):
    with pytest.raises(UserError, match="empty"):
        text(trained, prompt="")
