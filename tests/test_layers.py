"""Dependencies point one way. The directions themselves are the contracts in pyproject.toml."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="pip install -e '.[dev]'")

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tidings"
LOWER = sorted(
    path
    for path in SOURCE.rglob("*.py")
    if path.relative_to(SOURCE).parts[0]
    not in ("__init__.py", "__main__.py", "cli.py", "commands", "demo", "service", "testing")
)


def imported(source: str) -> set[str]:
    """The modules that a source file imports by name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts that stand in a folder, in a process of its own: it changes paths and logging."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_no_package_imports_one_above_it() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_that_imports_one_above_it_is_caught(tmp_path: Path) -> None:
    package = tmp_path / "upside_down"
    for name in ("model", "matching"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "model" / "tree.py").write_text("import upside_down.matching\n")
    (tmp_path / ".importlinter").write_text(
        "[importlinter]\nroot_package = upside_down\n\n[importlinter:contract:1]\nname = Dependencies point one way\n"
        "type = layers\ncontainers = upside_down\nlayers =\n    matching\n    model\nexhaustive = true\n"
    )
    done = lint(tmp_path)
    assert done.returncode != 0
    assert "upside_down.model.tree -> upside_down.matching" in done.stdout


@pytest.mark.parametrize("path", LOWER, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_the_public_names_are_made_of_does_not_import_them(path: Path) -> None:
    assert "tidings" not in imported(path.read_text(encoding="utf-8"))
