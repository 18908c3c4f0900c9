"""A table for a paper's source: booktabs, everything escaped, ready to be read by pdflatex, xelatex or lualatex."""

from __future__ import annotations

from crope.report.frame import one_line
from crope.report.tables import Group, Table

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\char34{}", "±": r"$\pm$", "γ": r"$\gamma$", "−": r"$-$", "×": r"$\times$",
    "\ufffd": "?",
}  # fmt: skip


def escape_tex(text: str) -> str:
    """One line whose text means itself; letters beyond ASCII stay as they are (UTF-8 input)."""
    return "".join(_ESCAPES.get(character, character) for character in one_line(text))


def render_tex(table: Table) -> str:
    """A `table` environment that needs \\usepackage{booktabs} and nothing else."""
    first = "Dataset" if table.name == "table1" else "Configuration"
    header = " & ".join([first, "", *(escape_tex(column) for column in table.columns)])
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_tex(table.caption.partition('. ')[2])}}}",  # LaTeX numbers its tables itself
        rf"\label{{tab:{table.name}-{escape_tex(table.scale)}}}",
        rf"\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        r"\toprule",
        rf"{header} \\",
    ]
    for group in table.groups:
        lines += [r"\midrule", *_group_lines(group)]
    lines += [r"\bottomrule", r"\end{tabular}", r"\par\smallskip\footnotesize\raggedright"]
    lines += [rf"{escape_tex(text)}\par" for text in [table.settings] if text]
    lines += [rf"[{number}] {escape_tex(text)}\par" for number, text in table.marks]
    lines += [rf"{escape_tex(note)}\par" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _group_lines(group: Group) -> list[str]:
    lines = []
    for label, line in zip([group.label, group.here, ""], group.lines, strict=False):
        entries = [escape_tex(entry.value) for entry in line.entries]
        entries = [
            rf"\textbf{{{text}}}" if entry.best else text for text, entry in zip(entries, line.entries, strict=True)
        ]
        lines.append(" & ".join([escape_tex(label), line.protocol, *entries]) + r" \\")
    return lines
