"""Packages import only those to their left, and no modules import each other in a circle."""

import ast
from graphlib import TopologicalSorter

import pytest

from crope.config import ROOT

BASE = {"config", "paper", "seeding", "errors", "files", "machine", "style"}
PACKAGES = """
model:
data:
train: model data
plan:
records: data plan
runs: model data train plan records
report: data plan records
interop: model data train plan records runs
theory: model
"""
ALLOWED = dict.fromkeys(BASE, BASE)  # each is a module
for line in PACKAGES.splitlines()[1:]:
    package, _, others = line.partition(":")
    ALLOWED[package] = BASE.union(others.split())
MODULES = {}
for path in (ROOT / "crope").rglob("*.py"):
    MODULES[".".join(path.relative_to(ROOT).with_suffix("").parts)] = path


def imported(path):
    """Names of the crope modules that a file imports, also within functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "")
            for alias in node.names:
                names |= {module, alias.name, f"{module}.{alias.name}"}
    return names & MODULES.keys()


GRAPH = {name: imported(path) for name, path in MODULES.items()}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_those_to_their_left_alone(package):
    """A package, or a module beside the packages."""
    found = set()
    for module, others in GRAPH.items():
        if module.split(".")[1] == package:
            found.update(other.split(".")[1] for other in others)
    assert found <= ALLOWED[package] | {package}


def test_no_modules_import_each_other_in_a_circle():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError
    assert len(GRAPH) > 40
