"""The schema: the values that it refuses, and what its defaults are."""

import pytest

from crope.errors import ConfigError
from tests.conftest import raises_one_line, toy_run


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("seed=-1", "seed=-1"),
        ("train.lr=0", "train.lr"),
        ("train.lr=nan", "finite"),
        ("model.dropout=1", "below"),
        ("model.position=rotry", "model.position"),
        ("tokenizer.vocab_size=10", "257"),
        ("scale=paper tokenizer.vocab_size=4096", "50257"),
    ],
)
def test_values_that_the_types_allow_and_the_checks_refuse(override, word):
    with raises_one_line(ConfigError, word):
        toy_run("results", *override.split())
