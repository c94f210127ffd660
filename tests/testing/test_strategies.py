from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import FilterError
from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import operands_of
from tidings.model.event import read_events
from tidings.testing.oracle import brute_force
from tidings.testing.random_cases import Case, make_case
from tidings.testing.strategies import cases, domains, events, filters


def test_one_seed_makes_one_case() -> None:
    first, second = (make_case(Random(7), events=5, filters=20) for _ in range(2))
    assert (first.domain, first.filters) == (second.domain, second.filters)
    assert repr(first.events) == repr(second.events)


def test_nearly_all_generated_filters_are_legal_and_they_are_often_true() -> None:
    outcomes: Counter[object] = Counter()
    for seed in range(6):
        case = make_case(Random(seed), events=20, filters=50)
        batch = read_events(case.events, case.domain)
        records = [batch.record(i) for i in range(batch.count)]
        for text in case.filters:
            try:
                tree = parse_filter(text, case.domain)
            except FilterError:
                outcomes["refused"] += 1
                continue
            outcomes.update(evaluate(tree, record) for record in records)
    assert outcomes["refused"] < 10
    total = outcomes[True] + outcomes[False] + outcomes[None]
    assert outcomes[True] > total / 4
    assert outcomes[False] > total / 4
    assert outcomes[None] > total / 20


def test_generated_filters_have_every_kind_of_node() -> None:
    seen: set[str] = set()
    for seed in range(4):
        case = make_case(Random(seed), events=10, filters=100)
        for text in case.filters:
            try:
                pending = [parse_filter(text, case.domain)]
            except FilterError:
                continue
            while pending:
                node = pending.pop()
                seen.add(type(node).__name__)
                pending += operands_of(node)
    assert seen == {
        "And", "Or", "Not", "IsNull", "Comparison", "In", "Like", "RLike", "ArrayContains",
        "Literal", "Reference", "Cast", "Arithmetic", "Negate", "Call",
    }  # fmt: skip


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_the_strategies_make_events_that_fit_and_filters_that_are_texts(data: st.DataObject) -> None:
    domain = data.draw(domains())
    made = data.draw(st.lists(events(domain), max_size=2))
    assert read_events(made, domain).count == len(made)
    assert isinstance(data.draw(filters(domain)), str)


@given(cases())
@settings(max_examples=20, deadline=None)
def test_the_oracle_finds_what_holds(case: Case) -> None:
    legal = {}
    for number, text in enumerate(case.filters):
        try:
            legal[number] = parse_filter(text, case.domain)
        except FilterError:
            continue
    found = brute_force([(number, case.filters[number]) for number in legal], case.events, case.domain)
    batch = read_events(case.events, case.domain)
    assert found == [
        (i, number)
        for i in range(batch.count)
        for number, tree in legal.items()
        if evaluate(tree, batch.record(i)) is True
    ]
