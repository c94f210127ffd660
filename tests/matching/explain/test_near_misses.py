"""The nearest filters are those that explaining every one of them gives, whether they share a plan or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import FilterError
from tidings.filter.syntax.parser import parse_filter
from tidings.matching.explain.explanation import Explanation, explain
from tidings.matching.explain.near_misses import nearest
from tidings.matching.matcher import Matcher
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_record
from tidings.model.subscription import Subscription
from tidings.testing import workloads
from tidings.testing.random_cases import make_case

DOMAIN = Domain(
    "flights",
    [
        Attribute("origin", "string"),
        Attribute("dest", "string"),
        Attribute("delay", "int"),
        Attribute("miles", "bigint"),
        Attribute("fare", "decimal(10,2)"),
        Attribute("load", "double"),
        Attribute("share", "float"),
        Attribute("day", "date"),
        Attribute("departure", "timestamp"),
        Attribute("full", "boolean"),
        Attribute("tags", "array<string>"),
    ],
)
EVENT: dict[str, Any] = {
    "origin": "JFK",
    "dest": "LAX",
    "delay": 45,
    "miles": 2475,
    "fare": Decimal("99.50"),
    "load": 0.8,
    "share": 0.1,
    "day": "2013-02-08",
    "departure": "2013-02-08T12:00:00Z",
    "full": False,
    "tags": ["late", None],
}
LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\b[0-9]+(?:\.[0-9]+)?\b""")


def judged(filters: dict[Any, str], event: dict[str, Any], domain: Domain, limit: int) -> list[Explanation]:
    """Every filter explained."""
    record = read_record(event, domain)
    explained = [
        explain(parse_filter(text, domain), record, subscription=id_, text=text) for id_, text in filters.items()
    ]
    misses = [explanation for explanation in explained if not explanation.matches]
    return sorted(misses, key=lambda miss: (miss.failing, miss.distance, miss.subscription))[:limit]


def found(filters: dict[Any, str], event: dict[str, Any], domain: Domain, limit: int) -> list[Explanation]:
    record = read_record(event, domain)
    return nearest(pa.array(list(filters)), pa.array(filters.values(), pa.string()), domain, record, limit)


def check(filters: dict[Any, str], event: dict[str, Any] = EVENT, domain: Domain = DOMAIN) -> list[Explanation]:
    """That all misses are found in the order in which the judge has them, and so are the first few."""
    for limit in (len(filters), 3):
        assert found(filters, event, domain, limit) == judged(filters, event, domain, limit)
    return found(filters, event, domain, len(filters))


def other_literals(random: Random, texts: list[str], count: int) -> Iterator[str]:
    """Each text, and some that differ from it in literals, which others of the texts have."""
    written = [literal for text in texts for literal in LITERAL.findall(text)]
    numbers = [literal for literal in written if literal[0].isdigit()]
    strings = [literal for literal in written if not literal[0].isdigit()]

    def another(match: re.Match[str]) -> str:
        return random.choice([match.group(), *(numbers if match.group()[0].isdigit() else strings)])

    for text in texts:
        yield text
        for _ in range(count):
            yield LITERAL.sub(another, text)


def readable(texts: Iterator[str], domain: Domain) -> Iterator[str]:
    for text in texts:
        try:
            parse_filter(text, domain)
        except (FilterError, ValueError):
            continue
        yield text


@settings(max_examples=15)
@given(st.randoms(use_true_random=False))
def test_of_any_filters_the_nearest_are_those_that_explaining_all_of_them_gives(random: Random) -> None:
    case = make_case(random, events=2, filters=3, size=5)
    texts = list(readable(other_literals(random, case.filters, 9), case.domain))
    random.shuffle(texts)
    for event in case.events:
        check(dict(enumerate(texts)), event, case.domain)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_of_each_workload_the_nearest_are_those_that_explaining_all_of_them_gives(name: str) -> None:
    workload = workloads.WORKLOADS[name](subscriptions=150, events=2)
    for event in workload.events.to_pylist():
        check(dict(enumerate(workload.filters.to_pylist())), event, workload.domain)


SHAPES = {
    "whole numbers": lambda k: f"delay > {k * 7} AND miles < {k * 500} AND delay <= {-k}",
    "a whole number against decimals": lambda k: f"delay > {k}.5",
    "long whole numbers": lambda k: f"miles >= {10**k % (10**18)}",
    "doubles": lambda k: f"load > {k / 10} AND load < {k / 9:.6f} AND load != 8e-1",
    "doubles in every form": lambda k: f"load >= {('5', '0.5', '1e3', '12345678901234567890.5')[k % 4]}",
    "floats": lambda k: f"share > {k / 100}",
    "decimals": lambda k: f"fare BETWEEN {k}.5 AND {k * 10} OR fare = {k}.25",
    "days and times": lambda k: f"day > '2013-02-{k + 1:02d}' OR departure < TIMESTAMP '2013-02-{k + 1:02d} 11:00:00'",
    "texts": lambda k: f"origin = 'J{k % 5}K' OR dest > 'L{k}' OR lower(dest) = 'la{k}'",
    "lists": lambda k: f"origin IN ('J{k}', 'EWR', NULL) AND delay IN ({k}, {k * 3}, 46) AND NOT miles IN ({k}, 2475)",
    "patterns": lambda k: f"origin LIKE 'J{k % 3}%' AND dest ILIKE '%{k % 4}' OR NOT dest RLIKE '^L[A-{'XZ'[k % 2]}]+'",
    "escapes": lambda k: f"origin LIKE 'J!_{k}%' ESCAPE '!' OR dest LIKE '_A{k}'",
    "attributes": lambda k: f"delay * {k} > miles + {k * 100} AND load < fare / {k + 1}",
    "truth": lambda k: f"full = (delay > {k}) AND NOT (full OR delay = {k}) AND array_contains(tags, 'late{k % 2}')",
    "logic": lambda k: f"NOT (delay > {k} AND (origin = 'J{k}' OR NOT (miles > {k * 100} OR load < 0.{k}))) OR full",
    "constants": lambda k: f"{k} = 4 OR 'a{k}' <=> 'a4' OR delay <=> NULL OR fare IS NULL",
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "event",
    [
        EVENT,
        {},
        EVENT | {"load": float("nan"), "share": float("inf"), "delay": -(2**31), "miles": -(2**63)},
        EVENT | {"load": 1e308, "miles": 2**63 - 1, "fare": Decimal("-99999999.99"), "origin": "", "full": None},
    ],
    ids=["plain", "empty", "odd", "extreme"],
)
def test_every_kind_of_predicate_is_judged_alike(shape: str, event: dict[str, Any]) -> None:
    filters = {f"s{k:02d}": SHAPES[shape](k) for k in range(20)}
    assert check(filters, event) or all(explained.matches for explained in _all(filters, event))


