"""Questions asked of the studies: conf/contrasts.yaml.

planned       study and contrast were committed before the study's first run
exploratory   everything else: of their 95 % intervals one in twenty will miss
"""

import datetime
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from crope.config import ROOT
from crope.errors import ConfigError, one_line
from crope.files import read_yaml
from crope.plan.study import load_study
from crope.records.store import UNREADABLE
from crope.report.frame import model_label

CONTRASTS_FILE = ROOT / "conf" / "contrasts.yaml"
# What is subtracted: column of the frame, and how it is printed.
QUANTITIES = {
    "loss": ("loss", ""),
    "lowest": ("val_full.best_nats", ", lowest loss"),
    "train": ("train.final_nats", ", training loss"),
    "beyond": ("beyond_nats", " at 4 L − at L"),
    "longer": ("longer_nats", " at 4 L"),
}
# One term of a difference: a model, or `model at setting`.
TERM = re.compile(r"(?P<model>\w[\w+.-]*)(?: at (?P<setting>[^\s,]+(?:, [^\s,]+)*))?")


Term = tuple[str, str]  # model and setting; "" stands for each setting of the study in turn


@dataclass(frozen=True)
class Contrast:
    """A difference, first - mean of seconds, at equal seed in one or more studies of one row.

    name      P1, R1, ... of a planned one; else <study>/<difference>
    at        the settings that are asked; none: all of the study
    averaged  one difference per seed, the mean over these settings
    best      an axis of which each model takes its best value on each corpus; empty for none
    of        a key of QUANTITIES
    minus     a contrast whose differences are subtracted at equal corpus and seed
    date      the date of the plan; empty for an exploratory contrast
    """

    name: str
    studies: tuple[str, ...]
    first: Term
    seconds: tuple[Term, ...] = ()
    at: Sequence[str] = ()
    averaged: bool = False
    best: str = ""
    of: str = "loss"
    minus: "Contrast | None" = None
    date: str | datetime.date = ""
    question: str = ""

    @property
    def terms(self) -> tuple[Term, ...]:
        return (self.first, *self.seconds)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names the studies whose runs this contrast needs."""
        return tuple(dict.fromkeys([*self.studies, *(self.minus.needed if self.minus else ())]))

    @property
    def label(self) -> str:
        """Says what is subtracted from what, as printed."""
        first, *seconds = [term_label(*term) for term in self.terms]
        if len(seconds) > 1:
            seconds = [f"mean of {', '.join(seconds)}"]
        less = f", less {self.minus.name}" if self.minus else ""
        return " − ".join([first, *seconds]) + QUANTITIES[self.of][1] + less


def term_label(model: str, setting: str) -> str:
    return f"{model_label(model)} at {setting}" if setting else model_label(model)


@cache
def load_contrasts(file: Path = CONTRASTS_FILE) -> dict[str, Contrast]:
    """Reads the contrasts of conf/contrasts.yaml, by name. Raises ConfigError for a wrong entry."""
    contrasts: dict[str, Contrast] = {}
    where = ""
    try:
        content = read_yaml(file)
        entries = [(entry.pop("study"), entry, name) for name, entry in content["planned"].items()]
        for studies, of_studies in content["explored"].items():
            entries += [(studies, entry, "") for entry in of_studies]
        for studies, entry, name in entries:
            where = f"{name or studies}: "
            if "minus" in entry:
                entry["minus"] = contrasts[entry["minus"]]
            contrast = make_contrast(studies, entry, name)
            if contrast.name in contrasts:
                raise ValueError(f"two entries are named {contrast.name}; remove one")
            contrasts[contrast.name] = contrast
    except (*UNREADABLE, ConfigError) as error:
        raise ConfigError(f"conf/{file.name}: {where}{one_line(error)}") from error
    return contrasts


def subjects() -> dict[str, Any]:
    """Reads what the README, docs/results.md and the page show: `shown` of the file."""
    return read_yaml(CONTRASTS_FILE)["shown"]


def make_contrast(studies: str, entry: Any, name: str = "") -> Contrast:
    """Makes a contrast from a difference or an entry of conf/contrasts.yaml. Raises ValueError or
    TypeError for a wrong one.
    """
    options = {"difference": entry} if isinstance(entry, str) else dict(entry)
    difference = options.pop("difference", "")
    best = f"best {options['best']}" if "best" in options else ""
    averaged = "averaged" if options.get("averaged") else ""
    kind = [difference, averaged, best, options.get("of", "")]
    name = name or f"{studies}/{', '.join(part for part in kind if part)}"
    first, *seconds = parse_difference(difference)
    contrast = Contrast(name, tuple(studies.split(", ")), first, tuple(seconds), **options)
    check_names(contrast)
    return contrast


def check_names(contrast: Contrast) -> None:
    """Raises ValueError for a model or setting that a study lacks, or terms that never share one:
    they would have no line and no message. Raises ConfigError for no such study.
    """
    if contrast.of not in QUANTITIES:
        raise ValueError(f"of: {contrast.of}: must be one of {', '.join(QUANTITIES)}")
    if contrast.minus and (contrast.minus.averaged or line_count(contrast.minus) > 1):
        raise ValueError(f"minus: {contrast.minus.name} has several rows or settings; give it one")
    if len({bool(setting) for _, setting in contrast.terms}) > 1:
        raise ValueError("difference: give each model a setting, or none")
    tokenizers = {tuple(re.findall(r"tokenizer\.[^,]+", setting)) for _, setting in contrast.terms}
    if len(tokenizers) > 1 or contrast.best.startswith("tokenizer."):
        raise ValueError("tokenizer: losses per token of two tokenizers cannot be compared")
    # Where a study varies the position, say, a model's name goes on: `alibi+complex`.
    named = [f"model={model.partition('+')[0]}" for model, _ in contrast.terms]
    settings = [*contrast.at, *(setting for _, setting in contrast.terms if setting)]
    choices = [setting.split(", ") for setting in settings]
    for study in map(load_study, contrast.studies):
        axes = study.axes
        varied = {axis for axis, values in axes.items() if len(values) > 1}
        if contrast.best and varied - {"data", "model"} != {contrast.best}:
            raise ValueError(f"best: conf/study/{study.name}.yaml must vary {contrast.best} alone")
        for choice in itertools.chain(named, *choices):
            axis, _, value = choice.partition("=")
            if value not in axes.get(axis, ()):
                there = ", ".join(axes.get(axis, axes))
                raise ValueError(f"conf/study/{study.name}.yaml has no {choice}, only {there}")
        for words in choices:
            if [word.partition("=")[0] for word in words] != study.setting_axes:
                such = ", ".join(f"{axis}={axes[axis][0]}" for axis in study.setting_axes)
                there = f"settings such as '{such}'" if such else "no settings"
                raise ValueError(f"{', '.join(words)}: conf/study/{study.name}.yaml has {there}")


def line_count(contrast: Contrast) -> int:
    """Counts the lines that a contrast has by its plan: one for each row and setting."""
    study = load_study(contrast.studies[0])
    rows = len(study.axes.get("ablation", ("",)))
    if contrast.best or contrast.averaged or contrast.first[1]:
        return rows
    return rows * (len(contrast.at) or prod(len(study.axes[axis]) for axis in study.setting_axes))


def parse_difference(text: str) -> list[Term]:
    """Splits `crope - rope`, `crope - lowrank halved`, `crope at A - rope at B` or one model into
    its terms. Raises ValueError.
    """
    left, _, right = text.partition(" - ")
    first = TERM.fullmatch(left)
    if first is None or TERM.sub("", right).strip():
        raise ValueError(f"difference: '{text}' is not of the form `crope - rope`")
    return [(term["model"], term["setting"] or "") for term in (first, *TERM.finditer(right))]
