from __future__ import annotations

import math

import pytest

from tidings.errors import FilterError
from tidings.xml.path_meaning import selected_nodes
from tidings.xml.path_parser import (
    SELF,
    AllOf,
    AnyOf,
    Compare,
    Exists,
    Negated,
    NodeTest,
    PathStep,
    TextTest,
    XPath,
    number_of,
    parse_path,
    with_prefixes,
    with_uris,
)


def _name(local: str) -> NodeTest:
    return NodeTest("element", "", local)


def _child(local: str) -> XPath:
    return XPath((PathStep(False, _name(local)),))


def test_steps_are_children_or_descendants_of_a_name_or_of_any() -> None:
    path = parse_path("/a//b/*/@id")
    assert [(step.descendant, step.test) for step in path.steps] == [
        (False, _name("a")),
        (True, _name("b")),
        (False, NodeTest("element")),
        (False, NodeTest("attribute", "", "id")),
    ]


@pytest.mark.parametrize(
    ("written", "short"),
    [
        ("a/b", "/a/b"),
        ("/child::a/descendant::b/attribute::c", "/a//b/@c"),
        ("/ a [ b ]", "/a[b]"),
        ("/a[b and c]", "/a[b][c]"),
        ("/a[20 > b]", "/a[b < 20]"),
        ("/a[b < '20']", "/a[b < 20]"),
        ("/a[(b)]", "/a[b]"),
        ("/Q{}a", "/a"),
    ],
)
def test_abbreviations_and_their_long_forms_are_one_path(written: str, short: str) -> None:
    assert parse_path(written) == parse_path(short)


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("b", Exists(_child("b"))),
        (". = 'x'", Compare(SELF, "=", "x")),
        ('b != "it\'s"', Compare(_child("b"), "!=", "it's")),
        ("b >= -1.5", Compare(_child("b"), ">=", -1.5)),
        ("contains(b, 'x')", TextTest("contains", _child("b"), "x")),
        ("not(b or c)", Negated(AnyOf((Exists(_child("b")), Exists(_child("c")))))),
        ("b or c and d", AnyOf((Exists(_child("b")), AllOf((Exists(_child("c")), Exists(_child("d"))))))),
        ("and", Exists(_child("and"))),
    ],
)
def test_predicates_are_read_as_xpath_reads_them(text: str, predicate: object) -> None:
    (step,) = parse_path(f"/a[{text}]").steps
    assert step.predicates == (predicate,)


def test_prefixes_are_looked_up_in_the_map() -> None:
    (step,) = parse_path("/p:a", {"p": "urn:p"}).steps
    assert step.test == NodeTest("element", "urn:p", "a")
    assert parse_path("/p:*", {"p": "urn:p"}) == parse_path("/Q{urn:p}*")


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", None, "empty"),
        ("/", 1, "every document"),
        ("/a[1]", 4, "positions"),
        ("/a[position() = 1]", 4, "position()"),
        ("/a[last()]", 4, "last()"),
        ("/a/..", 4, "a predicate tests what is above"),
        ("/a/.", 4, "leave it out"),
        ("/a/ancestor::b", 4, "the axes are attribute, child, descendant"),
        ("/a/descendent::b", 4, "did you mean 'descendant'?"),
        ("/a[contain(b, 'x')]", 4, "did you mean 'contains'?"),
        ("/a[contains(b)]", 14, "expected ','"),
        ("/a[contains(b, c)]", 16, "a string in quotes"),
        ("/p:a", 2, "unknown prefix 'p'"),
        ("/a[b = c]", 8, 'write "c" if that is the text'),
        ("/a[b = 'x]", 8, "never closed"),
        ("/a[b", 5, "expected ']', the path ends"),
        ("/a]", 3, "found ']'"),
        ("/a b", 4, "found 'b'"),
        ("/a = 5", 4, "put it into a predicate"),
        ("/a and /b", 4, "put the condition into a predicate"),
        ("/a | /b", 4, "subscribe to each path by itself"),
        ("count(/a)", 1, "count()"),
        ("not(/a)", 1, "put the condition into a predicate"),
        ("/a[/b]", 4, "starts at the step it stands on"),
        ("/a[b + 1 = 2]", 6, "no arithmetic"),
        ("/a[b = $x]", 8, "takes a number or a string"),
        ("/@id/b", 5, "nothing is below an attribute"),
        ("/a/text()/b", 10, "nothing is below text()"),
        ("/a/node()", 4, "write * for any element"),
        ("/a['x' = 'y']", 10, "one side of a comparison is a path"),
        ("'x'", 1, "a query is a path"),
        ("/a[b & c]", 6, "write and"),
        ("/a" * 65, 130, "more than 64 steps"),
        ("/a" + "[b" * 33, 68, "levels deep"),
        ("/" + "a" * 10_000, None, "characters"),
    ],
)  # fmt: skip
def test_what_is_outside_the_language_is_refused_with_its_place_and_a_hint(
    text: str, column: int | None, says: str
) -> None:
    with pytest.raises(FilterError) as refused:
        parse_path(text)
    assert says in str(refused.value)
    assert refused.value.column == column


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        (" -2.50\n", -2.5),
        (".5", 0.5),
        ("5.", 5),
        ("0" * 30 + "1", 1),
        ("12345678901234567890", 1.2345678901234567e19),
    ],
)
def test_a_number_is_digits_with_a_minus_and_a_point_at_most(text: str, number: float) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize("text", ["", " ", "-", ".", "1e5", "+1", "1 2", "0x1", "١", "- 1", "NaN"])
def test_anything_else_is_no_number(text: str) -> None:
    assert math.isnan(number_of(text))


MAP = {"p": "urn:p", "q": "urn:q"}


@pytest.mark.parametrize("path", ["/p:a/q:*[@p:b = 'p:c']", '//p:a[contains(., "q:")]', "/a[b]", "/child::p:a"])
def test_a_path_means_the_same_by_prefix_and_by_uri(path: str) -> None:
    assert parse_path(with_uris(path, MAP)) == parse_path(path, MAP)
    text, namespaces = with_prefixes(with_uris(path, MAP))
    assert parse_path(text, namespaces) == parse_path(path, MAP)
    assert "Q{" not in text


@pytest.mark.parametrize(
    ("path", "nodes"),
    [
        ("/a/b", ['<b i="1">x<c/></b>', "<b/>"]),
        ("//b/@i", ["1"]),
        ("/a//text()", ["x", "y"]),
        ("/a/Q{urn:p}d", ['<p:d xmlns:p="urn:p"/>']),
        ("a/b[c]", ['<b i="1">x<c/></b>']),
        ("/z", []),
    ],
)
def test_selected_nodes_are_written_as_they_stand(path: str, nodes: list[str]) -> None:
    document = '<a xmlns:p="urn:p"><b i="1">x<c/></b>y<b/><p:d/></a>'
    found = selected_nodes(document, path)
    assert [node.replace(' xmlns:p="urn:p"', "") for node in found] == [
        node.replace(' xmlns:p="urn:p"', "") for node in nodes
    ]
