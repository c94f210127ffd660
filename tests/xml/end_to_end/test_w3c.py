"""The W3C's own cases (QT3), as far as they are in the language: a path, or whether or how many nodes it selects."""

from __future__ import annotations

import re
import tarfile
from typing import Any, NamedTuple

import pytest
from lxml import etree

from tidings.errors import EventError, FilterError
from tidings.testing.real_data import DataMissing, data_file
from tidings.xml.document_columns import read_documents
from tidings.xml.path_index import build_path_index
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

NS = {"q": "http://www.w3.org/2010/09/qt-fots-catalog"}
ASSERTIONS = (
    "assert-empty", "assert-count", "assert-eq", "assert-xml", "assert-true", "assert-false", "assert-string-value",
    "error", "any-of",
)  # fmt: skip
SETS = re.compile(r"prod/(AxisStep|Predicate|NameTest|PathExpr|NodeTest|GeneralComp|Abbr|StepExpr)[^/]*\.xml")
WRAPPED = re.compile(r"^(?:fn:)?(?:count|exists|boolean|empty|not)\((?P<path>.*)\)$", re.DOTALL)


class Case(NamedTuple):
    name: str
    path: str
    document: bytes
    holds: bool


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    try:
        path = data_file("qt3_xpath_axis_predicate.tar.gz")
    except DataMissing as missing:
        pytest.skip(str(missing))
    with tarfile.open(path) as archive:
        members = (member for member in archive if member.isfile())
        files = {one.name.removeprefix("./"): file.read() for one in members if (file := archive.extractfile(one))}
    shared = _environments(etree.fromstring(files["catalog.xml"]), "", files)
    found: list[Case] = []
    for name in sorted(files):
        if SETS.fullmatch(name) is None:
            continue
        root = etree.fromstring(files[name])
        environments = shared | _environments(root, "prod/", files)
        found += [case for test in root.iterfind("q:test-case", NS) if (case := _case(test, environments)) is not None]
    return found


def _environments(root: Any, folder: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """Documents by the names of environments that have one, and nothing more."""
    documents = {}
    for environment in root.iterfind("q:environment", NS):
        sources = environment.findall("q:source", NS)
        if len(sources) == 1 and sources[0].get("role") == "." and environment.find("q:namespace", NS) is None:
            data = files.get(folder + sources[0].get("file"))
            if data is not None:
                documents[environment.get("name")] = data
    return documents


def _case(test: Any, environments: dict[str, bytes]) -> Case | None:
    environment = test.find("q:environment", NS)
    if environment is None or environment.get("ref") not in environments:
        return None
    document = environments[environment.get("ref")]
    written = (test.findtext("q:test", namespaces=NS) or "").strip()
    wrapped = WRAPPED.match(written)
    path = wrapped["path"] if wrapped else written
    holds = _expected(test.find("q:result", NS))
    if holds is None or (wrapped and written.removeprefix("fn:").startswith(("empty", "not"))):
        return None if holds is None else _readable(test.get("name"), path, document, not holds)
    return _readable(test.get("name"), path, document, holds)


def _readable(name: str, path: str, document: bytes, holds: bool) -> Case | None:
    try:
        parse_path(path)
        read_document(document)
    except (FilterError, EventError):
        return None  # outside the language, or with a document type
    return Case(name, path, document, holds)


def _expected(result: Any) -> bool | None:
    """Whether the path selects anything, by what the case asserts."""
    for assertion in result.iter(*(f"{{*}}{name}" for name in ASSERTIONS)):
        match etree.QName(assertion).localname:
            case "error" | "any-of":
                return None
            case "assert-empty" | "assert-false":
                return False
            case "assert-count":
                return int(assertion.text) > 0
            case "assert-eq":
                return float(assertion.text) > 0 if re.fullmatch(r"\d+", assertion.text or "") else None
            case "assert-string-value":
                return True if assertion.text and not re.fullmatch(r"true|false|\d+", assertion.text) else None
            case "assert-xml" | "assert-true":
                return True
    return None


def test_the_cases_that_are_in_the_language_come_out_as_the_w3c_says(cases: list[Case]) -> None:
    assert len(cases) > 50
    wrong = []
    for case in cases:
        index = build_path_index([case.path])
        _, found = index.match(read_documents([case.document], text=False))
        tree = etree.fromstring(case.document).getroottree()
        judged = bool(etree.XPath(case.path if case.path[0] == "/" else f"/{case.path}")(tree))
        outcomes = bool(len(found)), read_document(case.document).holds(parse_path(case.path)), judged
        if outcomes != (case.holds,) * 3:
            wrong.append((case.name, case.path, case.holds, outcomes))
    assert not wrong
