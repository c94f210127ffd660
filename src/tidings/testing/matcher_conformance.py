"""The laws of every matcher: a suite for any implementation.

`check_matcher` takes what makes a matcher from (id, filter) pairs and a domain, which is `Matcher`
itself, another engine behind the same interface, or a client of one far away:

>>> import tidings
>>> from tidings.testing import check_matcher
>>> check_matcher(tidings.Matcher, cases=1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from random import Random
from typing import Any, Protocol

from tidings.errors import TidingsError
from tidings.model.domain import Attribute, Domain
from tidings.testing import workloads
from tidings.testing.oracle import brute_force
from tidings.testing.random_cases import make_case

SubscriptionId = Any  # str or int


class MatchesLike(Protocol):
    def pairs(self) -> Iterable[tuple[int, SubscriptionId]]: ...


class MatcherLike(Protocol):
    def match(self, events: Any) -> MatchesLike: ...
    def add(self, subscriptions: Any) -> None: ...
    def upsert(self, subscriptions: Any) -> None: ...
    def remove(self, ids: Any) -> None: ...
    def replace_all(self, subscriptions: Any) -> None: ...


Make = Callable[[list[tuple[SubscriptionId, str]], Domain], MatcherLike]


class NonConformance(AssertionError):
    """A matcher broke a law; the text says which, and shows the filter and the event."""


def check_matcher(make: Make, *, cases: int = 20) -> None:
    """Raise `NonConformance` unless the matcher keeps every law; `cases` is how many are made up for each."""
    for law in (_generated, _workloads, _cut_anyhow, _once, _ids_as_given, _changes, _snapshots, _refusals):
        law(make, cases)


def _generated(make: Make, cases: int) -> None:
    for seed in range(cases):
        case = make_case(Random(seed), events=25, filters=25)
        _compare(f"matches what the filters say (case {seed})", make, case.readable(), case.events, case.domain)


def _workloads(make: Make, cases: int) -> None:
    for name, made in workloads.WORKLOADS.items():
        workload = made(subscriptions=15 * cases, events=10 + 2 * cases)
        filters = list(enumerate(workload.filters.to_pylist()))
        _compare(f"matches the workload {name}", make, filters, workload.events, workload.domain)


def _cut_anyhow(make: Make, cases: int) -> None:
    """How events are cut into batches makes no difference."""
    law = "matches each batch as its events alone"
    workload = workloads.mixed(subscriptions=200, events=20 + cases)
    filters, rows = list(enumerate(workload.filters.to_pylist())), workload.events.to_pylist()
    wanted = sorted(brute_force(filters, rows, workload.domain))
    matcher = make(filters, workload.domain)
    for size in (1, 7, len(rows)):
        found = [
            (start + event, id_)
            for start in range(0, len(rows), size)
            for event, id_ in matcher.match(rows[start : start + size]).pairs()
        ]
        _same(f"{law}, in batches of {size}", found, wanted, dict(filters), rows)
    _same(f"{law}, in an empty batch", matcher.match([]).pairs(), [], dict(filters), rows)


def _once(make: Make, cases: int) -> None:
    """A filter that holds in several ways, and filters that are alike, match once each."""
    filters = [
        (1, "x > 1 OR x > 2 OR s = 'a'"),
        (2, "x IN (5, 5.0, 6) OR s IN ('a', 'b', 'a')"),
        (3, "x > 1"),
        (4, "x > 1"),
    ]
    _compare("matches once", make, filters, _EVENTS, _DOMAIN)


def _ids_as_given(make: Make, cases: int) -> None:
    texts = ["TRUE", "x > 1", "FALSE", "s IS NULL"]
    for ids in ([" ", "7", "é", "a b"], [0, -(2**63), 2**63 - 1, 7]):
        _compare("gives ids back as they were given", make, list(zip(ids, texts, strict=True)), _EVENTS, _DOMAIN)


def _changes(make: Make, cases: int) -> None:
    for seed in range(cases):
        random = Random(seed)
        model = {number: _filter(random) for number in range(random.randint(0, 40))}
        matcher, new = make(list(model.items()), _DOMAIN), 1000
        for step in range(12):
            kind = random.choice(("add", "upsert", "remove", "replace_all", "add", "remove"))
            fresh = {new + k: _filter(random) for k in range(random.randint(0, 30))}
            new += len(fresh)
            some = random.sample(sorted(model), random.randint(0, len(model)))
            if kind == "remove":
                matcher.remove(some)
                model = {id_: text for id_, text in model.items() if id_ not in some}
            elif kind == "replace_all":
                matcher.replace_all(list(fresh.items()))
                model = dict(fresh)
            else:
                changed = fresh | ({id_: _filter(random) for id_ in some[:5]} if kind == "upsert" else {})
                getattr(matcher, kind)(list(changed.items()))
                model |= changed
            law = f"is, after {kind}, the matcher of what it then has (case {seed}, step {step})"
            _judge(law, matcher, list(model.items()), _EVENTS, _DOMAIN)


def _snapshots(make: Make, cases: int) -> None:
    """Matches are of what was matched against, whatever changes before they are read."""
    before = [(number, "x > 1") for number in range(5)]
    matcher = make(before, _DOMAIN)
    matches = matcher.match(_EVENTS)
    matcher.remove([0, 1])
    matcher.upsert([(2, "FALSE"), (9, "TRUE")])
    wanted = sorted(brute_force(before, _EVENTS, _DOMAIN))
    _same("keeps matches as they were when matched", matches.pairs(), wanted, dict(before), _EVENTS)


def _refusals(make: Make, cases: int) -> None:
    """A change that is refused changes nothing."""
    before = [(number, "x > 1") for number in range(5)]
    matcher = make(before, _DOMAIN)
    attempts: list[tuple[str, Any]] = [
        ("add", [(10, "TRUE"), (11, "prise > 1")]),
        ("add", [(12, "TRUE"), (3, "TRUE")]),
        ("remove", [1, 99]),
        ("upsert", [(1, "FALSE"), (13, "x >")]),
        ("replace_all", [(1, "s + 1 > 2 >"), (2, "TRUE")]),
    ]
    for name, given in attempts:
        try:
            getattr(matcher, name)(given)
        except TidingsError:
            _judge(f"changes nothing where it refuses {name}", matcher, before, _EVENTS, _DOMAIN)
        else:
            raise NonConformance(f"refuses bad input: {name}({given!r}) was accepted")


_DOMAIN = Domain("conformance", [Attribute("s", "string"), Attribute("x", "double"), Attribute("n", "bigint")])
_EVENTS = [{"s": s, "x": x, "n": n} for s in ("a", "b", None) for x in (0.5, 5.0, 50.0, None) for n in (1, 7)]


def _filter(random: Random) -> str:
    low = random.randint(0, 40)
    return random.choice(
        [f"s = '{random.choice('abc')}' AND x > {low}.5", f"x >= {low} AND x < {low + 20}", "TRUE", "FALSE",
         f"n = {random.randint(1, 8)}", f"n != {random.randint(1, 8)} OR s IS NULL", f"x * 2 > {low} AND n = 7",
         f"s LIKE '%{random.choice('ab')}%' AND n > {low // 10}", f"NOT (x < {low}) AND s = 'b'"]
    )  # fmt: skip


def _compare(law: str, make: Make, filters: list[tuple[Any, str]], events: Any, domain: Domain) -> None:
    _judge(law, make(filters, domain), filters, events, domain)


def _judge(law: str, matcher: MatcherLike, filters: list[tuple[Any, str]], events: Any, domain: Domain) -> None:
    rows = events if isinstance(events, list) else events.to_pylist()
    wanted = sorted(brute_force(filters, rows, domain)) if filters else []
    _same(law, matcher.match(events).pairs(), wanted, dict(filters), rows)


def _same(
    law: str, pairs: Iterable[tuple[int, Any]], wanted: list[tuple[int, Any]], filters: dict[Any, str], rows: list[Any]
) -> None:
    found = sorted(pairs, key=lambda pair: (pair[0], str(type(pair[1])), pair[1]))
    if found == wanted:
        return
    twice = next((pair for pair, after in pairwise(found) if pair == after), None)
    wrong = twice or next(iter(sorted(set(found) ^ set(wanted), key=str)))
    what = "was found twice" if twice else "was found and should not be" if wrong in found else "was not found"
    event, id_ = wrong
    shown = rows[event] if 0 <= event < len(rows) else "no such event"
    raise NonConformance(
        f"a matcher {law}: the match of event {event} and subscription {id_!r} {what}"
        f" ({len(found):,} found, {len(wanted):,} wanted)\n  filter: {filters.get(id_)}\n  event: {shown}"
    )
