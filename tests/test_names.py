"""Every package opens with a complete map of its modules, and a name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tidings"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
SYSTEMS = SOURCE / "systems"


def of_a_system(path: Path) -> bool:
    """Whether this is one of the files that every published system has, under the same name."""
    folder = path.parent
    return folder.parent == SYSTEMS and (folder / "placement.py").exists()


def public_classes(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def repeated(named: list[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that occur more than once, with the modules that have them."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in named:
        found[name].append(str(path.relative_to(SOURCE)))
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE.parent)))
def test_a_package_opens_with_a_map_of_all_its_modules(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert modules | folders <= set(re.findall(r"\w+", text))


def test_no_two_modules_share_a_name() -> None:
    assert repeated([(path.stem, path) for path in MODULES if not of_a_system(path)]) == {}


def test_no_two_public_classes_share_a_name() -> None:
    own = [path for path in MODULES if not of_a_system(path)]
    assert repeated([(name, path) for path in own for name in public_classes(path)]) == {}
