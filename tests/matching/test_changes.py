"""A matcher that changes is, at every moment, the matcher of the subscriptions it then has."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

from tidings import Attribute, Domain, FilterError, Matcher, Subscription, SubscriptionError
from tidings.testing.oracle import brute_force

DOMAIN = Domain("d", [Attribute("s", "string"), Attribute("x", "double"), Attribute("n", "bigint")])
EVENTS = [{"s": s, "x": x, "n": n} for s in ("a", "b", None) for x in (0.5, 5.0, 50.0) for n in (1, 7)]


def _filter(random: Random) -> str:
    low = random.randint(0, 40)
    return random.choice(
        [f"s = '{random.choice('abc')}' AND x > {low}.5", f"x >= {low} AND x < {low + 20}",
         f"n = {random.randint(1, 8)}", f"n != {random.randint(1, 8)} OR s IS NULL", f"x * 2 > {low} AND n = 7", "TRUE"]
    )  # fmt: skip


def _expected(model: dict[Any, str]) -> set[tuple[int, Any]]:
    return set(brute_force(list(model.items()), EVENTS, DOMAIN))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("known", [True, False])
def test_adds_removes_and_upserts_between_matches_agree_with_a_model(seed: int, known: bool) -> None:
    random = Random(seed)
    model: dict[Any, str] = {number: _filter(random) for number in range(60)}
    matcher = Matcher(dict(model), DOMAIN if known else None)
    new = 1000
    for _ in range(25):
        kind = random.choice(("add", "remove", "upsert", "match", "match", "replace"))
        if kind == "add":
            fresh = {new + k: _filter(random) for k in range(random.randint(1, 40))}
            new += len(fresh)
            matcher.add(fresh)
            model |= fresh
        elif kind == "remove" and model and matcher.domain is not None:
            gone = random.sample(sorted(model), random.randint(1, len(model)))
            matcher.remove(gone)
            model = {id_: text for id_, text in model.items() if id_ not in gone}
        elif kind == "upsert":
            changed = {random.choice([*model, new + k]): _filter(random) for k in range(5)}
            new += 5
            matcher.upsert(changed)
            model |= changed
        elif kind == "replace" and random.random() < 0.3:
            model = {number: _filter(random) for number in range(random.randint(0, 30))}
            matcher.replace_all(dict(model))
        else:
            assert set(matcher.match(EVENTS).pairs()) == _expected(model)
        assert len(matcher) == len(model)
    assert set(matcher.match(EVENTS).pairs()) == _expected(model)


def test_matches_keep_to_what_was_matched_against() -> None:
    matcher = Matcher([("a", "x > 1"), ("b", "x > 2")], DOMAIN)
    matches = matcher.match(EVENTS[2:3])
    matcher.remove(["a"])
    matcher.upsert([("b", "FALSE"), ("c", "TRUE")])
    assert matches.pairs() == [(0, "a"), (0, "b")]
    assert matcher.match(EVENTS[2:3]).pairs() == [(0, "c")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda matcher: matcher.add([("c", "TRUE"), ("a", "TRUE")]), "'a' is there already"),
        (lambda matcher: matcher.remove(["a", "zz"]), "no subscription 'zz'"),
        (lambda matcher: matcher.upsert([("c", "TRUE"), ("d", "prise > 1")]), "unknown attribute 'prise'"),
        (lambda matcher: matcher.add([(5, "TRUE")]), "not of the type of the others"),
        (lambda matcher: matcher.replace_all([("c", "x >")]), "something is missing"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(change: Any, message: str) -> None:
    matcher = Matcher([("a", "x > 1"), ("b", "x > 2")], DOMAIN)
    before = matcher.match(EVENTS).pairs()
    with pytest.raises((SubscriptionError, FilterError), match=message):
        change(matcher)
    assert matcher.match(EVENTS).pairs() == before
    assert len(matcher) == 2


def test_validity_is_kept_through_changes() -> None:
    matcher = Matcher([Subscription("a", "TRUE", valid_from=5)], DOMAIN)
    matcher.match(EVENTS[:1])
    matcher.add([Subscription("b", "TRUE", valid_to=5), Subscription("c", "TRUE")])
    matcher.add([("d", "TRUE")])
    assert matcher.match(EVENTS[:2], positions=[4, 5]).pairs() == [
        (0, "b"),
        (0, "c"),
        (0, "d"),
        (1, "a"),
        (1, "c"),
        (1, "d"),
    ]


def test_threads_that_match_while_others_change_see_whole_states() -> None:
    """Changes swap two halves of the table at once: a match finds one half or the other, never a mixture."""
    left = {f"left{k}": "x > 0" for k in range(50)}
    right = {f"right{k}": "x > 0" for k in range(50)}
    matcher = Matcher(left, DOMAIN)
    matcher.match(EVENTS[:1])
    seen: list[set[str]] = []
    stop = threading.Event()

    def match() -> None:
        while not stop.is_set():
            seen.append({str(id_) for _, id_ in matcher.match(EVENTS[:1]).pairs()})

    threads = [threading.Thread(target=match) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        matcher.replace_all(right if turn % 2 == 0 else left)
    stop.set()
    for thread in threads:
        thread.join()
    assert seen
    assert all(found in (set(left), set(right)) for found in seen)


def test_stats_tell_engines_bytes_and_candidates() -> None:
    matcher = Matcher([(k, f"s = 'a' AND x > {k}") for k in range(100)], DOMAIN)
    matcher.match(EVENTS)
    stats = matcher.stats()
    assert (stats.subscriptions, stats.segments, stats.events) == (100, 1, len(EVENTS))
    assert stats.candidates >= stats.matched > 0
    assert stats.bytes > 0
    assert "cells" in str(stats)


def test_two_threads_find_what_one_finds() -> None:
    subscriptions = [(k, f"x > {k % 60} AND n = {k % 9}") for k in range(500)]
    events = [{"s": "a", "x": float(k % 70), "n": k % 9} for k in range(5000)]
    one, two = (Matcher(subscriptions, DOMAIN, threads=threads).match(events) for threads in (1, 2))
    assert one.pairs() == two.pairs()
    assert len(one) > 0
