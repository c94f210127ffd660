"""A history in which every promise is kept passes; for each promise, one in which it is broken is caught and told."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from .checker import check, check_files
from .judge import holds, sql
from .records import (
    Ack,
    Change,
    ClockBehind,
    Dead,
    DeadFor,
    Delivery,
    Fault,
    Limit,
    LogEnds,
    Logged,
    Opened,
    Phase,
    Publish,
    Record,
    Sample,
    Unserved,
    Writer,
    from_line,
    to_line,
)
from .simulated import CORRUPTIONS, valid_history

DEAR = [">", "price", 10]


def event(
    number: int, price: int, *, position: int | None, outcome: Any = "acked", sent: float | None = None
) -> Publish:
    """Publisher p's event of this number, sent and answered at about that time."""
    sent = float(number) if sent is None else sent
    answered = None if outcome == "unknown" else sent + 0.5
    return Publish("p", number, "a", "quotes", "/p", str(number), {"price": price}, sent, answered, outcome, position)


def delivery(number: int, price: int, position: int, *, at: float = 50.0, request: str = "r1") -> Delivery:
    return Delivery("s", "a", "pull", request, at - 1, at, position, "/p", str(number), {"price": price})


def logged(number: int, price: int, position: int) -> Logged:
    return Logged(position, "a", "quotes", "/p", str(number), {"price": price})


def changed_at(moment: float, action: Any, **fields: Any) -> Change:
    return Change(action, "s", "a", "quotes", moment, moment + 0.1, "acked", **fields)


CREATED = Change("create", "s", "a", "quotes", 0.1, 0.2, "acked", "price > 10", DEAR, filter_from=0)
CLEAN: list[Record] = [
    CREATED,
    event(1, 20, position=0),
    event(2, 5, position=1),
    event(3, 30, position=None, outcome="unknown"),
    event(3, 30, position=2, sent=4),
    event(5, 40, position=None, outcome="unknown"),
    event(6, 50, position=3),
    event(7, 60, position=None, outcome="refused"),
    delivery(1, 20, 0),
    delivery(1, 20, 0, at=51, request="r2"),  # not acknowledged in between
    delivery(3, 30, 2, at=51, request="r2"),
    Ack("s", 2, 52, 53, "acked"),
    Dead("s", 3, "410 Gone"),
    *(logged(number, price, position) for position, (number, price) in enumerate([(1, 20), (2, 5), (3, 30), (6, 50)])),
    LogEnds(0, 4),
    Fault("gateway killed", 3.4, 3.5, bound_seconds=60),
    Limit("memory", 100),
    Sample("memory", 99, 1),
]


def lines(records: list[Record]) -> list[str]:
    return list(map(str, check(records).violations))


def without(*gone: Record) -> list[Record]:
    return [record for record in CLEAN if record not in gone]


def changed(record: Record, **fields: Any) -> list[Record]:
    assert record in CLEAN
    return [replace(one, **fields) if one == record else one for one in CLEAN]


def test_a_history_may_begin_where_the_clock_was_set_back() -> None:
    """Until an event with a right time follows, nobody knows how old such events are."""
    early = replace(CREATED, subscription="t", sent=6.6, answered=6.7, filter_from=4, replay_from=1, since=6.6)
    wrong = "I2 subscription t: history since 0.0 s before it was asked for begins at position 1"
    begins_too_early = [
        any(line.startswith(wrong) for line in lines([*CLEAN, early, *behind]))
        for behind in ([], [ClockBehind(1.9, 6.6)], [ClockBehind(5.5, 6.6)], [ClockBehind(1.9, 2.5)])
    ]
    assert begins_too_early == [True, False, True, True]


def test_a_history_in_which_every_promise_is_kept_passes() -> None:
    with_recovery = [*CLEAN, event(8, 1, position=4), logged(8, 1, 4), LogEnds(0, 5)]
    report = check(
        [
            *with_recovery,
            event(9, 99, position=5),
            logged(9, 99, 5),
            LogEnds(0, 6),
            delivery(9, 99, 5, at=54, request="r3"),
        ]
    )
    assert list(map(str, report.violations)) == []
    assert dict(report.outcomes) == {"acked": 6, "unknown": 1, "refused": 1}
    assert report.recoveries == {"gateway killed": pytest.approx(50.5)}


