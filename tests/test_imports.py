"""Packages import only those to their left, and no modules import each other in a circle."""

import ast
from graphlib import TopologicalSorter

from crope.config import ROOT

BASE = {"config", "paper", "seeding", "errors", "files", "style"}
ALLOWED = {
    "model": BASE,
    "data": BASE,
    "train": BASE | {"model", "data"},
    "runs": BASE | {"model", "data", "train"},
    "report": BASE | {"data", "model", "runs"},
    "interop": BASE | {"model", "data", "train", "runs"},
    "theory": BASE | {"model", "runs"},
}


def imported(path):
    """Names of the crope modules that a file imports, also within functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("crope"):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                names.add(module if is_module(module) else node.module)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("crope")}
    return names


def is_module(name):
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").exists()


def graph():
    modules = {}
    for path in (ROOT / "crope").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        modules[name] = imported(path) - {"crope"}
    return modules


def test_packages_import_those_to_their_left_alone():
    wrong = []
    for module, others in graph().items():
        package = module.split(".")[1] if "." in module else ""
        for other in others:
            target = other.split(".")[1]
            if package in ALLOWED and target != package and target not in ALLOWED[package]:
                wrong.append(f"{module} -> {other}")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    assert len(list(TopologicalSorter(graph()).static_order())) > 60  # raises CycleError
