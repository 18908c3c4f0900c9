"""The names that users import for CRoPE in their own models (docs/own-model.md)."""

from crope.interop.adapt import PAIRINGS, Replaced, complexify, merge
from crope.interop.commute import Checked, check

__all__ = ["PAIRINGS", "Checked", "Replaced", "check", "complexify", "merge"]
