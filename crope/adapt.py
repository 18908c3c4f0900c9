"""CRoPE in a model of your own, as docs/own-model.md describes it: the names that users import."""

from crope.interop.adapt import Replaced, complexify, merge, split_qkv
from crope.interop.commute import Checked, check
from crope.interop.layers import PAIRINGS
from crope.interop.stored import layout, load, restore, save
from crope.interop.values import align_values

__all__ = [
    "PAIRINGS",
    "Checked",
    "Replaced",
    "align_values",
    "check",
    "complexify",
    "layout",
    "load",
    "merge",
    "restore",
    "save",
    "split_qkv",
]
