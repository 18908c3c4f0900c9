"""A table for a paper's source: booktabs, everything escaped, ready to be read by pdflatex, xelatex or lualatex."""

from __future__ import annotations

from collections.abc import Mapping

from crope.report.frame import one_line
from crope.report.sheets import Sheet
from crope.report.tables import Group, Table

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\char34{}", "±": r"$\pm$", "γ": r"$\gamma$", "−": r"$-$", "×": r"$\times$",
    "≤": r"$\leq$", "≥": r"$\geq$", "²": r"$^2$",
}  # fmt: skip
_BEYOND, _LACKING = "“”‘’–—…•", "«»ÐÞðþ"  # what LaTeX's default font encoding has besides Latin-1, and lacks of it


def escape_tex(text: str) -> str:
    """One line whose text means itself (UTF-8 input); what pdflatex has no letter for becomes a question mark."""
    return "".join(map(_escape, one_line(text)))


def _escape(character: str) -> str:
    is_set = character in _BEYOND or (ord(character) < 0x100 and character not in _LACKING)
    return _ESCAPES.get(character) or (character if is_set else "?")


def render_tex(table: Table) -> str:
    """A `table` environment that needs \\usepackage{booktabs} and nothing else."""
    first = "Dataset" if table.name == "table1" else "Configuration"
    notes = [*([table.settings] if table.settings else []), *(f"[{number}] {text}" for number, text in table.marks)]
    return _environment(
        caption=table.caption.partition(". ")[2],  # LaTeX numbers its tables itself
        label=f"tab:{table.name}-{table.scale}",
        columns="ll" + "r" * len(table.columns),
        headings=[first, "", *table.columns],
        body=[line for group in table.groups for line in (r"\midrule", *_group_lines(group))],
        notes=[*notes, *table.notes],
    )


def render_sheet_tex(sheet: Sheet, widths: Mapping[int, str]) -> str:
    """A plain table's columns of `widths` in small print; a width in parts of the text's (`0.3`) breaks lines."""
    kinds = ["l" if i in sheet.text_columns else "r" for i in widths]
    pairs = zip(widths.values(), kinds, strict=True)
    rows = [" & ".join(_cell(row[i], width) for i, width in widths.items()) + r" \\" for row in sheet.rows]
    return _environment(
        caption=sheet.caption,
        label=f"tab:{sheet.name}",
        columns="".join(rf"p{{{width}\textwidth}}" if width else kind for width, kind in pairs),
        headings=[sheet.headings[i] for i in widths],
        body=[r"\midrule", *rows],
        notes=list(sheet.notes),
        size=r"\scriptsize\setlength{\tabcolsep}{3pt}",
    )


def _cell(text: str, width: str) -> str:
    return rf"{{\raggedright {escape_tex(text)}\par}}" if width else escape_tex(text)


def _environment(
    *, caption: str, label: str, columns: str, headings: list[str], body: list[str], notes: list[str], size: str = ""
) -> str:
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering" + size,
        rf"\caption{{{escape_tex(caption)}}}",
        rf"\label{{{escape_tex(label)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(escape_tex(heading) for heading in headings) + r" \\",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize\raggedright",
        *(rf"{escape_tex(note)}\par" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _group_lines(group: Group) -> list[str]:
    lines = []
    for label, line in zip(group.labels, group.lines, strict=True):
        entries = [escape_tex(entry.value) for entry in line.entries]
        entries = [
            rf"\textbf{{{text}}}" if entry.best else text for text, entry in zip(entries, line.entries, strict=True)
        ]
        lines.append(" & ".join([escape_tex(label), line.label, *entries]) + r" \\")
    return lines
