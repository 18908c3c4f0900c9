"""docs/config.md: every key of the schema with its default, its meaning and what it allows. Imports no torch."""

from __future__ import annotations

import dataclasses
from typing import Any

from crope.compose import GROUPS, group_files
from crope.config import ROOT, SCIENTIFIC, keys
from crope.record import write_text

FILE = ROOT / "docs" / "config.md"
HEAD = """# Configuration keys

Made from the schema in [crope/config.py](../crope/config.py) by `make docs`; a test holds it current. Set a key on the
command line (`train.lr=3e-4`, with `-m` a list of values: `train.lr=3e-4,1e-3`) or in a file of `conf/`. The whole
configuration of a run, and the run's id: `python scripts/train.py model=crope data=ptb --cfg job`.

A key of a **scientific** section (model, data, tokenizer, train, eval, seed) is part of the run's id: another value is
another run. The others never change a number. `${...}` is taken from that key unless set.
"""
REQUIRED = "set by the group file"


def render_reference() -> str:
    """The whole page; the same schema and group files give the same bytes."""
    sections: dict[str, list[str]] = {}
    for key, item in keys().items():
        section = key.rpartition(".")[0]
        sections.setdefault(section, []).append(_row(key, item))
    parts = [HEAD]
    for section in sorted(sections, key=lambda name: name == ""):
        parts.append(f"## {_title(section)}\n")
        parts.append(
            "\n".join(["| key | default | meaning | allowed |", "| --- | --- | --- | --- |", *sections[section]])
        )
        parts.append("")
    parts.append("## Group files\n")
    parts.append("One of each is chosen, as `model=rope`; each says in a comment what it is.\n")
    for group in GROUPS:
        parts += [f"- `{group}`: {', '.join(_files(group))}"]
    return "\n".join(parts) + "\n"


def _title(section: str) -> str:
    if not section:
        return "Without a section (`seed` is scientific)"
    return f"{section} (scientific)" if section in SCIENTIFIC else section


def _row(key: str, item: dataclasses.Field[Any]) -> str:
    name = f"`{key}`"
    return f"| {name} | {_default(item.default)} | {_escape(item.metadata['text'])} | {_escape(_allowed(item))} |"


def _default(value: Any) -> str:
    if value == "???":  # OmegaConf's MISSING
        return REQUIRED
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(item: dataclasses.Field[Any]) -> str:
    rule, kind = item.metadata, str(item.type)
    if rule["one_of"]:
        return ", ".join(rule["one_of"])
    words = {"bool": "true, false", "int": "whole number", "float": "number", "str": "text"}[kind]
    for name, text in (("least", ">="), ("above", ">"), ("below", "<")):
        words += f" {text} {rule[name]}" if rule[name] is not None else ""
    return words


def _files(group: str) -> list[str]:
    """Each file of a group as a link."""
    return [f"[{name}](../{path.relative_to(ROOT).as_posix()})" for name, path in group_files(group).items()]


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def update_reference() -> None:
    write_text(FILE, render_reference())
