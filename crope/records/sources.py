"""The code that makes a run's numbers, as digests: they tell which file has changed since a run.

A file has a digest for each statement, such as a class, each method of a dataclass (its fields are
values of the configuration) and each entry of a dictionary. Comments, format and docstrings do not
enter. An addition, such as a new position scheme with its line in the registry, leaves earlier runs
as they are: only a digest that is gone counts.
"""

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from crope.config import ROOT
from crope.files import sha256

SOURCES = (
    "crope/model/*.py",
    "crope/train/*.py",
    "crope/data/batches.py",
    "crope/seeding.py",
    "crope/config.py",  # widths, schedules
)
DOCSTRING = re.compile(r'\s*""".*?"""', re.DOTALL)  # so `ast.unparse` writes these alone


@cache
def code_digests() -> dict[str, str]:
    """Computes the digests of each file of SOURCES, with spaces between them, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): digest_file(path.read_text(encoding="utf-8"))
        for pattern in SOURCES
        for path in sorted(ROOT.glob(pattern))
    }


def code_note(run: Mapping[str, Any]) -> str:
    """Says of a run.json which code has changed since, and what to do; empty if none has, and of
    runs older than `code`.
    """
    now = code_digests()
    files = ", ".join(
        file
        for file, digests in run.get("code", {}).items()
        if not set(digests.split()) <= set(now.get(file, "").split())
    )
    if not files:
        return ""
    return f"trained by other code ({files} changed since); `runtime.again=true` trains it anew"


def digest_file(text: str) -> str:
    """Computes the digests of a Python file, which begins with a docstring."""
    parts: list[ast.AST] = []
    for node in ast.parse(text).body[1:]:
        value = getattr(node, "value", None)
        if isinstance(value, ast.Dict):
            entries = zip(value.keys, value.values, strict=True)
            parts += [ast.Dict([key], [entry]) for key, entry in entries]
        elif isinstance(node, ast.ClassDef) and node.decorator_list:
            parts += [part for part in node.body if isinstance(part, ast.FunctionDef)]
        else:
            parts.append(node)
    # Python 3.12 chooses other quotes than 3.11.
    texts = [DOCSTRING.sub("", ast.unparse(part)).replace('"', "'") for part in parts]
    return " ".join(sha256(text.encode())[:6] for text in texts)
