"""Change a compiled index a little, without compiling it again and without Spark.

    changes = IndexChanges("data/index")
    changes.apply(upsert=[("ada/commute", "dest = 'BOS' AND arr_delay > 30")], remove=["ben/pickup"])

A change publishes a version that holds only what differs from a compiled one, its *base*: the
subscriptions that were put in since, and the ids that the base has and that no longer count. Streams
take it up with their next micro-batch. When much has changed, the two become a new base, in a version
after that, so that no change waits for it.

A base may have a View: a layout of its subscriptions by which streams route events. Versions of the base say
which, so that from one View to the next is a version like any other: an event meets all subscriptions
under the old or under the new one, and who runs a batch again does so under the one that it had.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import apsw
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import SubscriptionError
from tidings.filter.compile.compiler import compile_filters
from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable, read_subscriptions
from tidings.pipeline.build.index_directory import (
    CHANGES,
    SUFFIX,
    IndexDirectory,
    Layout,
    Manifest,
    ShardFile,
    checksum,
    describe_version,
)
from tidings.pipeline.build.table_reading import attributes_read, indexed
from tidings.pipeline.job_errors import PipelineError
from tidings.systems.interface import REPLICATED

FOLDED_AT = 20_000  # changed subscriptions at least, and
FOLDED_SHARE = 2  # one in so many, make it worth writing a new base
VERSIONS_KEPT = 50  # that hold changes only; a query has links of its own to what it needs
BUSY_SECONDS = 30.0

_TYPES: dict[str, pa.DataType] = {"string": pa.string(), "bigint": pa.int64()}


@dataclass(eq=False)
class _Held:
    """A version in memory."""

    number: int
    manifest: Manifest
    domain: Domain
    base: int
    shards: list[Matcher]  # of the base
    ids: list[Any]  # of each shard
    gone: set[str | int]  # ids in the base that no longer count there
    put_in: dict[str | int, str]  # filters by id, since the base
    matcher: Matcher  # of these
    placed: str | None = None  # the base's layout that events are routed by

    def in_base(self, ids: list[str | int]) -> set[str | int]:
        """Which of these the base has and still count there."""
        wanted = pa.array(ids, _TYPES[self.manifest.id_type])
        found: set[str | int] = set()
        for ids in self.ids:
            found.update(_among(ids, wanted))
        return found - self.gone


@dataclass(frozen=True, eq=False)
class Base:
    """A compiled version, and what of it still counts."""

    number: int
    domain: Domain
    rows: pa.Table  # id and filter
    placed: str | None  # the layout that its events are routed by


@dataclass(frozen=True, eq=False)
class IndexSnapshot:
    """All subscriptions as they were at one time, for other threads to look at."""

    domain: Domain
    rows: pa.Table  # id and filter
    bytes: float  # of a subscription in a file; 0 if there is none
    _matchers: Sequence[Matcher]  # of the base, and at last of what was put in since
    _gone: Any  # an array of ids that count in the last one only

    def match(self, events: pa.Table) -> tuple[npt.NDArray[np.int64], Any]:
        """The row of an event and the id of a subscription, of every match."""
        rows, ids = [np.empty(0, np.int64)], [self.rows["id"].combine_chunks()[:0]]
        for number, matcher in enumerate(self._matchers, 1):
            found = matcher.match(events, on_error="reject")
            alive = np.ones(len(found), bool)
            if number < len(self._matchers):
                ids_found: Any = found.ids
                alive = ~np.asarray(pc.is_in(ids_found, value_set=self._gone).to_numpy(zero_copy_only=False))
            rows.append(np.asarray(found.events)[alive])
            ids.append(found.ids.filter(pa.array(alive)))
        return np.concatenate(rows), pa.concat_arrays(ids)


def empty_index(
    directory: str | os.PathLike[str],
    domain: Domain,
    *,
    id_type: Literal["string", "bigint"] = "bigint",
    after: int = 0,
) -> int:
    """An index without a subscription, for changes to fill; returns its version, which is past `after`."""
    opened = IndexDirectory(directory)
    digest = hashlib.sha256(f"empty {id_type} {domain.to_json()}".encode()).hexdigest()
    manifest = Manifest(digest, domain.to_dict(), id_type, 0, 0, 0, [], {})
    with opened.staged() as staged:
        return opened.publish(staged, manifest, REPLICATED, Layout(REPLICATED, ()), after=after)


class IndexChanges:
    """Makes changes to the index in a directory. Several may: each goes on from what it finds there."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = IndexDirectory(directory)
        self._held: _Held | None = None

    def apply(
        self,
        *,
        upsert: Any = (),
        remove: Iterable[str | int] = (),
        domain: Domain | None = None,
        fold: bool = True,
    ) -> int:
        """Put subscriptions in, in place of those with the same ids, and take others out; returns the new version.

        `upsert` is whatever a Matcher takes: pairs (id, filter), a dict, a table with these columns. If
        anything is wrong with it, or an id to remove is not there, nothing is changed. `domain` is the one
        that filters are read in from now on: that of the index, with more attributes. Without `fold`, who has
        something more urgent to do calls `fold` afterwards.
        """
        with self._locked():
            held = self._current()
            self._held = None  # what fails below leaves nothing half changed: it is read again
            if domain is not None:
                held = self._extended(held, domain)
            held = self._changed(held, read_subscriptions(upsert), list(dict.fromkeys(remove)))
            self._held = held
            self._forget(held.number)
        if fold:
            self.fold()
        return held.number

    def fold(self, share: float = 1 / FOLDED_SHARE, at_least: int | None = None) -> None:
        """Write a new base where so much has changed that it is worth it: a version that says the same as the last.

        By default one in FOLDED_SHARE of the subscriptions, and FOLDED_AT.
        """
        held = self._held
        least = FOLDED_AT if at_least is None else at_least
        if held is None or len(held.gone | held.put_in.keys()) < max(least, share * held.manifest.subscriptions):
            return
        with self._locked():
            held, self._held = self._current(), None
            self._held = self._folded(held)

    @property
    def placed(self) -> str | None:
        """The base's layout that events are routed by, as of the last change that was made here."""
        return None if self._held is None else self._held.placed

    def base(self) -> Base:
        """The compiled version that changes are relative to."""
        with self._locked():
            held = self._held = self._current()
            return Base(held.base, held.domain, _rows_of(held), held.placed)

    def snapshot(self) -> IndexSnapshot:
        """The subscriptions of the current version."""
        with self._locked():
            held = self._held = self._current()
            rows = pa.concat_tables([_rows_of(held), _table(held.put_in, held.manifest.id_type)])
            gone = pa.array(held.gone, _TYPES[held.manifest.id_type])
            layout = self._directory.layout(held.base, REPLICATED, check=False)
            size = layout.bytes if layout is not None and held.shards else 0
            return IndexSnapshot(
                held.domain, rows, size / max(1, sum(map(len, held.shards))), [*held.shards, held.matcher], gone
            )

    def place(self, base: int, placed: str | None) -> int | None:
        """Have events routed by a layout of a base from now on, or by none; returns the new version.

        None if the base is another by now: the layout is of subscriptions of the old one.
        """
        with self._locked():
            held, self._held = self._current(), None
            if held.base != base:
                self._held = held
                return None
            digest = hashlib.sha256(f"{held.manifest.fingerprint}{placed}".encode()).hexdigest()
            manifest = replace(held.manifest, fingerprint=digest)
            self._held = self._published(replace(held, manifest=manifest, placed=placed))
            self._forget(self._held.number)
            return self._held.number

    def ids(self) -> Any:
        """The ids of all subscriptions in the current version, an array of Arrow in no order."""
        with self._locked():
            held = self._held = self._current()
            kind = _TYPES[held.manifest.id_type]
            gone: Any = pa.array(held.gone, kind)
            kept = [ids.filter(pc.invert(pc.is_in(ids, value_set=gone))) for ids in held.ids]
            return pa.concat_arrays([*kept, pa.array(held.put_in, kind)])

    def _current(self) -> _Held:
        current = self._directory.current()
        if current is None:
            raise PipelineError(f"index: {self._directory.path} has no version yet; compile subscriptions into it")
        held = self._held
        return held if held is not None and held.number == current else self._read(current)

    def _extended(self, held: _Held, domain: Domain) -> _Held:
        """In a domain that has every attribute of the last one: the filters that there are mean what they did."""
        for attribute in held.domain.attributes:
            if attribute not in domain.attributes:
                raise PipelineError(
                    f"index: the attribute '{attribute.name}' of {self._directory.path} is missing or another in the "
                    "domain to change to; compile the subscriptions again"
                )
        matcher = Matcher(_table(held.put_in, held.manifest.id_type), domain, threads=1)
        return replace(held, domain=domain, matcher=matcher, manifest=replace(held.manifest, domain=domain.to_dict()))

    def _read(self, number: int) -> _Held:
        version = describe_version(self._directory, number)
        base, layout = version.base
        placed = None if version.placed is None else version.placed[0]
        shards = [Matcher.load(self._directory.folder(base) / file.name, threads=1) for file in layout.files]
        ids = [shard.subscriptions()["id"].combine_chunks() for shard in shards]
        gone: set[str | int] = set()
        put_in: dict[str | int, str] = {}
        matcher = Matcher(_table({}, version.manifest.id_type), version.domain, threads=1)
        for file in () if version.changes is None else version.changes.files:
            path = self._directory.folder(number) / file.name
            if file.name.endswith(SUFFIX):
                matcher = Matcher.load(path, threads=1)  # with its normal forms: no text is read again
                continue
            with pa.memory_map(str(path)) as mapped:
                columns: Any = [column.to_pylist() for column in pa.ipc.open_file(mapped).read_all().columns]
            for id_, text, in_base in zip(*columns, strict=True):
                gone.update([id_] if in_base else [])
                put_in.update({} if text is None else {id_: text})
        return _Held(number, version.manifest, version.domain, base, shards, ids, gone, put_in, matcher, placed)

    def _changed(self, held: _Held, table: SubscriptionTable, remove: list[str | int]) -> _Held:
        given: Iterator[Any] = zip(table.ids.to_pylist(), table.filters.to_pylist(), strict=True)
        put_in: dict[str | int, str] = dict(given)
        self._refuse(held, table, put_in, remove)
        read = compile_filters(table.filters, held.domain)
        held.matcher.upsert(table)
        held.matcher.remove([id_ for id_ in remove if id_ in held.put_in])
        held.gone |= held.in_base([*put_in, *remove])
        held.put_in.update(put_in)
        for id_ in remove:
            held.put_in.pop(id_, None)
        digest = hashlib.sha256(f"{held.manifest.fingerprint}{sorted(put_in.items())}{remove}".encode())
        reads = {tuple(path) for path in held.manifest.reads} | attributes_read(read)
        manifest = replace(
            held.manifest,
            fingerprint=digest.hexdigest(),
            subscriptions=sum(map(len, held.shards)) - len(held.gone) + len(held.put_in),
            reads=[list(path) for path in sorted(reads)],
        )
        return self._published(replace(held, manifest=manifest))

    def _refuse(
        self, held: _Held, table: SubscriptionTable, put_in: dict[str | int, str], remove: list[str | int]
    ) -> None:
        wanted = _TYPES[held.manifest.id_type]
        if len(table) and table.ids.type != wanted:
            raise SubscriptionError(
                f"subscription: the ids of this index are {held.manifest.id_type}, and {table.ids[0].as_py()!r} is not"
            )
        for id_ in remove:
            if isinstance(id_, str) != (wanted == pa.string()):
                raise SubscriptionError(f"subscription: the ids of this index are {held.manifest.id_type}, not {id_!r}")
            if id_ in put_in:
                raise SubscriptionError(f"subscription: {id_!r} is to be put in and to be removed; choose one")
        known = held.in_base(remove) | held.put_in.keys()
        for id_ in remove:
            if id_ not in known:
                raise SubscriptionError(f"subscription: there is none with the id {id_!r} to remove")

    # ------------------------------------------------------------------ publishing

    def _published(self, held: _Held) -> _Held:
        """As a version that says what differs from its base."""
        stem = f"tidings-{held.manifest.fingerprint[:16]}-changes"
        with self._directory.staged() as staged:
            rows = [*held.put_in, *(held.gone - held.put_in.keys())]
            columns = {
                "id": pa.array(rows, _TYPES[held.manifest.id_type]),
                "filter": pa.array([held.put_in.get(id_) for id_ in rows], pa.string()),
                "in_base": pa.array([id_ in held.gone for id_ in rows], pa.bool_()),
            }
            with pa.ipc.new_file(str(staged / f"{stem}.arrow"), pa.table(columns).schema) as writer:
                writer.write_table(pa.table(columns))
            files = [_listed(staged / f"{stem}.arrow", 0, len(rows))]
            if held.put_in:
                held.matcher.save(staged / f"{stem}{SUFFIX}")
                files.append(_listed(staged / f"{stem}{SUFFIX}", 1, len(held.put_in)))
            layout = Layout(CHANGES, tuple(files), {"base": held.base, "placed": held.placed})
            return replace(held, number=self._directory.publish(staged, held.manifest, CHANGES, layout))

    def _folded(self, held: _Held) -> _Held:
        """As a new base: what was put in joins the smallest shard, what is gone leaves its own."""
        gone = pa.array(held.gone, _TYPES[held.manifest.id_type])
        smallest = min(held.shards, key=len, default=None)
        joined = [_table(held.put_in, held.manifest.id_type)]
        left = []
        for shard, ids in zip(held.shards, held.ids, strict=True):
            if shard is smallest:
                joined.append(_rows_but(shard, gone))
            else:
                shard.remove(_among(ids, gone))
                left.append(shard)
        made = [*left, indexed(pa.concat_tables(joined).combine_chunks(), held.domain, None)]
        with self._directory.staged() as staged:
            files = []
            for number, shard in enumerate(shard for shard in made if len(shard)):
                name = f"tidings-{held.manifest.fingerprint[:16]}-replicated-{number:05d}{SUFFIX}"
                shard.save(staged / name)
                files.append(_listed(staged / name, number, len(shard)))
            layout = Layout(REPLICATED, tuple(files))
            number = self._directory.publish(staged, held.manifest, REPLICATED, layout)
        return self._read(number)

    def _forget(self, current: int) -> None:
        """Remove the oldest versions that hold only changes; compiled ones are for the caller to remove."""
        old = current - VERSIONS_KEPT
        if old > 0 and (self._directory.folder(old) / f"{CHANGES}.json").exists():
            shutil.rmtree(self._directory.folder(old), ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time, of whichever process; the lock goes with its process."""
        path = self._directory.path / "changes.sqlite"
        try:
            lock = apsw.Connection(str(path))
            lock.set_busy_timeout(round(BUSY_SECONDS * 1000))
            lock.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise PipelineError(f"index: cannot change {self._directory.path}: {path.name}: {error}") from error
        try:
            yield
        finally:
            lock.close()


def _table(filters: dict[str | int, str], id_type: str) -> pa.Table:
    columns: dict[str, Any] = {
        "id": pa.array(list(filters), _TYPES[id_type]),
        "filter": pa.array(list(filters.values()), pa.string()),
    }
    return pa.table(columns)


def _rows_but(shard: Matcher, gone: Any) -> pa.Table:
    """The subscriptions of a shard as it was loaded, but for some."""
    rows: Any = shard.subscriptions()
    kept: pa.Table = rows.filter(pc.invert(pc.is_in(rows["id"], value_set=gone)))
    return kept


def _rows_of(held: _Held) -> pa.Table:
    """What of the base still counts."""
    gone = pa.array(held.gone, _TYPES[held.manifest.id_type])
    rows = [_rows_but(shard, gone) for shard in held.shards]
    return pa.concat_tables([_table({}, held.manifest.id_type), *rows])


def _among(ids: Any, wanted: Any) -> list[str | int]:
    """Which of some ids are wanted: a scan, since the wanted are few and to hash the others would take longer."""
    found: list[str | int] = ids.filter(pc.is_in(ids, value_set=wanted)).to_pylist()
    return found


def _listed(path: Path, shard: int, subscriptions: int) -> ShardFile:
    return ShardFile(shard, path.name, subscriptions, path.stat().st_size, checksum(path))
