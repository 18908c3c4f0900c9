"""The code that makes a run's numbers, as digests: they tell which file has changed since a run.

A file has a digest for each definition, import and entry of a dictionary, and one for the rest.
Comments, format and docstrings do not enter. An addition, such as a new position scheme with its
line in the registry, leaves earlier runs as they are: only a digest that is gone counts.
"""

import ast
from collections.abc import Mapping
from functools import cache
from typing import Any

from crope.config import ROOT
from crope.files import sha256

SOURCES = ("crope/model/*.py", "crope/train/*.py", "crope/data/batches.py", "crope/seeding.py")
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef)
PARTS = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)


@cache
def code_digests() -> dict[str, str]:
    """Computes the digests of each file of SOURCES, with spaces between them, by its path."""
    digests = {}
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            digests[path.relative_to(ROOT).as_posix()] = digest_file(text)
    return digests


def code_note(run: Mapping[str, Any]) -> str:
    """Says of a run.json which code has changed since, and what to do; empty if none has, and of
    runs older than `code`.
    """
    now = code_digests()
    changed = []
    for file, digests in run.get("code", {}).items():
        if not set(digests.split()) <= set(now.get(file, "").split()):
            changed.append(file)
    if not changed:
        return ""
    files = ", ".join(changed)
    return f"trained by other code ({files} changed since); `runtime.again=true` trains it anew"


def digest_file(text: str) -> str:
    """Computes the digests of a Python file: first of the rest, then of the parts."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node):
            del node.body[0]
    rest, parts = "", []
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(value, ast.Dict):
            entries = zip(value.keys, value.values, strict=True)
            parts += [ast.unparse(ast.Dict([key], [entry])) for key, entry in entries]
        elif isinstance(node, PARTS):
            parts.append(ast.unparse(node))
        else:
            rest += ast.unparse(node)
    return " ".join(sha256(part.encode())[:6] for part in (rest, *parts))
