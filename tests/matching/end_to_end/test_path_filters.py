"""Paths as one more function of filters, mixed with attributes."""

from __future__ import annotations

from random import Random

import pytest

from tidings import Attribute, Domain, FilterError, Matcher, compile_filters, describe_filter, parse_filter
from tidings.filter.syntax.writer import literal_to_sql, to_sql
from tidings.model.types import STRING
from tidings.testing.oracle import brute_force
from tidings.testing.random_data import NAMESPACES, make_document, make_path
from tidings.xml.path_parser import with_uris

NEWS = Domain("news", [Attribute("lang", "string"), Attribute("rank", "int"), Attribute("body", "string")])


def a_filter(random: Random) -> str:
    path = literal_to_sql(with_uris(make_path(random), NAMESPACES), STRING)
    xpath = f"xpath_boolean(body, {path})"
    return random.choice(
        [
            xpath,
            f"NOT {xpath}",
            f"lang = 'en' AND {xpath}",
            f"rank > {random.randint(0, 4)} OR {xpath}",
            f"{xpath} AND {xpath.replace('body', 'lower(body)')}",
            f"rank IN (1, 3) AND NOT ({xpath} OR lang = 'de')",
            f"xpath_boolean(lang, '/a') OR {xpath}",
            f"(rank < 3 AND {xpath}) OR (rank >= 3 AND NOT {xpath})",
        ]
    )


def an_event(random: Random) -> dict[str, object]:
    body = random.choice([None, "<a>", "hello"]) if random.random() < 0.2 else make_document(random)
    return {"lang": random.choice(["en", "de", "<a/>", None]), "rank": random.randint(0, 4), "body": body}


@pytest.mark.parametrize("seed", range(3))
def test_filters_with_paths_match_as_the_interpreter_says(seed: int) -> None:
    random = Random(seed)
    filters = [a_filter(random) for _ in range(120)]
    events = [an_event(random) for _ in range(40)]
    matcher = Matcher(dict(enumerate(filters)), NEWS)
    assert matcher.match(events).pairs() == brute_force(enumerate(filters), events, NEWS)
    filters[:20] = [a_filter(random) for _ in range(20)]
    matcher.upsert(dict(enumerate(filters[:20])))
    assert sorted(matcher.match(events).pairs()) == brute_force(enumerate(filters), events, NEWS)


def test_what_is_no_document_is_null_and_so_is_its_negation() -> None:
    matcher = Matcher({"is": "xpath_boolean(body, '/a')", "not": "NOT xpath_boolean(body, '/a')"}, NEWS)
    events = [{"body": body} for body in ("<a/>", "<b/>", "<a>", None, "<!DOCTYPE a><a/>")]
    assert matcher.match(events).pairs() == [(0, "is"), (1, "not")]


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("rank = 1 AND xpath_boolean(body, '/a[1]')", 38, "positions"),
        ("xpath_boolean(rank, '/a')", 15, "takes a string, and this is of type int"),
        ("xpath_boolean(body, lang)", 21, "is a string literal"),
        ("xpath_boolean(body)", 1, "takes a document, a path and a map of its prefixes, if any"),
        ("xpath_bool(body, '/a')", 1, "did you mean 'xpath_boolean'?"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused_with_its_place_in_the_filter(text: str, column: int, says: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse_filter(text, NEWS)
    assert says in str(refused.value)
    assert refused.value.column == column


def test_of_many_filters_of_one_shape_the_unreadable_ones_are_named() -> None:
    filters = [f"xpath_boolean(body, '/a/b{i}')" for i in range(50)]
    filters[17] = "xpath_boolean(body, '/a/..')"
    rejects = compile_filters(filters, NEWS, on_error="reject").rejects
    assert [row for row, _ in rejects] == [17]
    mixed = [f"rank > {i} AND {text}" if i % 3 else f"{text} OR lang = 'x{i}'" for i, text in enumerate(filters)]
    assert [row for row, _ in compile_filters(mixed, NEWS, on_error="reject").rejects] == [17]


def test_filters_with_paths_are_written_and_described() -> None:
    text = "lang = 'en' AND xpath_boolean(body, '/a[b = \"x\"]')"
    tree = parse_filter(text, NEWS)
    assert to_sql(tree) == text
    assert "to evaluate: xpath_boolean(body, '/a[b = \"x\"]')" in describe_filter(text, NEWS)


def test_selected_nodes_are_those_of_every_path_that_is_not_negated() -> None:
    filter_ = "xpath_boolean(body, '//b') AND NOT xpath_boolean(body, '//c') AND rank = 1"
    matcher = Matcher({"x": filter_}, NEWS)
    assert matcher.select({"body": "<a><b>1</b><b/></a>", "rank": 1}, "x") == ["<b>1</b>", "<b/>"]
