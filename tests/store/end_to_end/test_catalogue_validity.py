"""Whatever is made, changed and deleted at the same time, and wherever a crash comes, events meet the right filters.

Subscribers, publishers, a gateway that takes its two steps and may crash between them, and a driver that reads the
log's end first and the catalogue second, in every order that Hypothesis thinks of. What each event is to meet is said
here by when requests were sent and answered, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tidings.store.catalogue import Catalogue, CatalogueConflictError, FilterRow, NewSubscription

TENANT = "ada"
NEVER = 1 << 60
_domains = count()


@dataclass(eq=False)
class Request:
    """A request of a subscriber: what it makes of the filter, None for nothing, and when it was sent and answered."""

    text: str | None
    sent: int
    answered: int = NEVER
    number: int | None = None  # of the filter row that it made
    end: int | None = None  # of the log, as the gateway has read it


@dataclass(eq=False)
class Subscriber:
    id: str
    key: int
    requests: list[Request] = field(default_factory=list)

    def is_gone(self) -> bool:
        return any(request.text is None and request.answered < NEVER for request in self.requests)


@dataclass(eq=False)
class Batch:
    """What the driver matches with each other: events from one position to another, and the rows in its index then."""

    start: int
    end: int
    index: set[int]


class World(RuleBasedStateMachine):
    catalogue: Catalogue

    asked = Bundle("asked")  # made and changed, not activated yet
    read = Bundle("read")  # the log's end is read, and not written down yet
    ending = Bundle("ending")  # to be deleted, the end is read
    looking = Bundle("looking")  # the driver has read the log's end, and not the catalogue yet

    @initialize()
    def begin(self) -> None:
        self.domain = f"domain{next(_domains)}"  # all examples share a database
        self.catalogue.put_domain(TENANT, self.domain, "{}", inferred=False)
        self.times = count()
        self.texts = count()
        self.log: list[int] = []  # when each event was published
        self.subscribers: list[Subscriber] = []
        self.made_at: dict[int, int] = {}  # of each row the log's end when it was committed
        self.batches: list[Batch] = []
        self.index: dict[int, FilterRow] = {}
        self.revision = 0
        self.crashes = 0

    def live(self) -> list[Subscriber]:
        return [subscriber for subscriber in self.subscribers if not subscriber.is_gone()]

    @rule(times=st.integers(1, 3))
    def publish(self, times: int) -> None:
        self.log += [next(self.times) for _ in range(times)]

    @rule(target=asked, id=st.sampled_from(["a", "b", "c"]))
    def ask_for_a_subscription(self, id: str) -> Any:
        request = Request(f"x = {next(self.texts)}", next(self.times))
        new = NewSubscription(TENANT, self.domain, request.text or "", id=f"{self.domain}-{id}")
        if any(subscriber.id == new.id for subscriber in self.live()):
            with pytest.raises(CatalogueConflictError, match="already"):
                self.catalogue.create(new)
            return None
        made = self.catalogue.create(new)
        assert made.state == "pending"
        assert made.key not in {subscriber.key for subscriber in self.subscribers}
        request.number = made.filters[0].number
        self.note(request.number)
        self.subscribers.append(Subscriber(made.id, made.key, [request]))
        return (self.crashes, request)

    @rule(target=asked, place=st.integers(0, 9))
    def ask_for_another_filter(self, place: int) -> Any:
        if not self.live():
            return None
        subscriber = self.live()[place % len(self.live())]
        request = Request(f"x = {next(self.texts)}", next(self.times))
        request.number = self.catalogue.change_filter(TENANT, subscriber.id, request.text or "").number
        self.note(request.number)
        subscriber.requests.append(request)
        return (self.crashes, request)

    def note(self, number: int) -> None:
        assert number not in self.made_at, "a number was used again"
        self.made_at[number] = len(self.log)

    @rule(target=read, asked=consumes(asked))
    def read_the_end(self, asked: Any) -> Any:
        if asked is not None:
            asked[1].end = len(self.log)
        return asked

    @rule(read=consumes(read))
    def activate_and_answer(self, read: Any) -> None:
        if read is None or read[0] != self.crashes:
            return  # who was to do it crashed
        self.activate(read[1], read[1].end)

    def activate(self, request: Request, end: int) -> None:
        assert request.number is not None
        row = self.catalogue.activate(request.number, end)
        assert row.valid_from is not None
        assert row == self.catalogue.activate(request.number, end + 100), "a second time changes nothing"
        request.answered = next(self.times)

    @rule(target=ending, place=st.integers(0, 9))
    def ask_to_delete(self, place: int) -> Any:
        if not self.live():
            return None
        subscriber = self.live()[place % len(self.live())]
        request = Request(None, next(self.times), end=len(self.log))
        subscriber.requests.append(request)
        return (self.crashes, subscriber, request)

    @rule(ending=consumes(ending))
    def delete_and_answer(self, ending: Any) -> None:
        if ending is None or ending[0] != self.crashes or ending[1].is_gone():
            return
        assert self.catalogue.delete(TENANT, ending[1].id, ending[2].end)
        assert self.catalogue.get(TENANT, ending[1].id) is None
        ending[2].answered = next(self.times)

    @rule()
    def crash_and_start_again(self) -> None:
        self.crashes += 1
        by_number = {request.number: request for each in self.subscribers for request in each.requests}
        for row in self.unfinished():
            self.activate(by_number[row.number], len(self.log))
        assert self.unfinished() == []

    def unfinished(self) -> list[FilterRow]:
        return [row for row in self.catalogue.unfinished() if row.domain == self.domain]

    @rule(target=looking)
    def driver_reads_the_end(self) -> int:
        return len(self.log)

    @rule(end=consumes(looking))
    def driver_reads_the_catalogue_and_matches(self, end: int) -> None:
        start = self.batches[-1].end if self.batches else 0
        for row in self.catalogue.changed_filters(TENANT, self.domain, self.revision):
            self.index[row.number] = row
            self.revision = max(self.revision, row.revision)
        assert self.revision <= self.catalogue.revision(TENANT, self.domain) <= self.catalogue.revision()
        self.index = {number: row for number, row in self.index.items() if row.needed_from(start)}
        needed = self.catalogue.filters_of(TENANT, self.domain, from_position=start)
        assert {row.number: row for row in needed} == self.index
        if end > start:
            self.batches.append(Batch(start, end, set(self.index)))

    @invariant()
    def nobody_else_is_concerned(self) -> None:
        assert self.catalogue.filters_of("eve", self.domain) == []

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.publish(2)
        self.crash_and_start_again()
        self.publish(2)
        rows = self.catalogue.changed_filters(TENANT, self.domain, 0)
        assert {row.number for row in rows} == set(self.made_at)
        for row in rows:
            assert row.valid_from is not None
            assert row.valid_to is None or row.valid_to >= row.valid_from
            if row.valid_to != row.valid_from:  # else it is valid nowhere
                assert row.valid_from >= self.made_at[row.number], "an event is promised that came before the row"
        for position, published in enumerate(self.log):
            valid = [row for row in rows if row.valid_at(position)]
            self.every_subscriber_has_one_of_its_filters(position, published, valid)
            for batch in self.batches:
                if batch.start <= position < batch.end:
                    assert {row.number for row in valid} <= batch.index, "the driver has missed a subscription"

    def every_subscriber_has_one_of_its_filters(self, position: int, published: int, valid: list[FilterRow]) -> None:
        for subscriber in self.subscribers:
            theirs = [row for row in valid if row.subscription_key == subscriber.key]
            assert len(theirs) <= 1, "validities overlap"
            met = theirs[0].filter if theirs else None
            sent = [request for request in subscriber.requests if request.sent < published]
            # One that was sent before, unless a later one was answered before: what was answered last, or is under way.
            possible = {
                request.text
                for request in sent
                if not any(request.answered < other.sent and other.answered < published for other in sent)
            }
            if not any(request.answered < published for request in sent):
                possible.add(None)
            assert met in possible, f"position {position}: {met} and not one of {possible}"


@pytest.mark.parametrize("examples", [6, pytest.param(1_000, marks=pytest.mark.long)])
def test_every_event_meets_the_filter_that_was_active_before_it(catalogue: Catalogue, examples: int) -> None:
    class Here(World):
        pass

    Here.catalogue = catalogue
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def steps(catalogue: Catalogue) -> Iterator[Any]:
    """One subscription in `ada.flights`, pending."""
    catalogue.put_domain(TENANT, "flights", "{}", inferred=False)
    yield catalogue.create(NewSubscription(TENANT, "flights", "price < 100", id="cheap"))


def validities(catalogue: Catalogue) -> list[tuple[str, int | None, int | None]]:
    return [
        (row.filter, row.valid_from, row.valid_to)
        for row in sorted(catalogue.changed_filters(TENANT, "flights", 0), key=lambda row: row.number)
    ]


def test_a_change_ends_the_old_filter_where_the_new_one_begins(catalogue: Catalogue) -> None:
    (made,) = steps(catalogue)
    catalogue.activate(made.filters[0].number, 5)
    number = catalogue.change_filter(TENANT, "cheap", "price < 80").number
    assert validities(catalogue) == [("price < 100", 5, None), ("price < 80", None, None)]
    before = catalogue.get(TENANT, "cheap")
    assert before is not None
    assert (before.filter, before.filter_from, before.revision) == ("price < 100", 5, 1)
    catalogue.activate(number, 9)
    assert validities(catalogue) == [("price < 100", 5, 9), ("price < 80", 9, None)]
    after = catalogue.get(TENANT, "cheap")
    assert after is not None
    assert (after.filter, after.filter_from, after.revision) == ("price < 80", 9, 2)


def test_a_change_that_a_later_one_overtook_is_valid_nowhere(catalogue: Catalogue) -> None:
    (made,) = steps(catalogue)
    catalogue.activate(made.filters[0].number, 5)
    slow = catalogue.change_filter(TENANT, "cheap", "price < 80").number
    quick = catalogue.change_filter(TENANT, "cheap", "price < 60").number
    catalogue.activate(quick, 9)
    assert catalogue.activate(slow, 7).valid_to == 9
    assert validities(catalogue) == [("price < 100", 5, 9), ("price < 80", 9, 9), ("price < 60", 9, None)]


def test_a_writer_with_an_older_end_of_the_log_does_not_go_back(catalogue: Catalogue) -> None:
    (made,) = steps(catalogue)
    catalogue.activate(made.filters[0].number, 5)
    catalogue.activate(catalogue.change_filter(TENANT, "cheap", "price < 80").number, 9)
    assert catalogue.activate(catalogue.change_filter(TENANT, "cheap", "price < 60").number, 7).valid_from == 9
    assert catalogue.delete(TENANT, "cheap", 3)
    assert validities(catalogue) == [("price < 100", 5, 9), ("price < 80", 9, 9), ("price < 60", 9, 9)]


def test_one_deleted_before_it_was_active_is_valid_nowhere(catalogue: Catalogue) -> None:
    (made,) = steps(catalogue)
    assert catalogue.delete(TENANT, "cheap", 4)
    assert catalogue.activate(made.filters[0].number, 6).valid_to == 4
    assert validities(catalogue) == [("price < 100", 4, 4)]
    assert catalogue.unfinished() == catalogue.filters_of(TENANT, "flights") == []
