"""What the documents say is true: their examples run, their links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidings

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tidings.__path__, "tidings.")
    if not module.name.endswith("__main__")
)
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Example(NamedTuple):
    document: Path
    line: int  # of the block's first line of code
    code: str


def examples(document: Path) -> list[Example]:
    text = document.read_text(encoding="utf-8")
    return [
        Example(document, text.count("\n", 0, found.start(1)) + 1, found.group(1)) for found in FENCE.finditer(text)
    ]


def run_example(example: Example, names: dict[str, Any]) -> None:
    name = str(example.document.relative_to(ROOT))
    if ">>>" not in example.code:
        # The code keeps its place in the document, so that a traceback names the right line.
        exec(compile("\n" * (example.line - 1) + example.code, str(example.document), "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(example.code, {}, name, str(example.document), example.line - 1)
    test.globs = names
    report: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub forms them."""
    headings = HEADING.findall(ANY_FENCE.sub("", document.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _with_marks(document: Path) -> Any:
    """A document whose examples speak to Spark is one of the tests with Spark."""
    on_spark = any("pipeline" in example.code for example in examples(document))
    marks = [pytest.mark.spark] if on_spark else []
    return pytest.param(document, marks=marks, id=str(document.relative_to(ROOT)))


@pytest.mark.parametrize("document", [_with_marks(document) for document in DOCUMENTS])
def test_every_python_example_of_a_document_runs(
    document: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__example__"}
    for example in examples(document):
        run_example(example, names)


def test_the_readme_has_examples_to_run() -> None:
    assert examples(ROOT / "README.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_of_a_document_leads_somewhere(document: Path) -> None:
    text = ANY_FENCE.sub("", document.read_text(encoding="utf-8"))
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("name", MODULES)
def test_every_example_in_a_docstring_gives_what_it_says(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] == "tidings":
            raise
        pytest.skip(f"{name} needs {missing.name}: pip install 'tidings[spark,dev]'")
    failed, _ = doctest.testmod(module, optionflags=OPTIONS)
    assert failed == 0, f"python -m doctest shows what differs in {module.__file__}"


def test_the_constraints_are_names_and_versions_alone() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b(?=`|\n| +#)", (ROOT / "README.md").read_text()))
    assert named
    assert named <= targets


@pytest.mark.parametrize("name", ["README.md", "docs/service.md"])
def test_the_figures_in_a_document_are_those_of_the_result_files(name: str) -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import figures
    finally:
        sys.path.remove(str(ROOT))
    assert name in figures.DOCUMENTS
    assert figures.with_figures(name) == (ROOT / name).read_text(), "write them anew: python -m benchmarks.figures"


def test_an_event_s_way_is_listed_in_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = text[text.index("## An event's way") : text.index("## Layout")]
    files = re.findall(r"^\d+\. `([\w/]+\.py)`", way, re.MULTILINE)
    assert len(files) == len(set(files)) <= 30
    assert [file for file in files if not (ROOT / "src" / "tidings" / file).is_file()] == []


def test_the_manual_names_every_command() -> None:
    from tidings.cli import COMMANDS

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert set(COMMANDS) - named == set()


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Dependencies") : text.index("## Where this differs")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {re.split(r"[\[<>=]", one)[0] for one in required} - {"tidings"}
    assert {
        name for name in names if not re.search(rf"^\|[^|]*(?<![\w-]){name}(?![\w-])", table, re.MULTILINE)
    } == set()
