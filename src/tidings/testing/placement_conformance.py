"""What every placement must do: a suite that any is held to, those of others too.

`check_placement` takes a placement's name, or anything with `adapt`, `place` and `route`:

>>> from tidings.testing import check_placement
>>> check_placement("digests", cases=1)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.syntax.writer import literal_to_sql
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, read_events
from tidings.model.types import STRING
from tidings.systems.interface import EVERYWHERE, Placed, Placement, Routed, channels_of, placement_named
from tidings.systems.meeting import met, needed
from tidings.systems.sharding import consulted, shards_of
from tidings.systems.statistics import Statistics, statistics_of
from tidings.testing import workloads
from tidings.testing.matcher_conformance import NonConformance
from tidings.testing.oracle import brute_force
from tidings.testing.random_cases import make_case
from tidings.testing.random_data import NAMESPACES, make_document, make_path
from tidings.testing.xml_workloads import dtd
from tidings.xml.path_parser import with_uris


@dataclass(frozen=True, eq=False)
class _Given:
    """Subscriptions and events, with their matches as the oracle has them, and statistics of some of them."""

    name: str
    texts: list[str]
    rows: list[dict[str, Any]]
    filters: FilterTable
    events: EventBatch
    wanted: list[tuple[int, int]]
    statistics: Statistics

    def shown(self, event: int, subscription: int) -> str:
        return f"\n  case: {self.name}\n  filter: {self.texts[subscription]}\n  event: {self.rows[event]}"


def check_placement(placement: str | Placement, *, cases: int = 10, partitions: int = 4, **options: Any) -> None:
    """Raise `NonConformance` unless the placement keeps every law; `cases` is how many are made up."""
    tried = placement_named(placement) if isinstance(placement, str) else placement
    for given in _cases(cases):
        view = tried.adapt(given.statistics, partitions=partitions, **options)
        placed, routed = tried.place(given.filters, view), tried.route(given.events, view)
        _well_formed(given, view, placed, routed)
        _rendezvous(given, view, placed, routed)
        _equal_to_the_oracle(given, view, placed, routed)
        _unsubscribed(tried, given, view, placed)
        _written_and_read(tried, given, view, placed, routed)
        _view_changed(tried, given, view, partitions, options)


# ---------------------------------------------------------------------- laws


def _well_formed(given: _Given, view: Any, placed: Placed, routed: Routed) -> None:
    """Every satisfiable subscription is held somewhere, others nowhere; keys have owners, and are there once."""
    held = set(placed.subscriptions.tolist())
    satisfiable = set(given.filters.box_filter.tolist())
    for row in sorted(held ^ satisfiable):
        what = "is held, and nothing satisfies it" if row in held else "is held nowhere"
        raise NonConformance(f"a placement holds every subscription that can match: {given.texts[row]} {what}")
    for keys in (placed.keys, routed.keys):
        owners = view.owners(keys)
        if len(owners) and (owners.min() < EVERYWHERE or owners.max() >= view.partitions):
            raise NonConformance("a placement gives every key an owner: one is past its partitions")
        if len(keys) and channels_of(keys).max() >= view.channels:
            raise NonConformance("a placement's keys are in its channels: one is past them")
    whose = placed.subscriptions if placed.conjunctions is None else placed.conjunctions
    for what, rows, keys in (("holds a copy", whose, placed.keys), ("routes a visit", routed.events, routed.keys)):
        if len(np.unique(np.stack([rows, keys]), axis=1).T) < len(rows):
            raise NonConformance(f"a placement {what} once: some row has one key twice")


def _rendezvous(given: _Given, view: Any, placed: Placed, routed: Routed) -> None:
    """Who matches meets: at one key, or in every list of a conjunction."""
    visited: dict[int, set[int]] = {event: set() for event in range(given.events.count)}
    for event, key in zip(routed.events.tolist(), routed.keys.tolist(), strict=True):
        visited[event].add(key)
    if placed.conjunctions is None:
        held = _by_row(placed.subscriptions, placed.keys)
        shards = _by_row(placed.subscriptions, shards_of(placed.keys, view))
        consulted_by = _by_row(*consulted(routed, view))
        for event, subscription in given.wanted:
            common = len(visited[event] & held[subscription])
            if common != 1:
                raise NonConformance(
                    f"an event and a subscription that it satisfies meet at one key: these meet at {common}"
                    + given.shown(event, subscription)
                )
            if len(consulted_by[event] & shards[subscription]) != 1:
                raise NonConformance(
                    "a subscription is in one of the shards that an event consults which satisfies it: this is in two"
                    + given.shown(event, subscription)
                )
        return
    held = _by_row(placed.conjunctions, placed.keys)
    lists = needed(placed, given.filters.boxes)
    boxes = _by_row(given.filters.box_filter.astype(np.int64), np.arange(given.filters.boxes))
    for event, subscription in given.wanted:
        full = [box for box in boxes[subscription] if len(visited[event] & held[box]) == lists[box]]
        if not full:
            raise NonConformance(
                "an event meets a conjunction that it satisfies in each of its lists: this one in none that is full"
                + given.shown(event, subscription)
            )


def _equal_to_the_oracle(given: _Given, view: Any, placed: Placed, routed: Routed) -> None:
    _same("finds what the oracle finds", given, met(given.filters, given.events, view, placed, routed).pairs)


def _unsubscribed(tried: Placement, given: _Given, view: Any, placed: Placed) -> None:
    """Where a subscription is held follows from itself: knowing it is enough to remove all of it."""
    if not given.texts:
        return
    left = Counter(zip(placed.subscriptions.tolist(), placed.keys.tolist(), strict=True))
    for start in range(0, len(given.texts), 7):
        alone = compile_filters(given.texts[start : start + 7], given.filters.domain)
        mine = tried.place(alone, view)
        left.subtract(zip((mine.subscriptions + start).tolist(), mine.keys.tolist(), strict=True))
    for (row, _), count in left.items():
        if count:
            raise NonConformance(
                f"what is unsubscribed leaves nothing: a copy is {'left' if count > 0 else 'missing'}\n  filter: "
                f"{given.texts[row]}"
            )


def _written_and_read(tried: Placement, given: _Given, view: Any, placed: Placed, routed: Routed) -> None:
    again = tried.View.from_dict(json.loads(json.dumps(view.to_dict())))
    same = (
        again.epoch == view.epoch
        and np.array_equal(tried.place(given.filters, again).keys, placed.keys)
        and np.array_equal(tried.route(given.events, again).keys, routed.keys)
        and np.array_equal(again.owners(routed.keys), view.owners(routed.keys))
    )
    if not same:
        raise NonConformance(f"a View that is written and read places and routes as before\n  case: {given.name}")


def _view_changed(tried: Placement, given: _Given, old: Any, partitions: int, options: dict[str, Any]) -> None:
    """Register under old and new, switch, drain, drop: at no time does an event miss or repeat a match."""
    all_of_it = statistics_of(given.filters, given.events)
    new = tried.adapt(all_of_it, partitions=partitions + 1, epoch=old.epoch + 1, **options)
    if new.epoch <= old.epoch:
        raise NonConformance(f"a View that follows another has a later epoch: {new.epoch} follows {old.epoch}")
    registered: dict[int, Placed] = {old.epoch: tried.place(given.filters, old)}
    for step, in_force in (("before", old), ("registered", old), ("switched", new), ("dropped", new)):
        if step == "registered":
            registered[new.epoch] = tried.place(given.filters, new)
        if step == "dropped":
            del registered[old.epoch]
        for view in [old, new] if step == "switched" else [in_force]:  # while the old epoch's events drain
            found = met(
                given.filters, given.events, view, registered[view.epoch], tried.route(given.events, view)
            ).pairs
            _same(f"loses nothing across a change of view ({step})", given, found)


# ---------------------------------------------------------------------- cases


@lru_cache(maxsize=4)
def _cases(cases: int) -> tuple[_Given, ...]:
    """The same for every placement that is tried: the oracle takes longer than they do."""
    return tuple(_made_up(cases))


def _made_up(cases: int) -> Iterator[_Given]:
    for seed in range(cases):
        case = make_case(Random(seed), events=20, filters=40)
        texts = [text for _, text in case.readable()]
        yield _given(f"generated {seed}", texts, case.events, case.domain, seed)
    yield _given("odd ones", _ODD, _ODD_EVENTS, _ODD_DOMAIN, 0)
    yield from _over_xml(cases)
    for name, made in workloads.WORKLOADS.items():
        workload = made(subscriptions=20 * cases + 20, events=5 * cases + 10)
        texts, rows = workload.filters.to_pylist(), workload.events.to_pylist()
        yield _given(f"workload {name}", texts, rows, workload.domain, len(name))


def _over_xml(cases: int) -> Iterator[_Given]:
    """Paths alone and mixed with other conditions, over documents that are NULL or none, too."""
    for seed in range(1, 1 + cases):
        random = Random(seed)
        paths = [literal_to_sql(with_uris(make_path(random), NAMESPACES), STRING) for _ in range(60)]
        asked = [f"xpath_boolean({random.choice(('body', 'head'))}, {path})" for path in paths]
        texts = [
            form.format(asked[-number], asked[number]) for number, form in enumerate([*_WITH_PATHS * 5, *["{1}"] * 30])
        ]
        rows = [{"n": number % 7, "body": make_document(random), "head": make_document(random)} for number in range(12)]
        rows += [{"n": 1, "body": None, "head": rows[0]["head"]}, {"n": None, "body": "<a>", "head": None}]
        yield _given(f"paths over XML {seed}", texts, rows, _XML_DOMAIN, seed)
    workload = dtd(queries=20 * cases + 20, documents=5 * cases + 10)
    texts = [f"xpath_boolean(body, {literal_to_sql(path, STRING)})" for path in workload.queries] + ["n < 3"]
    rows = [{"n": 1, "body": document.decode(), "head": None} for document in workload.documents]
    yield _given("workload dtd", texts, rows, _XML_DOMAIN, 1)


def _given(name: str, texts: list[str], rows: list[dict[str, Any]], domain: Domain, seed: int) -> _Given:
    """The View has seen about half of the subscriptions, and half of the events or, in turn, none."""
    filters, events = compile_filters(texts, domain), read_events(rows, domain)
    seen = compile_filters(texts[::2] or texts, domain)
    known = events.part(0, max(1, events.count // 2)) if seed % 3 else None
    wanted = sorted(brute_force(list(enumerate(texts)), rows, domain))
    return _Given(name, texts, rows, filters, events, wanted, statistics_of(seen, known, subscriptions=len(texts)))


_XML_DOMAIN = Domain("xml", [Attribute("n", "int"), Attribute("body", "string"), Attribute("head", "string")])
_WITH_PATHS = [
    "{0} AND n < 4", "{0} AND {1}", "{0} OR {1}", "NOT {0}", "({0} AND n = 1) OR ({0} AND n = 2)",
    "({0} AND n = 1) OR ({1} AND n > 2)",
]  # fmt: skip
_ODD_DOMAIN = Domain(
    "odd",
    [Attribute("a", "int", min=0, max=9), Attribute("s", "string"), Attribute("x", "double"),
     Attribute("b", "boolean"), Attribute("t", "array<int>")],
)  # fmt: skip
_ODD = [
    "a >= 2 AND a < 5", "a = 3", "a != 3", "a IN (1, 5, 99)", "a > 100 OR a < -100", "TRUE", "FALSE", "a = 1 AND a = 2",
    "a IS NULL", "a IS NULL OR a = 4", "a IS NOT NULL", "s = 'b'", "s LIKE 'b%'", "s LIKE '%b%'",
    "s >= 'b' AND s < 'c'", "s IS NULL AND x > 1", "x * 2 > a", "x > 1e308", "x = 'NaN'", "b", "NOT b", "b IS NULL",
    "array_contains(t, 3)",
    "t IS NULL", "a = 3 AND s = 'b' AND x < 2", "(a = 1 AND s = 'a') OR (a = 2 AND x > 5)", "s IN ('a', 'zz', '')",
    "a BETWEEN -5 AND 25", "a = 3 AND s = 'b'", "s = 'b' AND a = 3",
]  # fmt: skip
_ODD_EVENTS: list[dict[str, Any]] = [
    {"a": a, "s": s, "x": x, "b": b, "t": t}
    for a, s, x, b, t in [
        (3, "b", 1.5, True, [3]), (None, None, None, None, None), (-200, "", -1e308, False, []),
        (10**9, "zz", float("inf"), True, [1, None]), (4, "bb", float("nan"), None, [3, 3]), (1, "a", 0.0, False, None),
        (2, "日本", 5.5, True, [2]), (5, "c", 1.7e308, None, [9]), (9, "b", -0.0, True, None),
        (0, None, 2.0, False, [3]),
    ]
]  # fmt: skip


def _by_row(rows: Any, keys: Any) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for row, key in zip(rows.tolist(), keys.tolist(), strict=True):
        found.setdefault(row, set()).add(key)
    return found


def _same(law: str, given: _Given, found: list[tuple[int, int]]) -> None:
    if found == given.wanted:
        return
    counts = Counter(found)
    counts.subtract(given.wanted)
    (event, subscription), count = next((pair, count) for pair, count in sorted(counts.items()) if count)
    what = "was not found" if count < 0 else "was found too often, or should not be"
    raise NonConformance(
        f"a placement {law}: the match of event {event} and subscription {subscription} {what}"
        f" ({len(found):,} found, {len(given.wanted):,} wanted)" + given.shown(event, subscription)
    )
