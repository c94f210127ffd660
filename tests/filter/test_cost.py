"""What a filter costs is known when it is read, and too much is refused, by every way of reading alike."""

from __future__ import annotations

import pytest

from tidings.errors import FilterError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.cost import MAX_COST, filter_cost
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Attribute, Domain

DOMAIN = Domain("d", [Attribute(n, t) for n, t in {"s": "string", "i": "int", "d": "double", "b": "boolean"}.items()])
NESTED = "(" * 60 + "b" + " BETWEEN false AND true)" * 60
TOO_COSTLY = {
    "one pattern with many _": "s LIKE '" + "_" * 9000 + "a'",
    "one long literal": "s LIKE '%" + "." * 20_000 + "%'",
    "characters that grow in lower case": "s ILIKE '" + "İ" * 10_001 + "'",
    "repetitions": r"s RLIKE '\\pL{1,20}'",
    "groups that RE2 keeps": "s RLIKE '" + "(" * 12 + "a" + ")" * 12 + "{1000}'",
    "many patterns": " OR ".join(f"s RLIKE '(a|b){{{900 + k}}}'" for k in range(30)),
    "BETWEEN within BETWEEN": NESTED,
    "BETWEEN within BETWEEN, in another error": NESTED + " = i",
    "BETWEENs that are cheap one by one": " AND ".join(["(" * 9 + "b" + " BETWEEN false AND true)" * 9] * 60),
}


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("b", 1), ("i = 1", 3), ("i = 1.5", 4), ("i BETWEEN 1 AND 2", 7), ("i IN (1, 2, 3)", 5), ("i = 1 AND b", 5),
        ("s LIKE 'abc%'", 2 + 4), ("s LIKE 'a_'", 2 + 2 + 8), ("s ILIKE 'İ%'", 3 + 3), ("s RLIKE 'abc'", 2 + 7),
    ],
)  # fmt: skip
def test_a_filter_costs_its_nodes_and_the_size_of_its_patterns(text: str, cost: int) -> None:
    assert filter_cost(parse_filter(text, DOMAIN)) == cost


@pytest.mark.parametrize("text", [" OR ".join(["i = 1.5"] * 2_400), f"i IN ({', '.join(['1.5'] * 4_900)})"])
def test_a_filter_without_patterns_never_costs_too_much(text: str) -> None:
    assert filter_cost(parse_filter(text, DOMAIN)) <= MAX_COST


@pytest.mark.parametrize("text", TOO_COSTLY.values(), ids=TOO_COSTLY)
def test_what_costs_too_much_is_refused_with_its_cost_and_what_to_do(text: str) -> None:
    with pytest.raises(FilterError, match=r"costs [\d,]+, and 20,000 is the most.*split it into several filters"):
        parse_filter(text, DOMAIN)


@pytest.mark.parametrize("text", TOO_COSTLY.values(), ids=TOO_COSTLY)
def test_what_costs_too_much_is_refused_among_many_that_are_alike(text: str) -> None:
    cheap = text.replace("_" * 9000, "_").replace("." * 20_000, ".").replace("İ" * 10_001, "İ").replace(",20}", ",2}")
    filters = [*[cheap] * 20, text, *[text] * 2, *[cheap] * 9]
    for plans in (True, False):
        table = compile_filters(filters, DOMAIN, on_error="reject", plans=plans)
        refused = {row for row, _ in table.rejects}
        assert refused == ({20, 21, 22} if cheap != text else set(range(len(filters))))


def test_the_place_of_the_costliest_pattern_is_named() -> None:
    text = "s LIKE 'a_' AND s LIKE '" + "_" * 9000 + "'"
    with pytest.raises(FilterError) as raised:
        parse_filter(text, DOMAIN)
    assert raised.value.column == text.index("'___") + 1
