from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tidings.testing.random_data import NAMESPACES, make_document, make_path
from tidings.testing.strategies import documents, paths
from tidings.xml.document_columns import read_documents
from tidings.xml.path_index import build_path_index
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path, with_uris

Pairs = set[tuple[int, int]]


def found_by_index(texts: list[str], queries: list[str]) -> Pairs:
    index = build_path_index([with_uris(query, NAMESPACES) for query in queries])
    offsets, numbers = index.match(read_documents([text.encode() for text in texts], text=True))
    pairs = [(i, int(number)) for i in range(len(texts)) for number in numbers[offsets[i] : offsets[i + 1]]]
    assert len(pairs) == len(set(pairs)), "a path holds once"
    return set(pairs)


def found_by_lxml(texts: list[str], queries: list[str]) -> Pairs:
    compiled = [etree.XPath(query, namespaces=NAMESPACES) for query in queries]
    trees = [etree.fromstring(text.encode()).getroottree() for text in texts]
    return {(i, j) for i, tree in enumerate(trees) for j, path in enumerate(compiled) if path(tree)}


def found_by_interpreter(texts: list[str], queries: list[str]) -> Pairs:
    read = [parse_path(query, NAMESPACES) for query in queries]
    return {(i, j) for i, text in enumerate(texts) for j, path in enumerate(read) if read_document(text).holds(path)}


@given(st.lists(documents(), min_size=1, max_size=5), st.lists(paths(), min_size=1, max_size=12))
def test_index_interpreter_and_lxml_say_the_same_of_every_pair(texts: list[str], queries: list[str]) -> None:
    judged = found_by_lxml(texts, queries)
    assert found_by_interpreter(texts, queries) == judged
    assert found_by_index(texts, queries) == judged


def check_many(seed: int, documents: int, queries: int) -> None:
    random = Random(seed)
    texts, made = [make_document(random) for _ in range(documents)], [make_path(random) for _ in range(queries)]
    judged = found_by_lxml(texts, made)
    assert found_by_index(texts, made) == judged
    assert len(judged) > documents * queries / 50, "the paths are often true"


def test_many_paths_together_say_what_each_says_alone() -> None:
    check_many(1, 40, 500)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 42))
def test_many_more_paths_say_what_lxml_says(seed: int) -> None:
    check_many(seed, 60, 1000)


@pytest.mark.parametrize(
    ("query", "document", "holds"),
    [
        ("/a[b = 'x']", "<a><b>y</b><b>x</b></a>", True),  # one node is enough
        ("/a[b != 'x']", "<a><b>y</b><b>x</b></a>", True),
        ("/a[not(b = 'x')]", "<a><b>y</b><b>x</b></a>", False),
        ("/a[b != 'x']", "<a/>", False),
        ("/a[b = 'xy']", "<a><b>x<c>y</c></b></a>", True),  # the string-value is all text within
        ("/a[text() = 'x']", "<a>x<!-- -->y</a>", True),
        ("/a[. = 'xy']", "<a>x<!-- -->y</a>", True),
        ("/a[b < 5]", "<a><b>x</b><b>4</b></a>", True),
        ("/a[b < 5]", "<a><b>x</b></a>", False),  # what is no number is not less
        ("/a[not(b < 5)]", "<a><b>x</b></a>", True),
        ("/a[b != 5]", "<a><b>x</b></a>", True),  # nor equal
        ("/a[b = 5]", "<a><b> 5.0 </b></a>", True),
        ("/a[b = '5']", "<a><b> 5.0 </b></a>", False),
        ("/a[b < 0.3]", "<a><b>0.30000000000000000001</b></a>", False),
        ("/a[b > 9007199254740992]", "<a><b>9007199254740993</b></a>", False),  # as doubles they are the same
        ("/a[b = 0]", "<a><b>-0</b></a>", True),
        ("/a[contains(b, 'x')]", "<a><b>y</b><b>x</b></a>", False),  # the first node decides
        ("/a[contains(b, '')]", "<a/>", True),
        ("/a[not(contains(b, ''))]", "<a/>", False),
        ("/a[starts-with(., 'é')]", "<a>éa</a>", True),
        ("/a[contains(.//b, 'x')]", "<a><c><b>x</b></c><b>y</b></a>", True),
        ("//a//a//a", "<a><a><b><a/></b></a></a>", True),
        ("//a[b]//a[c]", "<a><b/><a><a><c/></a></a></a>", True),
        ("/*/*[@*]", "<a><b i='1'/></a>", True),
        ("//@i", "<a><b i=''/></a>", True),
        ("//*[@i]/@j", "<a i='1'><b j='1'/></a>", False),
        ("/a[.//b//c = 'x']", "<a><b><b><c>x</c></b></b></a>", True),
        ("/a[b[c = 'x']/d]", "<a><b><c>x</c></b><b><d/></b></a>", False),
        ("/a[not(b[c])]", "<a><b/></a>", True),
        ("/a[b or c][d or e][f or g]/h[i or j or k]", "<a><c/><e/><g/><h><k/></h></a>", True),
    ],
)  # fmt: skip
def test_paths_mean_what_xpath_says(query: str, document: str, holds: bool) -> None:
    assert bool(found_by_lxml([document], [query])) is holds
    assert bool(found_by_interpreter([document], [query])) is holds
    assert bool(found_by_index([document], [query])) is holds


def test_digits_with_an_exponent_are_no_number_though_lxml_reads_them_as_one() -> None:
    document, query = "<a>1e2</a>", "/a[. = 100]"
    assert found_by_lxml([document], [query])
    assert not found_by_interpreter([document], [query])
    assert not found_by_index([document], [query])


def test_documents_deeper_than_there_was_room_for_are_walked_again() -> None:
    document = "<a>" * 200 + "</a>" * 200
    queries = ["//a" * depth for depth in range(1, 40)] + [f"//a/a{'/a' * depth}" for depth in range(60)]
    assert found_by_index([document] * 3, queries) == {(i, j) for i in range(3) for j in range(len(queries))}


def test_an_index_of_nothing_finds_nothing() -> None:
    assert found_by_index(["<a/>"], []) == set()
    assert found_by_index([], ["/a"]) == set()
