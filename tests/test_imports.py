"""Packages import only those to their left, and no modules import each other in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from crope.config import ROOT

BASE = {"config", "paper", "seeding", "errors", "files", "style"}
ALLOWED = {
    **dict.fromkeys(BASE, BASE),  # each is a module
    "model": BASE,
    "data": BASE,
    "train": BASE | {"model", "data"},
    "runs": BASE | {"model", "data", "train"},
    "report": BASE | {"model", "data", "runs"},
    "interop": BASE | {"model", "data", "train", "runs"},
    "theory": BASE | {"model"},
}


def name_of(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    return ".".join(relative.parts)


MODULES = {name_of(path): path for path in (ROOT / "crope").rglob("*.py")}


def imported(path: Path) -> set[str]:
    """Names of the crope modules that a file imports, also within functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.add(submodule if submodule in MODULES else str(node.module))
    return {name for name in names if name.startswith("crope.")}


GRAPH = {name: imported(path) for name, path in MODULES.items()}


def part(module: str) -> str:
    """The package, or a module beside the packages."""
    return module.split(".")[1]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_those_to_their_left_alone(package):
    found = set()
    for module, others in GRAPH.items():
        if part(module) == package:
            found.update(part(other) for other in others)
    assert found <= ALLOWED[package] | {package}


def test_no_modules_import_each_other_in_a_circle():
    order = list(TopologicalSorter(GRAPH).static_order())  # raises CycleError
    assert len(order) > 40
