"""What was answered survives a power cut at any moment, whatever of the unsynced writes is left; nothing is half done.

Each store does some work on a disk that is recorded (`recorded_disk`). Then the power is cut at hundreds of moments,
each with a seed that says which unsynced writes are left. A store that is opened on what is left has to be in the
state after the last answer, or in the one that the operation under way would have led to.
"""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidings.store.catalogue import Catalogue, NewSubscription
from tidings.store.log.log_files import ACKNOWLEDGED, Acknowledged
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.deliveries import Deliveries
from tidings.store.mailboxes.notifications import LOG, Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress, Work

from . import apsw_dbapi
from .recorded_disk import Recorded

SEED = 17
CUTS = 120
LONG = 3_000


class LogAtWork:
    """Appends of several sizes, and retention now and then."""

    def work(self, folder: Path, synchronous: str) -> Iterator[Any]:
        with Log(folder) as log:
            log._writer.execute(f"PRAGMA synchronous = {synchronous}")
            log._writer.execute("PRAGMA wal_autocheckpoint = 8").fetchall()
            yield self._state(log)
            for n in range(24):
                if n % 8 == 7:
                    log.retain(from_position=log.start + 3)
                else:
                    log.append([{"n": n, "x": "y" * 900 * (n % 3)}] * (n % 3 + 1), domain="ab"[n % 2])
                yield self._state(log)

    def look(self, folder: Path, draw: random.Random) -> Any:
        """The file that is never synced says what it said at any time before, or is not there."""
        if (end := draw.choice((None, 0, 5))) is not None and (folder / "events.sqlite").exists():
            with Log(folder) as log:
                end = min(end, log.end)
            mark = Acknowledged(folder, write=True)
            mark.write(end)
            mark.close()
        else:
            (folder / ACKNOWLEDGED).unlink(missing_ok=True)
        with Log(folder) as log:
            state = self._state(log)
            assert log.append([{"n": -1}], domain="a") == [log.end - 1]
        return state

    @staticmethod
    def _state(log: Log) -> Any:
        rows = [row for batch in log.read() for row in batch.select(["position", "domain", "event"]).to_pylist()]
        return log.start, log.end, [(row["position"], row["domain"], row["event"]) for row in rows]


class MailboxesAtWork:
    """Loads of streams and of histories, pruning, groups, subscriptions that go."""

    def work(self, folder: Path, synchronous: str) -> Iterator[Any]:
        folder.mkdir(exist_ok=True)
        with Notifications(folder / "mailboxes.sqlite", max_waiting=12) as store:
            store._connection.execute(f"PRAGMA synchronous = {synchronous}")
            store._connection.execute("PRAGMA wal_autocheckpoint = 8").fetchall()
            yield self._state(store)
            for n in range(24):
                match n % 6:
                    case 3:
                        store.prune(dict.fromkeys(range(1, 30), 4 * n))
                    case 4:
                        store.group([[number for number in range(1, 30) if number % 3 == part] for part in range(3)])
                    case 5:
                        store.forget([n])
                    case _:
                        positions = range(10 * n, 10 * n + 8)
                        lists = [[number for number in range(1, 30) if (number + at) % 2] for at in positions]
                        table = pa.table({"position": list(positions), "subscriptions": lists})
                        store.load([table], query="q", batch=n, version=1, reached={LOG: positions[-1]})
                yield self._state(store)

    def look(self, folder: Path, draw: random.Random) -> Any:
        with Notifications(folder / "mailboxes.sqlite", max_waiting=12) as store:
            return self._state(store)

    @staticmethod
    def _state(store: Notifications) -> Any:
        numbers = range(1, 30)
        overflowed = [[one.position for one in store.overflowed(number)] for number in numbers]
        waiting = [store.waiting(number) for number in numbers]
        return sorted(store.pairs()), store.reached("q"), store.last_batch("q"), waiting, overflowed, store.groups


