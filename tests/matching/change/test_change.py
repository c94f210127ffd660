"""A matcher that changes is, at every moment, the matcher of the subscriptions it then has."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.waiting import LAST_RESORT_SECONDS

from tidings import Attribute, Domain, FilterError, Matcher, Subscription, SubscriptionError
from tidings.matching import matcher
from tidings.matching.change import version
from tidings.matching.change.segment import IdLookup
from tidings.testing import workloads
from tidings.testing.oracle import brute_force
from tidings.testing.strategies import Case, cases

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


@pytest.fixture
def merging_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small limits that every few changes something is merged or indexed at once, and segments have guests."""
    monkeypatch.setattr(matcher, "DELTA", 40)
    monkeypatch.setattr(version, "LARGE", 30)
    monkeypatch.setattr(version, "HOST", 1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("known", [True, False])
def test_adds_removes_and_upserts_between_matches_agree_with_a_model(seed: int, known: bool) -> None:
    _follow_a_model(Random(seed), known, steps=25)


@pytest.mark.parametrize("seed", range(4))
def test_changes_agree_with_a_model_while_parts_are_merged_in_the_background(seed: int, merging_often: None) -> None:
    _follow_a_model(Random(seed), known=seed % 2 == 0, steps=40)


def _follow_a_model(random: Random, known: bool, steps: int) -> None:
    model: dict[Any, str] = {number: _filter(random) for number in range(60)}
    matcher = Matcher(dict(model), DOMAIN if known else None)
    new = 1000
    for _ in range(steps):
        kind = random.choice(("add", "add", "remove", "upsert", "match", "match", "replace", "settle"))
        if kind == "add":
            fresh = {new + k: _filter(random) for k in range(random.randint(1, 40))}
            new += len(fresh)
            matcher.add(fresh)
            model |= fresh
        elif kind == "remove" and model:
            gone = random.sample(sorted(model), random.randint(1, len(model)) // random.randint(1, 5))
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
        elif kind == "settle":
            matcher.settle()
        else:
            assert set(matcher.match(EVENTS).pairs()) == _expected(model)
        assert len(matcher) == len(model)
    assert set(matcher.match(EVENTS).pairs()) == _expected(model)
    matcher.settle()
    assert set(matcher.match(EVENTS).pairs()) == _expected(model)


@settings(max_examples=12, deadline=None)
@given(cases(events=10, filters=12), st.integers(1, 12), st.integers(0, 12))
def test_what_is_added_is_found_as_the_oracle_finds_it_fresh_and_merged(case: Case, at_once: int, first: int) -> None:
    readable = case.readable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version, "HOST", 1)
        changing = Matcher(readable[:first], case.domain)
        for start in range(first, len(readable), at_once):
            changing.match(case.events[:1])
            changing.add(readable[start : start + at_once])
    expected = brute_force(readable, case.events, case.domain)
    assert sorted(changing.match(case.events).pairs()) == sorted(expected)
    merged = Matcher([], case.domain)
    merged._version = version.at_rest(changing._version, changing._sample)
    assert sorted(merged.match(case.events).pairs()) == sorted(expected)


@pytest.mark.parametrize(
    "name", [pytest.param("alerts", marks=pytest.mark.long), pytest.param("strings", marks=pytest.mark.long), "mixed"]
)
def test_guests_of_a_segment_are_found_as_if_they_had_been_there_from_the_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many that groups are full, and texts come that the segment does not know."""
    monkeypatch.setattr(version, "HOST", 1)
    monkeypatch.setattr(matcher, "GUESTS_SHARE", 1 / 8)
    workload = getattr(workloads, name)(subscriptions=6_000, events=60)
    table = pa.table({"id": list(range(6_000)), "filter": workload.filters})
    changing = Matcher(table.slice(0, 2_000), workload.domain)
    changing.match(workload.events.slice(0, 50))
    for start in range(2_000, 6_000, 400):
        changing.add(table.slice(start, 400))
        changing.remove(range(start - 2_000, start - 1_900))
    newest = changing._version.delta
    assert newest is not None
    assert newest.guests is not None
    assert newest.guests.table.size > 1_000
    gone = {id_ for start in range(0, 4_000, 400) for id_ in range(start, start + 100)}
    kept = table.filter(pa.array([id_ not in gone for id_ in range(6_000)]))
    expected = set(Matcher(kept, workload.domain).match(workload.events).pairs())
    assert set(changing.match(workload.events).pairs()) == expected


def test_guests_of_a_large_group_lie_in_its_steps_or_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow ranges, so many at one place that their step is full, and some that are wider than any that was there."""
    monkeypatch.setattr(version, "HOST", 1)
    monkeypatch.setattr(matcher, "GUESTS_SHARE", 1 / 8)
    random = Random(7)
    lows = [random.uniform(0, 90) for _ in range(900)] + [40.0 + number / 100 for number in range(90)]
    ranges = [(low, low + 9) for low in lows] + [(low, low + 60) for low in range(0, 50, 5)]
    every = {number: f"n = 1 AND x BETWEEN {low} AND {high}" for number, (low, high) in enumerate(ranges)}
    events = [{"n": number % 40, "x": random.uniform(-1, 101)} for number in range(2_000)]
    changing = Matcher(_first(every, 600), DOMAIN)
    changing.match(events)
    for count in range(650, 1_001, 50):
        changing.add({id_: every[id_] for id_ in range(count - 50, count)})
        afresh = Matcher(_first(every, count), DOMAIN)
        assert set(changing.match(events).pairs()) == set(afresh.match(events).pairs())
    newest = changing._version.delta
    assert newest is not None
    guests = newest.guests
    assert guests is not None
    roomy = guests.host.roomy
    assert (guests.step_ends - roomy.step_ends).sum() > 150
    assert (guests.table.ends - roomy.ends)[roomy.cells.group_steps >= 0].sum() > 10


def _first(every: dict[int, str], count: int) -> dict[int, str]:
    return {id_: every[id_] for id_ in range(count)}


def test_who_came_as_a_guest_while_its_segment_was_being_merged_moves_to_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(version, "HOST", 1)
    changing = Matcher({number: f"n = {number % 5} AND x > 0" for number in range(40)}, DOMAIN)
    changing.match(EVENTS[:1])
    merge = matcher.merged

    def merged_while_one_is_added(*given: Any) -> Any:
        changing.add({100: "n = 1 AND x < 1"})
        return merge(*given)

    monkeypatch.setattr(matcher, "merged", merged_while_one_is_added)
    changing.remove(range(30))  # so many are dead that the segment is merged
    changing.settle()
    assert {id_ for _, id_ in changing.match(EVENTS[:1]).pairs()} == {31, 36, 100}


@pytest.mark.parametrize("name", ["bluedove", "alerts", "strings", "mixed"])
def test_a_workload_that_is_added_bit_by_bit_is_found_as_one_that_is_there_from_the_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "DELTA", 350)
    workload = getattr(workloads, name)(subscriptions=900, events=40)
    table = pa.table({"id": list(range(900)), "filter": workload.filters})
    changing = Matcher(table.slice(0, 300), workload.domain)
    for start in range(300, 900, 60):
        changing.match(workload.events.slice(0, 5))
        changing.add(table.slice(start, 60))
        changing.remove(range((start - 300) // 2, (start - 240) // 2))
    expected = set(Matcher(table.slice(300), workload.domain).match(workload.events).pairs())
    assert set(changing.match(workload.events).pairs()) == expected
    changing.settle()
    assert set(changing.match(workload.events).pairs()) == expected


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
        (lambda matcher: matcher.add([("c", "TRUE"), ("a", "TRUE")]), "'a' exists already"),
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


@pytest.mark.parametrize("text", ["x > 0", "n = 1 AND x > 0"])
def test_a_match_sees_the_changes_before_it_and_a_whole_state_while_parts_are_merged(
    text: str, merging_often: None
) -> None:
    """Of the states that there were while a match went on, it finds exactly one's subscriptions."""
    random = Random(1)
    changing = Matcher(dict.fromkeys(range(50), text), DOMAIN)
    changing.match(EVENTS[:1])
    states = [frozenset(range(50))]  # and of those the last that is sure to be there:
    reached = [0]
    failures: list[str] = []
    stop = threading.Event()

    def match() -> None:
        while not stop.is_set():
            first = reached[0]
            found = frozenset(id_ for _, id_ in changing.match(EVENTS[:1]).pairs())
            if found not in states[first:]:
                failures.append(f"after state {first}: {sorted(found)}")

    threads = [threading.Thread(target=match) for _ in range(2)]
    for thread in threads:
        thread.start()
    new = 1000
    for _ in range(100):
        present = sorted(states[-1])
        gone = random.sample(present, min(len(present), random.randint(0, 12)))
        fresh = list(range(new, new + random.randint(0, 12)))
        new += 12
        changes = (
            (states[-1] | set(fresh), changing.add, dict.fromkeys(fresh, text)),
            ((states[-1] | set(fresh)) - set(gone), changing.remove, gone),
        )
        for after, change, what in changes:
            states.append(after)
            change(what)
            reached[0] = len(states) - 1
    stop.set()
    for thread in threads:
        thread.join()
    changing.settle()
    assert not failures
    assert {id_ for _, id_ in changing.match(EVENTS[:1]).pairs()} == states[-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_goes_wrong_in_the_background_is_raised_by_settle_and_matching_stays_right(
    merging_often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = Matcher(dict.fromkeys(range(50), "x > 0"), DOMAIN)
    changing.match(EVENTS[:1])
    with monkeypatch.context() as broken:
        broken.setattr(matcher, "merged", lambda *_: 1 / 0)
        for k in range(100, 150):
            changing.add({k: "x > 0"})
        with pytest.raises(RuntimeError, match="could not be merged: division by zero"):
            changing.settle()
    assert len(changing.match(EVENTS[:1])) == 100
    changing.remove([0])
    changing.settle()
    assert changing.stats().segments < 3
    assert len(changing.match(EVENTS[:1])) == 99


def test_no_thread_is_left_when_all_is_merged_and_none_keeps_a_matcher_alive(merging_often: None) -> None:
    changing = Matcher(dict.fromkeys(range(50), "x > 0"), DOMAIN, threads=1)
    for k in range(100, 200):
        changing.add({k: "x > 0"})
    changing.settle()
    assert not [thread for thread in threading.enumerate() if thread.name == "tidings-merge"]
    gone = weakref.ref(changing)
    del changing
    gc.collect()
    assert gone() is None


def test_a_process_that_ends_while_parts_are_merged_ends_well() -> None:
    script = (
        "from tidings import Matcher, Domain, Attribute\n"
        "from tidings.matching import matcher\n"
        "matcher.DELTA = 64\n"
        "matcher = Matcher([], Domain('d', [Attribute('x', 'double')]))\n"
        "matcher.add({k: f'x > {k}' for k in range(2000)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LAST_RESORT_SECONDS)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


@given(st.sets(st.integers(-(2**63), 2**63 - 1)) | st.sets(st.text(min_size=1)))
def test_an_id_is_found_where_it_is_and_no_other_is(ids: set[Any]) -> None:
    listed = sorted(ids)
    half = listed[::2]
    type_ = pa.string() if listed and isinstance(listed[0], str) else pa.int64()
    found = IdLookup(pa.array(half, type_)).rows(pa.array(listed, type_))
    assert found.tolist() == [half.index(id_) if id_ in half else -1 for id_ in listed]


def test_a_removed_subscription_can_be_added_again_and_explained_by_its_new_filter(merging_often: None) -> None:
    changing = Matcher(dict.fromkeys(range(40), "x > 0"), DOMAIN)
    changing.remove([7])
    with pytest.raises(SubscriptionError, match="no subscription '7'"):
        changing.explain(EVENTS[0], 7)
    changing.add({7: "x > 3"})
    changing.upsert(dict.fromkeys(range(8, 20), "x > 9"))
    for _ in range(2):
        assert changing.explain(EVENTS[0], 7).text == "x > 3"
        assert changing.explain(EVENTS[0], 8).text == "x > 9"
        assert changing.explain(EVENTS[0], 30).text == "x > 0"
        changing.settle()


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


@pytest.mark.parametrize("first", [[], EVENTS[:1]])
def test_what_is_added_after_a_first_batch_of_any_size_is_found(first: list[Any]) -> None:
    matcher = Matcher({1: "x > 100"}, DOMAIN)
    matcher.match(first)
    matcher.upsert({2: "x > 1", 3: "s = 'a'"})
    matcher.settle()
    assert set(matcher.match(EVENTS).pairs()) == _expected({1: "x > 100", 2: "x > 1", 3: "s = 'a'"})
