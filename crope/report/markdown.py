"""A table in GitHub's Markdown, which also reads well in a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from crope.report.frame import one_line
from crope.report.tables import Table


def render_markdown(table: Table, *, with_notes: bool = True) -> str:
    first = "Dataset" if table.name == "table1" else "Configuration"
    lines = [f"**{escape_markdown(table.caption)}**", ""]
    lines += [markdown_row([first, "", *table.columns]), markdown_row(["---", "---", *("---:" for _ in table.columns)])]
    for group in table.groups:
        labels = [escape_markdown(group.label), escape_markdown(group.here), ""]
        for label, line in zip(labels, group.lines, strict=False):
            entries = [escape_markdown(entry.value) for entry in line.entries]
            entries = [f"**{text}**" if entry.best else text for text, entry in zip(entries, line.entries, strict=True)]
            lines.append(markdown_row([label, line.protocol, *entries]))
    lines += ["", *(f"- {escape_markdown(text)}" for text in [table.settings] if text)]
    lines += [*(f"- [{number}] {escape_markdown(text)}" for number, text in table.marks)]
    lines += [f"- {escape_markdown(note)}" for note in table.notes if with_notes]
    return "\n".join(lines) + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_markdown(text: str) -> str:
    """One line whose text means itself: no markup, no HTML, no new column, no formula (GitHub's `$`)."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|~$])|(?<=\])(?=\()", lambda match: "\\" + (match[1] or ""), text)
