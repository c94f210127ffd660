"""Tests lie where the module they test does, and say in their name what holds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCES = {"benchmarks": TESTS.parent}  # of folders that are no package of Tidings
WHOLES = ("end_to_end", "faults", "history", "torture")  # folders of tests of several parts working together
FILES = sorted(path for path in TESTS.rglob("test_*.py") if path.parent != TESTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_test_file_has_the_folder_and_name_of_what_it_tests(path: Path) -> None:
    place = path.relative_to(TESTS).parent
    folder = SOURCES.get(place.parts[0], TESTS.parent / "src" / "tidings") / place
    name = path.stem.removeprefix("test_")
    mirrors = (folder / f"{name}.py").exists() or (folder.is_dir() and name == folder.name)
    assert mirrors or set(WHOLES) & set(place.parts), (
        f"there is no {folder.relative_to(TESTS.parent)}/{name}.py; name the file after the module that it tests, "
        f"or move it to {place}/end_to_end"
    )


def test_the_name_of_a_test_is_one_clause_of_at_most_80_characters() -> None:
    names = [
        node.name.removeprefix("test_")
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert [name for name in names if len(name) > 80] == []
