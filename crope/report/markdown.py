"""A table in GitHub's Markdown, which also reads well in a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from crope.report.frame import one_line
from crope.report.sheets import Sheet
from crope.report.tables import Table


def render_markdown(table: Table, *, with_notes: bool = True) -> str:
    first = "Dataset" if table.name == "table1" else "Configuration"
    lines = [f"**{escape_markdown(table.caption)}**", ""]
    lines += [markdown_row([first, "", *table.columns]), markdown_row(["---", "---", *("---:" for _ in table.columns)])]
    for group in table.groups:
        for label, line in zip(map(escape_markdown, group.labels), group.lines, strict=True):
            entries = [escape_markdown(entry.value) for entry in line.entries]
            entries = [f"**{text}**" if entry.best else text for text, entry in zip(entries, line.entries, strict=True)]
            lines.append(markdown_row([label, line.label, *entries]))
    lines += ["", *(f"- {escape_markdown(text)}" for text in [table.settings] if text)]
    lines += [*(f"- [{number}] {escape_markdown(text)}" for number, text in table.marks)]
    lines += [f"- {escape_markdown(note)}" for note in table.notes if with_notes]
    return "\n".join(lines) + "\n"


def render_sheet(sheet: Sheet) -> str:
    lines = [f"**{escape_markdown(sheet.caption)}**", "", markdown_row(sheet.headings)]
    lines.append(markdown_row(["---" if i in sheet.text_columns else "---:" for i in range(len(sheet.headings))]))
    lines += [markdown_row([escape_markdown(text) for text in row]) for row in sheet.rows]
    lines += ["", *(f"- {escape_markdown(note)}" for note in sheet.notes)] if sheet.notes else []
    return "\n".join(lines) + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_markdown(text: str) -> str:
    """One line whose text means itself: no markup, no HTML, no new column, no formula (GitHub's `$`)."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|~$])|(?<=\])(?=\()", lambda match: "\\" + (match[1] or ""), text)
