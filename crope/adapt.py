"""CRoPE in a model of your own, as docs/own-model.md describes it: the names that users import."""

from crope.interop.adapt import PAIRINGS, Replaced, complexify, merge
from crope.interop.commute import Checked, check

__all__ = ["PAIRINGS", "Checked", "Replaced", "check", "complexify", "merge"]
