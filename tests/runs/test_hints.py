"""Hints at the nearest valid name: none is better than a wrong one."""

import pytest

from crope.config import keys
from crope.runs.compose import GROUPS
from crope.runs.hints import SYNONYMS, nearest

KEYS = [*keys(), *GROUPS]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tran.batch_size", "train.batch_size"),
        ("d_model", "model.d_model"),
        ("Train.LR", "train.lr"),
        ("model.depth", "model.n_layers"),
        ("learning-rate", "train.lr"),
    ],
)
def test_a_key_is_recognised_by_its_letters_or_by_a_synonym(name, key):
    assert nearest(name, KEYS) == f" did you mean {key}?"


@pytest.mark.parametrize(
    "name",
    [
        "train.optimizer",
        "lay",
    ],
)
def test_a_name_without_a_near_one_gets_no_hint(name):
    assert nearest(name, KEYS) == " the keys are in crope/config.py"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CRoPE", "crope"),
        ("rop", "rope"),
        ("xops", "xpos"),
    ],
)
def test_the_name_of_a_file_is_found_whatever_its_case(name, near):
    assert nearest(name, ["crope", "rope", "xpos"]) == f" did you mean {near}?"


def test_few_names_are_listed():
    assert nearest("huge", ["paper", "quick"]) == " valid: paper, quick"


def test_synonyms_lead_to_keys():
    assert set(SYNONYMS) <= set(KEYS)
