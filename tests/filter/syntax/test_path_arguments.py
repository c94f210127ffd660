"""Prefixes in the paths of filters: what they stand for is said beside the path."""

from __future__ import annotations

from random import Random

import pytest
from lxml import etree

from tidings import Attribute, Domain, Matcher
from tidings.errors import FilterError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.syntax.writer import literal_to_sql, to_sql
from tidings.model.types import STRING
from tidings.testing.random_data import make_document, make_path

NEWS = Domain("news", [Attribute("n", "int"), Attribute("body", "string")])


def test_prefixes_mean_what_the_map_beside_them_says_as_lxml_has_it() -> None:
    random = Random(4)
    documents = [make_document(random) for _ in range(30)]
    paths = [path for path in (make_path(random) for _ in range(400)) if "p:" in path]
    filters = {
        i: f"xpath_boolean(body, {literal_to_sql(path, STRING)}, map('p', 'urn:p'))" for i, path in enumerate(paths)
    }
    found = Matcher(filters, NEWS).match([{"n": 1, "body": text} for text in documents])
    trees = [etree.fromstring(text) for text in documents]
    judged = [
        (row, number)
        for row, tree in enumerate(trees)
        for number, path in enumerate(paths)
        if tree.getroottree().xpath(path, namespaces={"p": "urn:p"})
    ]
    assert sorted(found.pairs()) == judged
    assert len(judged) > 50


def test_filters_alike_are_read_as_each_of_them_by_itself() -> None:
    texts = [f"n > {i} AND xpath_boolean(body, '/p:a[@i = \"{i % 3}\"]', map('p', 'urn:{i % 4}'))" for i in range(40)]
    events = [{"n": 99, "body": f'<a xmlns="urn:{i}" i="{j}"/>'} for i in range(4) for j in range(3)]
    together, alone = Matcher(dict(enumerate(texts)), NEWS), Matcher({}, NEWS)
    for number, text in enumerate(texts):
        alone.add({number: text})
    pairs = together.match(events).pairs()
    assert sorted(pairs) == sorted(alone.match(events).pairs())
    assert len(pairs) > 20
    planned, in_full = compile_filters(texts, NEWS), compile_filters(texts, NEWS, plans=False)
    assert list(map(repr, planned.residuals)) == list(map(repr, in_full.residuals))


def test_a_path_has_its_namespaces_in_it_whatever_the_prefix() -> None:
    one, other = (
        parse_filter(f"xpath_boolean(body, '/{prefix}:a[@{prefix}:i]', map('{prefix}', 'urn:x'))", NEWS)
        for prefix in ("p", "q")
    )
    assert one == other
    assert to_sql(one) == "xpath_boolean(body, '/Q{urn:x}a[@Q{urn:x}i]')"


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("xpath_boolean(body, '/rss/a:item')", 27, "unknown prefix 'a'"),
        ("xpath_boolean(body, '/b:item', map('a', 'urn:a'))", 23, "unknown prefix 'b'"),
        ("xpath_boolean(body, '/a:item[b:x]', map('a', 'urn:a'))", 30, "unknown prefix 'b'"),
        ("xpath_boolean(body, '/a', map('a'))", 31, "a map of prefixes has a URI for each"),
        ("xpath_boolean(body, '/a', map('a', n))", 36, "a map of prefixes has string literals alone"),
        ("xpath_boolean(body, '/a', map('', 'urn:a'))", 31, "'' is no prefix"),
        ("xpath_boolean(body, '/a', map('a', 'urn:a', 'a', 'urn:b'))", 45, "the prefix 'a' is there twice"),
        ("xpath_boolean(body, '/a', map('a', ''))", 36, "'' is no namespace"),
        ("xpath_boolean(body, '/a', 'urn:a')", 27, "the prefixes of a path are a map"),
        ("n > 1 AND map('a', 'urn:a')", 11, "a map is for the prefixes of xpath_boolean alone"),
        ("xpath_boolean(body)", 1, "xpath_boolean takes a document, a path and a map of its prefixes, if any"),
    ],
)
def test_what_is_wrong_with_prefixes_is_said_with_its_place(text: str, column: int, reason: str) -> None:
    with pytest.raises(FilterError) as wrong:
        parse_filter(text, NEWS)
    assert (wrong.value.column, wrong.value.reason.removeprefix("path: ")) == (column, reason)


def test_an_attribute_may_be_named_map() -> None:
    domain = Domain("maps", [Attribute("map", "string")])
    assert Matcher({1: "map = 'x'", 2: "`map` IN ('x', 'y')"}, domain).match([{"map": "x"}]).of(0) == [1, 2]
