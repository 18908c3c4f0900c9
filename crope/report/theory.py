"""The page's theory section: what `make theory` made, where it was made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crope.report.figures import Picture, data_uri
from crope.report.style import DARK
from crope.report.theory_section import build_theory_section


@dataclass(frozen=True)
class TheoryItem:
    """A figure, a table, or both. The first of `rows` is the headings; without a figure there is no picture."""

    name: str
    title: str
    caption: str
    picture: Picture | None
    rows: tuple[tuple[str, ...], ...]

    @property
    def files(self) -> list[str]:
        return [f"theory-{self.name}.{kind}" for kind in ("svg", "png")] if self.picture else []


def load_theory(folder: Path | None) -> tuple[list[TheoryItem], dict[str, bytes]]:
    """The items in reading order, and the files of their figures."""
    if folder is None:
        return [], {}
    items: list[TheoryItem] = []
    files: dict[str, bytes] = {}
    for one in build_theory_section(folder):
        headings, rows = one.table
        table = tuple(tuple(map(str, row)) for row in ([headings, *rows] if rows else []))
        light, picture = one.render("svg"), None
        if light:
            dark = one.render("svg", DARK)
            picture = Picture(f"{one.title}. {one.caption}", data_uri(light), data_uri(dark))
        items.append(TheoryItem(one.name, one.title, one.caption, picture, table))
        files |= dict(zip(items[-1].files, (light, one.render("png")), strict=False))
    return items, files
