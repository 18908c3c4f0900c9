"""A plain table of text, which markdown.py, tex.py and the page print alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """Columns named by `headings`, of which `text_columns` are words and the others numbers.

    `keys` names, for each row, the cells (their cell_key) that its numbers are worked out from; the page makes the text
    of `link_column` lead to their runs.
    """

    name: str
    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: tuple[int, ...]
    notes: tuple[str, ...] = ()
    keys: tuple[tuple[str, ...], ...] = ()
    link_column: int = 0