class DeliveriesAtWork:
    """Acknowledgements, failures, dead letters, and dead letters that are tried again."""

    def work(self, folder: Path, synchronous: str) -> Iterator[Any]:
        folder.mkdir(exist_ok=True)
        with Deliveries(folder / "deliveries.sqlite") as store:
            store._connection.execute(f"PRAGMA synchronous = {synchronous}")
            store._connection.execute("PRAGMA wal_autocheckpoint = 8").fetchall()
            yield self._state(store)
            for n in range(40):
                match n % 5:
                    case 0:
                        store.acknowledge_many(dict.fromkeys(range(1, 40), n))
                    case 1:
                        store.failed(n % 3, n, "503" * 100, n)
                    case 2:
                        store.dead(n % 3, n - 1, "gone" * 100, acknowledge=True)
                    case 3:
                        store.redrive(n % 3)
                    case 4:
                        store.forget(n)
                yield self._state(store)

    def look(self, folder: Path, draw: random.Random) -> Any:
        with Deliveries(folder / "deliveries.sqlite") as store:
            return self._state(store)

    @staticmethod
    def _state(store: Deliveries) -> Any:
        keys = range(40)
        attempts = [[(one.position, one.attempts) for one in store.attempts(key)] for key in keys]
        dead = [[(one.position, one.reason) for one in store.dead_letters(key)] for key in keys]
        return store.cursors(), store.changed_cursors(), attempts, dead, [store.redriven(key) for key in keys]


class CatalogueAtWork:
    """Domains and subscriptions that are made, activated, changed and deleted."""

    def work(self, folder: Path, synchronous: str) -> Iterator[Any]:
        folder.mkdir(exist_ok=True)
        with Catalogue(folder / "catalogue.sqlite") as catalogue:
            catalogue.put_domain("ada", "d", "{}", inferred=False)
            yield self._state(catalogue)
            for n in range(24):
                match n % 4:
                    case 0:
                        catalogue.put_domain("ada", "d", f'{{"n": {n}}}', inferred=False)
                    case 1:
                        filter_ = f"price > {n}" + " OR price = 1" * 200
                        catalogue.create(NewSubscription("ada", "d", filter_, id=f"s{n}", labels={"a": "b"}))
                    case 2:
                        catalogue.activate_many([row.number for row in catalogue.unfinished()], n)
                    case 3 if n % 8 == 7:
                        catalogue.delete("ada", f"s{n - 2}", n)
                    case 3:
                        catalogue.change_filter("ada", f"s{n - 2}", "price < 0" + " AND price = 1" * 200)
                yield self._state(catalogue)

    def look(self, folder: Path, draw: random.Random) -> Any:
        with Catalogue(folder / "catalogue.sqlite") as catalogue:
            return self._state(catalogue)

    @staticmethod
    def _state(catalogue: Catalogue) -> Any:
        filters = [
            (row.number, row.subscription, row.filter, row.valid_from, row.valid_to, row.revision)
            for row in catalogue.changed_filters("ada", "d", -1)
        ]
        domains = [(row.name, row.definition, row.revision) for row in catalogue.domains()]
        live = [(row.id, row.filter, row.state, row.labels) for row in catalogue.list("ada").subscriptions]
        return catalogue.revision(), domains, filters, live, catalogue.extent()


class SharedProgressAtWork:
    """Batches of the stream that small domains share: of its query, of the one after it, and some of them again."""

    def work(self, folder: Path, synchronous: str) -> Iterator[Any]:
        folder.mkdir(exist_ok=True)
        with SharedProgress(folder / "progress.sqlite") as store:
            store._connection.execute(f"PRAGMA synchronous = {synchronous}")
            store._connection.execute("PRAGMA wal_autocheckpoint = 8").fetchall()
            yield self._state(store)
            for n in range(40):
                query, batch = ("first", n) if n < 20 else ("second", n - 20)
                done = {f"ada.{'d' * 200}{number}": Work(n, n / 4) for number in range(n % 5)}
                match n % 5:
                    case 3:
                        store.note(query, batch, None, done)
                    case 4:
                        store.note(query, batch - 1, 10 * n, done)
                    case _:
                        store.note(query, batch, 10 * n, done)
                yield self._state(store)

    def look(self, folder: Path, draw: random.Random) -> Any:
        with SharedProgress(folder / "progress.sqlite") as store:
            return self._state(store)

    @staticmethod
    def _state(store: SharedProgress) -> Any:
        return store.resume, [store.last_batch(query) for query in ("first", "second")], store.work()


