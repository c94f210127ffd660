"""The gate: an event meets no set of subscriptions that is older than itself, and none waits longer than it has to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.pipeline.sources import version_gate as gate_module
from tidings.pipeline.sources.log_source import LogReading, LogStreamReader
from tidings.pipeline.sources.version_gate import (
    ENDS_KEPT,
    Covers,
    Ends,
    Gate,
    forget_covers,
    read_covers,
    write_covers,
)
from tidings.pipeline.streams.index_changes import empty_index
from tidings.store.catalogue import Catalogue, CatalogueBusyError, NewSubscription
from tidings.store.log.log_writer import Log

DOMAIN = Domain("ada.readings", [Attribute("n", "bigint")])


class World:
    """A log, a catalogue, an index, and a source that plans micro-batches over them, as Spark would ask it to."""

    def __init__(self, path: Path) -> None:
        self.index = path / "index"
        self.log = Log(path / "log")
        self.catalogue = Catalogue(path / "catalogue.sqlite")
        self.catalogue.put_domain("ada", "readings", DOMAIN.to_json(), inferred=False)
        self.version = empty_index(self.index, DOMAIN)
        gate = Gate(str(path / "catalogue.sqlite"), "ada", "readings", str(self.index))
        options = {
            "path": str(path / "log"),
            "domain": DOMAIN.to_json(),
            "subscriptions": str(self.index),
            "gate": gate.to_option(),
        }
        self.source = LogStreamReader(LogReading(options), None)  # type: ignore[arg-type]
        self.at = {"log": 0, "subscriptions": self.version}

    def publish(self, count: int = 1, domain: Domain = DOMAIN) -> None:
        self.log.append(read_events([{"n": n} for n in range(count)], domain))

    def subscribe(self) -> int:
        """As the gateway does; answers the revision that has it."""
        made = self.catalogue.create(NewSubscription("ada", "readings", "n > 0"))
        self.catalogue.activate(made.filters[-1].number, self.log.end)
        return self.catalogue.revision("ada", "readings")

    def cover(self, revision: int, version: int | None = None) -> None:
        write_covers(self.index, Covers(version or self.version, revision))

    def plan(self, limit: Any = None) -> int:
        """Where the next micro-batch would end, which is then run."""
        self.at = self.source.latestOffset(self.at, limit or ReadAllAvailable())
        return self.at["log"]


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.log.close()
    made.catalogue.close()
    gate_module._opened.cache_clear()


def test_an_event_waits_until_the_subscriptions_before_it_are_covered(world: World) -> None:
    revision = world.subscribe()
    world.publish(3)
    assert world.plan() == 0  # nobody has said anything of the index
    world.cover(revision - 1)
    assert world.plan() == 0
    world.cover(revision)
    assert world.plan() == 3


def test_events_are_taken_up_to_the_end_seen_before_the_covered_revision(world: World) -> None:
    first = world.subscribe()
    world.publish(3)
    assert world.plan() == 0
    second = world.subscribe()
    world.publish(2)
    assert world.plan() == 0  # which sees the second revision
    world.cover(first)
    assert world.plan() == 3  # the first three were there before the second subscription
    assert world.plan() == 3
    world.cover(second)
    assert world.plan() == 5


def test_a_catalogue_that_changes_all_the_time_stops_no_event(world: World) -> None:
    for number in range(20):
        world.publish()
        world.plan()
        if number >= 2:
            assert world.at["log"] >= number - 1  # one step behind the index, which is one behind the catalogue
        world.cover(world.catalogue.revision("ada", "readings"))
        world.subscribe()


def test_a_version_that_is_not_in_use_yet_covers_nothing(world: World) -> None:
    revision = world.subscribe()
    world.publish()
    world.cover(revision, version=world.version + 1)
    assert world.plan() == 0
    assert empty_index(world.index, DOMAIN) == world.version + 1
    assert world.plan() == 1
    assert world.at["subscriptions"] == world.version + 1


def test_a_limit_and_others_events_change_nothing_about_it(world: World) -> None:
    world.cover(world.subscribe())
    world.publish(4)
    world.publish(10, Domain("bob.readings", [Attribute("n", "bigint")]))
    world.publish(2)
    assert world.plan(ReadMaxRows(3)) == 3
    assert world.plan(ReadMaxRows(3)) == 16
    assert world.plan() == 16


def test_while_the_catalogue_cannot_be_read_the_gate_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.cover(world.subscribe())
    world.publish()

    def locked(*_: object) -> int:
        raise CatalogueBusyError("catalogue: locked")

    with monkeypatch.context() as patched:
        patched.setattr(Catalogue, "revision", locked)
        assert world.plan() == 0
    assert world.plan() == 1


def test_what_is_covered_can_be_forgotten(tmp_path: Path) -> None:
    write_covers(tmp_path, Covers(3, 7))
    assert read_covers(tmp_path) == Covers(3, 7)
    forget_covers(tmp_path)
    assert read_covers(tmp_path).revision == -1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=300))
def test_no_end_passes_before_its_revision_is_covered(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever is noted and covered in whatever order; and with all covered, the last end has passed."""
    ends, end, revision, covered, passed = Ends(), 0, 0, 0, 0
    needed = {0: 0}
    for events, changes, catch_up in steps:
        end, revision = end + events, revision + changes
        needed.setdefault(end, revision)
        ends.note(end, revision)
        covered = revision if catch_up else covered
        found = ends.covered(covered)
        if found is not None:
            assert needed[found] <= covered
            passed = max(passed, found)
        assert len(ends._noted) <= ENDS_KEPT
    ends.note(end, revision)
    assert ends.covered(revision) == end