def _all(filters: dict[Any, str], event: dict[str, Any]) -> Iterator[Explanation]:
    return (explain(parse_filter(text, DOMAIN), read_record(event, DOMAIN)) for text in filters.values())


def test_of_many_that_fail_alike_the_nearest_are_found_too() -> None:
    random = Random(3)
    shapes = (
        lambda: f"origin = '{''.join(random.choices('JFKX', k=random.randrange(6)))}'",
        lambda: f"NOT (load < {random.random():.3f} OR dest > 'L{random.choice('AXZ')}X')",
        lambda: f"fare IN ({random.randrange(100)}.5, {random.randrange(1000)}) OR share > {random.random():.2f}",
    )
    filters = {k: random.choice(shapes)() for k in range(2_000)}
    for event in (EVENT, {"origin": "", "load": 0.5}):
        expected = judged(filters, event, DOMAIN, 50)
        assert found(filters, event, DOMAIN, 50) == expected
        assert found(filters, event, DOMAIN, 2) == expected[:2]


def test_filters_that_differ_in_names_share_a_plan_and_see_their_own_attributes() -> None:
    a, b = ("origin", "dest"), ("dest", "origin", "dest")
    filters = {
        k: f"{a[k % 2]} = 'JFK' AND {a[k % 2]} < {b[k % 3]} OR {b[k // 2 % 2]} LIKE 'L{k % 3}%'" for k in range(24)
    }
    assert check(filters)


def test_what_ties_is_in_the_order_of_ids() -> None:
    texts = {f"{k * 7919 % 100:03d}": "fare > 1" if k % 2 else f"fare > {k}" for k in range(100)}
    misses = check(texts, {})
    assert [miss.subscription for miss in misses] == sorted(texts)
    numbers = {k * 7919 % 100 - 50: "delay > 46" for k in range(100)}
    assert [miss.subscription for miss in check(numbers)] == sorted(numbers)


def test_the_fewest_failing_predicates_come_first_then_the_least_distance_then_the_id() -> None:
    texts = {
        "match": "delay > 30",
        "two": "delay > 46 AND origin = 'EWR'",
        "far": "delay > 600",
        "near": "delay > 46",
        "also-near": "delay > 46",
        "null": "fare > 1",
    }
    misses = found(texts, EVENT | {"fare": None}, DOMAIN, 4)
    assert [miss.subscription for miss in misses] == ["also-near", "near", "far", "null"]
    assert not any(miss.matches for miss in misses)
    assert [miss.text for miss in misses] == [texts[str(miss.subscription)] for miss in misses]


def test_the_nearest_of_nothing_are_none() -> None:
    assert found({"a": "delay > 60"}, EVENT, DOMAIN, 0) == []
    assert nearest(pa.array([], pa.string()), pa.array([], pa.string()), DOMAIN, {}) == []
    assert Matcher([], DOMAIN).nearest(EVENT) == []


def test_a_changed_matcher_finds_the_nearest_of_what_it_has_now() -> None:
    random = Random(5)
    held = {f"s{k}": SHAPES["logic"](k % 90) for k in range(150)}
    matcher = Matcher(list(held.items()), DOMAIN)
    for turn in range(5):
        gone = random.sample(sorted(held), 20)
        matcher.remove(gone)
        held = {id_: text for id_, text in held.items() if id_ not in gone}
        more = {f"s{random.randrange(200)}": SHAPES["lists"](random.randrange(50)) for _ in range(30)}
        matcher.upsert(list(more.items()))
        held |= more
        if turn == 2:
            matcher.match([EVENT])
        if turn == 4:
            matcher.settle()
        assert matcher.nearest(EVENT, limit=40) == judged(held, EVENT, DOMAIN, 40)


def test_a_matcher_without_a_domain_takes_it_from_the_event() -> None:
    matcher = Matcher([(k, f"delay > {k * 10}") for k in range(20)])
    assert [miss.subscription for miss in matcher.nearest({"delay": 45}, limit=2)] == [5, 6]
    with pytest.raises(FilterError, match="unknown attribute 'delay'"):
        matcher.nearest({"other": 1})


def test_subscriptions_are_near_whenever_they_are_valid() -> None:
    subscriptions = [Subscription(k, f"delay > {k * 10}", valid_from=k, valid_to=k + 1) for k in range(20)]
    assert [miss.subscription for miss in Matcher(subscriptions, DOMAIN).nearest(EVENT, limit=2)] == [5, 6]
