"""Which stream a domain belongs to is on the disk before either stream acts on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.service.data.data_directory import DataDirectory
from tidings.service.driver import stream_assignment as driver_streams
from tidings.service.driver.stream_assignment import Sharing, Streams, leave_shared
from tidings.store.catalogue import DomainRow
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import LOG, SHARED, Notifications
from tidings.store.mailboxes.shared_progress import Pace

ROW = DomainRow("ada", "quotes", "{}", False, 0, 0, 1)


class Own:
    """A stream of its own that never comes to make its checkpoint."""

    batch_seconds = 0.1
    reached = 7

    def __init__(self, context: Any, row: DomainRow, *, begin: int) -> None:
        self.key = row.key

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def join(self) -> None:
        pass

    def tell(self, row: DomainRow) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"state": "running", "events": 0, "reached": self.reached, "batch_seconds": self.batch_seconds}

    def has_at_most(self, subscriptions: int) -> bool:
        return True


class Shared:
    """The shared stream, which notes who had a checkpoint when it was told."""

    reached = 7

    def __init__(self, context: Any) -> None:
        self._data = context.data
        self._members: set[str] = set()
        self.size = 1
        self.paces: dict[str, Pace] = {}

    def tell(self, rows: Mapping[str, DomainRow], revision: int) -> None:
        for key in self._members - rows.keys():
            assert (self._data.domains / key / "query").is_dir(), "a crash here would lose what comes"
        self._members = set(rows)

    def start(self) -> None:
        pass

    def has(self, key: str) -> bool:
        return key in self._members

    def subscriptions(self, key: str) -> int:
        return self.size

    def pace(self, key: str) -> Pace:
        return self.paces.get(key, Pace(0.0, 0.0))

    def status(self) -> dict[str, Any]:
        return {"state": "running"}


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Streams:
    data = DataDirectory(tmp_path / "data")
    data.make()
    monkeypatch.setattr(driver_streams, "DomainStream", Own)
    monkeypatch.setattr(driver_streams, "SharedStream", Shared)
    monkeypatch.setattr(driver_streams, "LOOK_SECONDS", 0.0)
    context: Any = SimpleNamespace(data=data, catalogue=SimpleNamespace(filter_counts=dict))
    return Streams(context, Sharing())


def test_a_few_domains_of_a_tenant_that_take_long_leave_the_others(streams: Streams) -> None:
    rows = [DomainRow(tenant, f"d{at}", "{}", False, 0, 0, 1) for tenant in ("ada", "ben") for at in range(8)]
    streams.follow({row.key: row for row in rows}, 1)
    shared: Any = streams._shared
    shared.paces = {row.key: Pace(1.0, 0.9) for row in rows if row.tenant == "ada"}
    streams.look()
    left = {key for key in streams._rows if key in streams._own}
    assert len(left) == Sharing().busy_at_most
    assert all(key.startswith("ada.") for key in left)


@pytest.mark.parametrize(("batch_seconds", "returns"), [(0.1, True), (50.0, False)])
def test_a_domain_whose_batches_take_long_does_not_return(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, batch_seconds: float, returns: bool
) -> None:
    monkeypatch.setattr(Own, "batch_seconds", batch_seconds)
    streams._sharing = Sharing(quiet_seconds=0.0)
    streams.follow({ROW.key: ROW}, 1)
    shared: Any = streams._shared
    shared.paces = {ROW.key: Pace(1.0, 0.9)}
    streams.look()
    assert streams._own.keys() == {ROW.key}
    streams._small_again()
    assert (streams._small_again() == ROW.key) is returns


def test_a_domain_returns_when_its_own_stream_has_come_to_where_the_shared_one_has_it(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = streams._context.data
    with Log(data.log) as log:
        log.append([{"price": 1.0}] * 9, domain=ROW.key)
    streams._sharing = Sharing(quiet_seconds=0.0)
    streams.follow({ROW.key: ROW}, 1)
    shared: Any = streams._shared
    shared.paces = {ROW.key: Pace(1.0, 0.9)}
    streams.look()
    assert not shared.has(ROW.key)
    shared.paces = {}
    monkeypatch.setattr(Own, "reached", 8)

    def is_returning() -> bool:
        streams.look()
        return streams._returning is not None

    until(is_returning)
    assert shared.has(ROW.key), "both match it for a while"
    streams.follow({ROW.key: replace(ROW, revision=2)}, 2)
    assert shared.has(ROW.key)
    with Log(data.log) as log:  # planned with the version that has it: its own stream need not wait for these
        streams.look()
        log.append([{"price": 1.0}], domain=ROW.key)
    assert data.domain("ada", "quotes").query.exists()
    monkeypatch.setattr(Own, "reached", 9)
    streams.look()
    assert streams._returning is None
    assert not streams._own
    assert shared.has(ROW.key)
    assert not data.domain("ada", "quotes").query.exists()


def test_a_domain_that_does_not_return_in_time_keeps_its_own_stream(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(streams._context.data.log) as log:
        log.append([{"price": 1.0}] * 9, domain=ROW.key)
    streams._sharing = Sharing(quiet_seconds=0.0)
    streams.follow({ROW.key: ROW}, 1)
    shared: Any = streams._shared
    shared.paces = {ROW.key: Pace(1.0, 0.9)}
    streams.look()
    shared.paces = {}

    def is_returning() -> bool:
        streams.look()
        return streams._returning is not None

    until(is_returning)
    monkeypatch.setattr(driver_streams, "RETURN_SECONDS", -1.0)
    streams.look()
    assert streams._own.keys() == {ROW.key}
    assert not shared.has(ROW.key)


def test_the_number_of_own_streams_is_bounded_however_large_domains_are(streams: Streams) -> None:
    """Each is processes and memory: a tenant that makes many of them must not take the machine from the others."""
    rows = [DomainRow(tenant, f"d{at}", "{}", False, 0, 0, 1) for tenant in ("ada", "ben", "cyd") for at in range(12)]
    streams.follow({row.key: row for row in rows}, 1)
    shared: Any = streams._shared
    shared.size = 10**6
    streams.look()
    of_ada = [key for key in streams._own if key.startswith("ada.")]
    assert len(of_ada) == Sharing().own_of_a_tenant_at_most
    assert len(streams._own) == Sharing().own_at_most


def test_a_domain_that_leaves_is_on_disk_before_the_shared_stream_drops_it(streams: Streams) -> None:
    data = streams._context.data
    streams.follow({ROW.key: ROW}, 1)
    shared: Any = streams._shared
    assert not data.domain("ada", "quotes").query.exists()
    shared.size = 10**6
    streams.look()
    assert data.domain("ada", "quotes").query.is_dir()
    with Notifications(data.domain("ada", "quotes").mailboxes) as mailboxes:
        assert mailboxes.resume() == Shared.reached, "a crash here would match removed events again"


def test_a_stream_of_its_own_continues_where_the_domain_left_the_shared_one(streams: Streams) -> None:
    """A domain that returns is matched by both: without its own checkpoint, its own stream must not skip anything."""
    files = streams._context.data.domain("ada", "quotes")
    leave_shared(files, 7)
    with Notifications(files.mailboxes) as mailboxes:
        mailboxes.load([], query=f"{SHARED}q", batch=3, version=1, reached={LOG: 99})
        assert mailboxes.resume() == 7
    files.query.rmdir()  # it has returned
    leave_shared(files, 120)
    with Notifications(files.mailboxes) as mailboxes:
        assert mailboxes.resume() == 120


def test_a_domain_with_its_own_placement_has_its_own_stream_however_small_it_is(streams: Streams) -> None:
    streams._sharing = Sharing(quiet_seconds=0.0)
    streams.follow({ROW.key: ROW}, 1)
    streams.look()
    assert not streams._own
    named = replace(ROW, placement="planned", revision=2)
    streams.follow({ROW.key: named}, 2)
    streams.look()
    assert streams._own.keys() == {ROW.key}
    streams._small_again()
    assert streams._small_again() is None  # it stays, quiet as it is
    streams.follow({ROW.key: replace(named, placement=None, revision=3)}, 3)
    streams._small_again()
    assert streams._small_again() == ROW.key
