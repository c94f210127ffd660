"""No system is named outside its own folder: what knows of systems reads their records."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tidings
from tidings.systems.interface import systems
from tidings.systems.overlay import overlays

SOURCE = Path(tidings.__file__).parent

# What may name a system, and why.
ALLOWED = {
    "systems/interface.py": "REPLICATED, the one system that the others are measured against and fall back to",
    "systems/planner/planner.py": "it makes the Views of the system that combines others",
    "systems/planned/placement.py": "the two systems that it combines by default fit any subscriptions",
    "systems/chord/node.py": "the two systems of one paper differ in their placement, and share their nodes",
    "systems/chord/laws.py": "and so their laws",
    "systems/chord/bugs.py": "and their bugs",
    "pipeline/jobs/adaptation.py": "the Spark job that makes clusters of a whole table",
    "testing/workloads.py": "a workload after the paper's experiment has its name",
}


def test_no_text_or_import_outside_a_systems_folder_names_it() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE).as_posix()
        named = list(_named(ast.parse(path.read_text(encoding="utf-8")), _folder(inside)))
        if named and inside not in ALLOWED:
            found[inside] = named
    assert not found, "\n".join(f"{path}: {line}" for path, lines in found.items() for line in lines)


def test_every_exception_is_still_needed() -> None:
    for inside in ALLOWED:
        tree = ast.parse((SOURCE / inside).read_text(encoding="utf-8"))
        assert list(_named(tree, _folder(inside))), f"{inside} names none"


def _folder(inside: str) -> str | None:
    """Returns the system whose folder a file is in."""
    parts = inside.split("/")
    return parts[1] if parts[0] == "systems" and len(parts) > 2 else None


def _named(tree: ast.Module, own: str | None) -> Iterator[str]:
    names = {*systems(), *overlays()}
    texts = {id(text) for text in _documentation(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            for name in _names_in(node.value, names):
                if name.split("-")[0] != own:
                    yield f"line {node.lineno}: the text {node.value[:60]!r} names {name}"
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for module in modules:
                match = re.fullmatch(r"tidings\.systems\.(\w+)(\..*)?", module)
                if match and match[1] in names and match[1] != own:
                    yield f"line {node.lineno}: imports {module}"


def _names_in(text: str, names: set[str]) -> set[str]:
    """Returns the systems that a text names: by itself, in quotes, or as a command's argument."""
    alone = {text} & names
    quoted = set(re.findall(r"['\"]([a-z-]+)['\"]", text)) & names
    return alone | quoted


def _documentation(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value