PLANTED: dict[str, tuple[list[Record], str]] = {
    "I1 a notification is lost": (
        without(delivery(3, 30, 2, at=51, request="r2")),
        "I1 event p#3 (a.quotes /p 3) at position 2 matches subscription s (price > 10, from 0) and was neither",
    ),
    "I1 a dead letter without a reason": (
        changed(Dead("s", 3, "410 Gone"), reason=" "),
        "I1 subscription s: the dead letter at position 3 has no reason",
    ),
    "I1 a subscription begins after events that were sent when it was there": (
        changed(CREATED, filter_from=1),
        "I1 subscription s: create was answered with position 1, but an event sent after the answer is at position 0",
    ),
    "I2 an event that does not match": (
        [*CLEAN, delivery(2, 5, 1, at=51.5)],
        "I2 subscription s got position 1 (/p 2), where its filter is (price > 10) and the event {'price': 5}",
    ),
    "I2 another tenant's subscription": (
        changed(delivery(1, 20, 0), tenant="b"),
        "I2 subscription s got position 0 (/p 1) as tenant b, and it is a's",
    ),
    "I2 another tenant's event": (
        [one if one != event(1, 20, position=0) else replace(one, tenant="b") for one in CLEAN],  # type: ignore[call-arg]
        "I2 subscription s got position 0 (/p 1), which nobody published to a.quotes; it is of b.quotes",
    ),
    "I2 an event that was changed on its way": (
        changed(delivery(1, 20, 0), event={"price": 21}),
        "I2 subscription s got position 0 (/p 1) as {'price': 21}, and {'price': 20} was published",
    ),
    "I2 while it is paused": (
        [*CLEAN, changed_at(45, "pause"), changed_at(60, "resume")],
        "I2 subscription s got position 0 (/p 1) while it was paused",
    ),
    "I2 after it is deleted": (
        [*CLEAN, changed_at(45, "delete")],
        "I2 subscription s got position 0 (/p 1) 3.900 s after it was deleted",
    ),
    "I2 by a filter that was changed before": (
        [*CLEAN, changed_at(0.3, "change", filter="price > 25", predicate=[">", "price", 25], filter_from=0)],
        "I2 subscription s got position 0 (/p 1), where its filter is (price > 25) and the event {'price': 20}",
    ),
    "I2 a new filter for events that were answered before": (
        [*CLEAN, changed_at(45, "change", filter="price > 10", predicate=DEAR, filter_from=2)],
        "I2 subscription s: change was answered with position 2, but an event answered before it was sent is at",
    ),
    "I3 delivered out of order": (
        changed(delivery(3, 30, 2, at=51, request="r2"), received=49.0, asked=48.0),
        "I3 subscription s: got #1 of publisher p (position 0) after #3 (position 2)",
    ),
    "I3 positions out of order": (
        changed(event(1, 20, position=0), position=9),
        "I3 publisher p: #1 is at position 9, and #2 at 1",
    ),
    "I2 history of before the time that was asked for": (
        [*CLEAN, replace(CREATED, subscription="t", sent=6.6, answered=6.7, filter_from=4, replay_from=1, since=6.6)],
        "I2 subscription t: history since 0.0 s before it was asked for begins at position 1, but position 2 is older",
    ),
    "I1 dead by retention, and there": (
        changed(Dead("s", 3, "410 Gone"), reason="removed by retention"),
        "I1 subscription s: position 3 is dead (removed by retention), and the log has it",
    ),
    "I1 dead for a reason that nothing explains": (
        [*CLEAN, DeadFor(["410 Done", "the mailbox was full"])],
        "I1 subscription s: position 3 is dead (410 Gone), and nothing was done that explains it",
    ),
    "I1 a subscription has failed": (
        [*CLEAN, changed_at(60, "fail", filter="its pattern is too large")],
        "I1 subscription s has failed: its pattern is too large",
    ),
    "I6 acked with two bodies": (
        [*CLEAN, event(6, 51, position=3, sent=8)],
        "I6 event p#6 (a.quotes /p 6) was acked with two bodies: {'price': 50} and another",
    ),
    "I9 refused beside others": (
        [*CLEAN, Phase("alone", "a", 0, 3), Phase("beside", "a", 6.5, 9)],
        "I9 tenant a was not served event p#7 (a.quotes /p 7), refused, while others were at work",
    ),
    "I9 not answered beside others": (
        [*CLEAN, Phase("alone", "a", 0, 2.5), Phase("beside", "a", 2.8, 3.9)],
        "I9 tenant a was not served event p#3 (a.quotes /p 3), unknown, while others were at work",
    ),
    "I9 a pull fails beside others": (
        [*CLEAN, Phase("alone", "a", 0, 3), Phase("beside", "a", 6, 9), Unserved("a", "pull", 6.5, 6.6, "503 busy")],
        "I9 tenant a was not served a pull while others were at work: 503 busy",
    ),
    "I9 slow beside others because nothing was answered at first": (
        [*CLEAN, Phase("alone", "a", 3.5, 4.5), Phase("beside", "a", 0, 0.9), event(20, 99, position=4, sent=3.6),
         logged(20, 99, 4), LogEnds(0, 5), delivery(20, 99, 4, at=3.9, request="r9"),
         event(30, 99, position=None, outcome="unknown", sent=0.5), event(30, 99, position=5, sent=2.5),
         delivery(30, 99, 5, at=2.6, request="r8")],
        "I9 tenant a: p99 from publishing to delivery was 2.10 s beside others and 0.30 s alone; 1.90 s are allowed",
    ),
    "I9 slow beside others": (
        [*CLEAN, Phase("alone", "a", 3.5, 4.5), Phase("beside", "a", 0, 3.2),
         event(20, 99, position=4, sent=3.6), logged(20, 99, 4), LogEnds(0, 5),
         delivery(20, 99, 4, at=3.9, request="r9")],
        "I9 tenant a: p99 from publishing to delivery was 49.00 s beside others and 0.30 s alone; 1.90 s are allowed",
    ),
    "I4 a gap in the log": (without(logged(2, 5, 1)), "I4 the log from 0 to 4 has nothing at position 1"),
    "I4 a wrong checksum": (changed(logged(2, 5, 1), intact=False), "I4 the log's checksum at position 1 is wrong"),
    "I4 an acked event cut off": (
        [replace(one, end=3) if isinstance(one, LogEnds) else one for one in without(logged(6, 50, 3))],
        "I4 event p#6 (a.quotes /p 6) was acked at position 3, where the log has nothing",
    ),
    "I4 another event in an acked one's place": (
        changed(logged(6, 50, 3), id="x"),
        "I4 event p#6 (a.quotes /p 6) was acked at position 3, where the log has /p x: {'price': 50}",
    ),
    "I4 one position for two events": (
        changed(event(6, 50, position=3), position=2),
        "I4 position 2 was answered for p#6 (a.quotes /p 6) and for p#3 (a.quotes /p 3)",
    ),
    "I5 twice in one answer": (
        [*CLEAN, delivery(1, 20, 0)],
        "I5 subscription s: position 0 is twice in one pull (r1)",
    ),
    "I5 again after it was acknowledged": (
        [*CLEAN, delivery(1, 20, 0, at=60, request="r3")],
        "I5 subscription s: position 0 came again after it was acknowledged",
    ),
    "I5 one event at two positions": (
        [*CLEAN, delivery(1, 20, 3, at=51.5, request="r3")],
        "I5 subscription s: /p 1 was delivered at positions 0 and 3",
    ),
    "I6 a lost answer, and two events": (
        [*without(LogEnds(0, 4)), logged(3, 30, 4), LogEnds(0, 5)],
        "I6 event p#3 (a.quotes /p 3), acked, is at positions 2, 4",
    ),
    "I6 refused, and there all the same": (
        [*without(LogEnds(0, 4)), logged(7, 60, 4), LogEnds(0, 5)],
        "I6 event p#7 (a.quotes /p 7) was refused, and is at position 4",
    ),
    "I7 too slow": (
        changed(Fault("gateway killed", 3.4, 3.5, bound_seconds=60), bound_seconds=30, over=2.5),
        "I7 fault 'gateway killed': recovered after 48.5 s, and 30 s are allowed",
    ),
    "I7 never": (
        changed(Fault("gateway killed", 3.4, 3.5, bound_seconds=60), over=9),
        "I7 fault 'gateway killed': nothing that was published after it was ever delivered",
    ),
    "I7 only by another channel": (
        changed(Fault("gateway killed", 3.4, 3.5, bound_seconds=60), over=2.5, channel="webhook"),
        "I7 fault 'gateway killed': nothing that was published after it was ever delivered",
    ),
    "I8 too large": (changed(Sample("memory", 99, 1), size=101), "I8 memory reached 101, and 100 are allowed"),
    "I8 said to be full when nothing waits": (
        [CREATED, event(1, 20, position=0), delivery(1, 20, 0), logged(1, 20, 0), LogEnds(0, 1),
         replace(event(8, 70, position=None, outcome="refused", sent=60), reason="9 events wait to be matched")],
        "I8 event p#8 (a.quotes /p 8) was refused (9 events wait to be matched) when all 1 events",
    ),
    "I8 never looked at": (without(Sample("memory", 99, 1)), "I8 memory has a limit of 100, and was never measured"),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught_and_told(bug: str) -> None:
    records, line = PLANTED[bug]
    found = lines(records)
    assert any(one.startswith(line) for one in found), found


def test_an_unknown_change_of_a_filter_makes_both_filters_possible() -> None:
    unknown = Change("change", "s", "a", "quotes", 0.3, None, "unknown", "price <= 10", ["<=", "price", 10])
    known = [one for one in lines([*CLEAN, unknown]) if not one.startswith("I7")]
    assert known == [], "what matches either may come, what matches both must: here none"
    assert not any(one.startswith("I2") for one in lines([*CLEAN, unknown, delivery(2, 5, 1, at=51.5)]))


def test_a_filter_changed_to_itself_holds_since_it_did() -> None:
    again = changed_at(45, "change", filter="price > 10", predicate=DEAR, filter_from=0)
    assert not any(one.startswith("I2") for one in lines([*CLEAN, again]))
    other = changed_at(45, "change", filter="price > 5", predicate=[">", "price", 5], filter_from=0)
    assert any(one.startswith("I2") for one in lines([*CLEAN, other]))


def test_what_retention_has_removed_is_owed_by_the_log_no_more_but_to_subscribers() -> None:
    kept = [one for one in CLEAN if not (isinstance(one, Logged) and one.position < 2) and one != LogEnds(0, 4)]
    assert any(one.startswith("I4") for one in lines([*kept, LogEnds(2, 4)]))
    retained = [*kept, LogEnds(2, 4, retained=True)]
    assert not any(one.startswith("I4") for one in lines(retained))
    missed = [one for one in retained if not (isinstance(one, Delivery) and one.position == 0)]
    assert any(one.startswith("I1") for one in lines(missed))


def test_a_dead_letter_may_have_any_reason_that_is_expected() -> None:
    found = {
        known: any(one.startswith("I1") for one in lines([*CLEAN, DeadFor(list(known))]))
        for known in ((), ("408",), ("408", "410"))
    }
    assert found == {(): True, ("408",): True, ("408", "410"): False}


def test_an_expired_subscription_is_owed_what_was_sent_before_its_time() -> None:
    lost = [one for one in CLEAN if not isinstance(one, Delivery | Ack | Dead)]
    assert any(one.startswith("I1") for one in lines([*lost, changed_at(60, "expire")]))
    assert not any(one.startswith("I1") for one in lines([*lost, changed_at(0.3, "expire")]))


def test_what_speaks_of_seconds_is_judged_only_where_that_is_asked_for() -> None:
    slow = [*CLEAN, Phase("alone", "a", 0, 3), Phase("beside", "a", 6.5, 9)]
    assert {one.invariant for one in check(slow).violations} == {"I7", "I9"}
    assert check(slow, timed=False).violations == []


def test_what_fails_when_something_breaks_is_no_refusal_beside_others() -> None:
    """The phase ends when something is broken on purpose: what was under way then fails later than that."""
    beside = [*CLEAN, Phase("alone", "a", 0, 2), Phase("beside", "a", 0.5, 2.9)]
    cut_off = replace(event(3, 30, position=None, outcome="unknown"), sent=2.8)
    requests: dict[float, list[Record]] = {
        over: [replace(cut_off, over=over), Unserved("a", "pull", 2.8, over, "")] for over in (2.85, 3.0)
    }
    found = {over: [one for one in lines([*beside, *more]) if "not served" in one] for over, more in requests.items()}
    assert (len(found[2.85]), found[3.0]) == (2, [])


def test_what_was_not_read_to_its_end_owes_nothing() -> None:
    lost = [one for one in CLEAN if not isinstance(one, Delivery | Ack | Dead)]
    for action in ("delete", "pause", "disable"):
        assert not any(one.startswith("I1") for one in lines([*lost, changed_at(60, action)]))


@given(st.integers(0, 10**9))
def test_any_history_of_a_service_that_keeps_its_promises_passes(seed: int) -> None:
    assert lines(valid_history(seed)) == []


@pytest.mark.parametrize("invariant", CORRUPTIONS)
@given(seed=st.integers(0, 10**9))
def test_any_single_corruption_is_caught_by_the_invariant_that_it_breaks(invariant: str, seed: int) -> None:
    draw = random.Random(seed)
    corrupted = draw.choice(CORRUPTIONS[invariant])(valid_history(seed), draw)
    assume(corrupted is not None)
    assert corrupted is not None
    found = check(corrupted).violations
    assert invariant in {one.invariant for one in found}, found


@pytest.mark.parametrize("corruptions", CORRUPTIONS.values())
def test_every_corruption_is_tried(corruptions: tuple[Any, ...]) -> None:
    """A corruption that never finds its place would catch nothing."""
    for corruption in corruptions:
        tried = [corruption(valid_history(seed), random.Random(seed)) for seed in range(8)]
        assert sum(one is not None for one in tried) >= 4, corruption.__name__


def test_records_are_read_back_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    writer = Writer(path)
    writer.write(*CLEAN)
    writer.close()
    assert [from_line(to_line(record)) for record in CLEAN] == CLEAN
    whole = check_files([path])
    with path.open("a") as file:
        file.write('{"kind": "Publish", "publ')
    assert check_files([path]) == whole
    assert whole.outcomes == check(CLEAN).outcomes


def test_the_command_prints_the_report_and_fails_where_there_are_violations(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    Writer(path).write(*PLANTED["I8 too large"][0])
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.service.history", str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "I8 memory reached 101" in done.stdout


@pytest.mark.parametrize(
    ("predicate", "record", "worth"),
    [
        ([">", "price", 3], {"price": 4}, True),
        ([">", "price", 3], {"price": None}, False),
        (["not", [">", "price", 3]], {}, False),
        (["or", [">", "price", 3], ["=", "symbol", "A"]], {"symbol": "A"}, True),
        (["and", [">", "price", 3], ["=", "symbol", "A"]], {"symbol": "A"}, False),
        (["not", ["and", [">", "price", 3], ["=", "symbol", "A"]]], {"symbol": "B"}, True),
        (["null", "price"], {"symbol": "B"}, True),
        (["in", "symbol", ["A", "B"]], {"symbol": "B"}, True),
        (["like", "symbol", "%b_"], {"symbol": "abbc"}, True),
        (["like", "symbol", "%b_"], {"symbol": "abbcd"}, False),
        (["like", "symbol", "a%%"], {"symbol": "a"}, True),
        (["like", "symbol", "%"], {}, False),
        (["like", "symbol", "%a" * 3], {"symbol": "xaya"}, False),
    ],
)
def test_the_judge_has_three_values(predicate: list[Any], record: dict[str, Any], worth: bool) -> None:
    assert holds(predicate, record) is worth


def test_a_predicate_is_written_as_a_filter() -> None:
    predicate = ["or", ["not", ["<=", "price", 1.5]], ["and", ["in", "symbol", ["it's", "B"]], ["null", "size"]]]
    assert sql(predicate) == "(NOT (price <= 1.5)) OR ((symbol IN ('it\\'s', 'B')) AND (size IS NULL))"


def test_the_checker_shares_no_code_with_the_service() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        if path != Path(__file__):
            assert "tidings" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(("requests", "lost"), [(("r1", "r2"), True), (("r1", "r1"), False)])
def test_only_what_lies_between_two_self_acknowledging_streams_may_be_lost(
    requests: tuple[str, str], lost: bool
) -> None:
    published = [event(number, 20, position=number) for number in range(4)]
    got = [
        replace(delivery(number, 20, number, at=50.0 + number, request=request), channel="auto")
        for number, request in zip((0, 2), requests, strict=True)
    ]
    opened = [Opened("s", request, 40.0 + number) for number, request in enumerate(dict.fromkeys(requests))]
    entries = [logged(number, 20, number) for number in range(4)]
    records: list[Record] = [CREATED, *published, *opened, *got, Dead("s", 3, "410 Gone"), *entries, LogEnds(0, 4)]
    assert bool(_missing(records)) is not lost
    as_pulled = [replace(one, channel="pull") if isinstance(one, Delivery) else one for one in records]
    without = [one for one in as_pulled if not isinstance(one, Opened)]
    assert _missing(without)


def test_a_stream_that_gets_nothing_excuses_only_what_was_published_before_it_was_opened() -> None:
    published = [event(0, 20, position=0), event(1, 20, position=1), event(2, 20, position=2, sent=90.0)]
    got = replace(delivery(0, 20, 0, request="r1"), channel="auto")
    streams = [Opened("s", "r1", 40.0), Opened("s", "r2", 60.0)]
    entries = [logged(number, 20, number) for number in range(3)]
    found = _missing([CREATED, *published, *streams, got, *entries, LogEnds(0, 3)])
    assert [("position 2" in one) for one in found] == [True]


def _missing(records: list[Record]) -> list[str]:
    return [str(found) for found in check(records).violations if "neither delivered" in str(found)]