STORES: dict[str, Callable[[], Any]] = {
    "log": LogAtWork,
    "mailboxes": MailboxesAtWork,
    "deliveries": DeliveriesAtWork,
    "catalogue": CatalogueAtWork,
    "shared progress": SharedProgressAtWork,
}


def recorded(store: Any, folder: Path, synchronous: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorded, list[Any]]:
    """A recording of a store at work, each answer marked with its number, and the state after each."""
    states = []
    monkeypatch.setattr(apsw_dbapi.Connection, "synchronous", synchronous)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", apsw_dbapi.Connection)
    with Recorded() as disk:
        for number, state in enumerate(store.work(folder, synchronous)):
            disk.mark(number)
            states.append(state)
    monkeypatch.undo()
    return disk, states


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: what is left after a cut is opened hundreds of times."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tidings-", dir=in_memory) as folder:
        yield Path(folder)


def lost(store: Any, memory: Path, disk: Recorded, states: list[Any], cuts: int) -> Iterator[str]:
    """What is wrong after each of some cuts."""
    moments = random.Random(SEED)
    for number, cut in enumerate(disk.cuts(cuts, moments)):
        seed = f"{SEED} {number}"
        draw = random.Random(seed)
        left = memory / f"left-{number}"
        left.mkdir()
        answered = disk.leave(cut, left, memory / "work", draw)
        try:
            found = store.look(left, draw)
        except Exception as error:
            yield f"cut {cut} of {len(disk.operations)}, seed {seed}, after answer {answered}: {error!r}"
            continue
        if found not in states[answered : answered + 2]:
            known = [at for at, state in enumerate(states) if state == found]
            yield f"cut {cut} of {len(disk.operations)}, seed {seed}: answer {answered}, found the state after {known}"


@pytest.mark.parametrize("cuts", [CUTS, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", STORES)
def test_what_was_answered_survives_a_power_cut_whatever_is_left_of_unsynced_writes(
    memory: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None], name: str, cuts: int
) -> None:
    record_property("cases", cuts)
    store = STORES[name]()
    disk, states = recorded(store, memory / "work", "FULL", monkeypatch)
    assert sum(one.kind == "sync" for one in disk.operations) >= len(states) - 1  # it was really recorded
    broken = list(lost(store, memory, disk, states, cuts))
    assert not broken, "\n".join(broken[:10])


@pytest.mark.parametrize("name", STORES)
def test_the_power_cut_would_show_if_answers_did_not_wait_for_the_disk(
    memory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = STORES[name]()
    disk, states = recorded(store, memory / "work", "OFF", monkeypatch)
    assert list(lost(store, memory, disk, states, CUTS))


class Killed(BaseException):
    """What a process that is killed does not catch."""


def test_a_store_whose_maker_was_killed_early_keeps_what_the_next_one_answers(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal was deleted, and no sync of the directory has made that last: brought back, it would undo all."""

    def killed(_: Path) -> None:
        raise Killed

    path = memory / "work" / "deliveries.sqlite"
    path.parent.mkdir()
    with Recorded() as disk:
        with monkeypatch.context() as patch:
            patch.setattr("tidings.store.sqlite_file.sync_directory", killed)
            with pytest.raises(Killed):
                Deliveries(path)
        with Deliveries(path) as deliveries:
            deliveries.acknowledge(1, 5)
            disk.mark("acknowledged")
    for number in range(50):
        left = memory / str(number)
        left.mkdir()
        disk.leave(disk.cuts(1, random.Random(0))[0], left, path.parent, random.Random(number))
        with Deliveries(left / path.name) as found:
            assert found.cursor(1) == 5, number
