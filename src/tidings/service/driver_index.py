"""The index of one domain, kept at what the catalogue says.

Every filter row that can still concern an event is in the index, under its number, whatever its validity: who
delivers looks at that. A row enters when it is committed, before anybody is promised anything, and leaves when the
stream has passed its end. A filter that cannot be compiled is left out with its reason, and stops no other.

At a start the index is compared with the catalogue row by row, so that whatever a crash has left half done, or
somebody has restored from a copy, is put right; from then on only changes are read.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings import pipeline
from tidings.errors import TidingsError
from tidings.model.domain import Domain
from tidings.model.filter.compile import compile_filters
from tidings.pipeline.changes import Base, IndexChanges, Snapshot, empty_index
from tidings.pipeline.directory import IndexDirectory
from tidings.pipeline.errors import PipelineError
from tidings.pipeline.gate import Covers, forget_covers, write_covers
from tidings.pipeline.versions import describe_version
from tidings.rendezvous.interface import View, view_from_dict
from tidings.service.data_directory import DomainFiles
from tidings.store.catalogue import Catalogue, DomainRow, FilterRow
from tidings.store.formats import FormatError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = 10_000  # rows of one change
COMPILED_AT = 50_000  # rows of a new index that are worth a job of Spark
RETIRED_TOGETHER = 1_000  # rows that have ended, before a version is made only to be without them,
RETIRE_SECONDS = 20.0  # or so long after the last one
BASES_KEPT = 2  # compiled versions: one that a query is about to take up must not go
REASONS_KEPT = 1_000
VIEWED_SHARE = 0.05  # of the subscriptions that may be outside the base when it gets a View

_log = logging.getLogger("tidings.service")


def domain_of(row: DomainRow) -> Domain:
    """A domain as the log and the index know it: under its key."""
    defined = Domain.from_json(row.definition)
    return Domain(row.key, defined.attributes, defined.indices)


@dataclass
class Known:
    """What is known of a filter row that is, or was, in the index."""

    subscription: int  # the key of its subscription, which deliveries have
    valid_to: int | None


@dataclass
class DomainIndex:
    """Follows the catalogue for one domain. Used by one thread."""

    files: DomainFiles
    catalogue: Catalogue
    spark: SparkSession
    known: dict[int, Known] = field(default_factory=dict)  # by the number of the row; those that have left too
    rejected: dict[int, str] = field(default_factory=dict)  # why a row is not in the index
    covers: int = -1  # the revision of the domain that the current version has
    domain: Domain | None = None
    _ending: dict[int, int] = field(default_factory=dict)  # where rows that are in the index end
    _retired: set[int] = field(default_factory=set)  # rows that can leave with the next version
    _left: list[int] = field(default_factory=list)  # rows that have left it
    _published: float = 0.0

    def __post_init__(self) -> None:
        self._directory = IndexDirectory(self.files.index)
        self._changes = IndexChanges(self.files.index)

    @property
    def version(self) -> int:
        return self._directory.current() or 0

    def open(self, row: DomainRow, reached: int) -> None:
        """Have the index be what the catalogue says, for events from a position on. Closes the gate meanwhile."""
        self.files.folder.mkdir(parents=True, exist_ok=True)
        forget_covers(self.files.index)
        self.domain = domain_of(row)
        rows = self.catalogue.changed_filters(row.tenant, row.name, -1)  # after `row` was read
        self.known = {one.number: Known(one.subscription_key, one.valid_to) for one in rows}
        self.rejected.clear()
        self._retired.clear()
        wanted = {one.number: one for one in rows if one.needed_from(reached)}
        self._ending = {number: one.valid_to for number, one in wanted.items() if one.valid_to is not None}
        there = self._there()
        if there is None:
            self._made_anew(list(wanted.values()))
            there = self._numbers()
        missing = [one for number, one in wanted.items() if number not in there and number not in self.rejected]
        self._change(missing, there - wanted.keys())
        self._say(row.revision)

    def follow(self, row: DomainRow) -> bool:
        """Take in what has changed up to the revision of a domain's row; answers whether anything was published.

        The domain itself has to be the one that the index was opened with.
        """
        if row.revision <= self.covers:
            return False
        changed = self.catalogue.changed_filters(row.tenant, row.name, self.covers)
        new = []
        for one in changed:
            if one.number not in self.known:
                new.append(one)
            self.known[one.number] = Known(one.subscription_key, one.valid_to)
            if one.valid_to is not None and one.number not in self.rejected:
                self._ending[one.number] = one.valid_to
        if new:
            self._remove(new)
        self._say(row.revision)
        return True

    def retire(self, reached: int) -> list[int]:
        """Have the rows leave whose end the stream has passed: with the next change, or where they are many.

        Answers which rows have left since this was last asked.
        """
        for number in [number for number, end in self._ending.items() if end <= reached]:
            del self._ending[number]
            self._retired.add(number)
        waited = time.monotonic() - self._published
        if self._retired and (len(self._retired) >= RETIRED_TOGETHER or waited > RETIRE_SECONDS):
            self._remove([])
            self._say(self.covers)
        left, self._left = self._left, []
        return left

    def forget(self, numbers: Iterable[int]) -> None:
        """Rows whose subscription is gone, and what was waiting for it."""
        for number in numbers:
            self.known.pop(number, None)
            self.rejected.pop(number, None)

    def numbers_of(self, subscriptions: Iterable[int]) -> dict[int, list[int]]:
        """The numbers of the rows of subscriptions, by their keys."""
        wanted = set(subscriptions)
        found: dict[int, list[int]] = {}
        for number, one in self.known.items():
            if one.subscription in wanted:
                found.setdefault(one.subscription, []).append(number)
        return found

    # ------------------------------------------------------------------ Views

    @property
    def placed(self) -> str | None:
        """The layout that events are routed by, where the index has one."""
        return self._changes.placed

    def view(self) -> View | None:
        """That of this layout."""
        placed = describe_version(self._directory, self.version).placed
        return None if placed is None or placed[1].view is None else view_from_dict(placed[1].view)

    def snapshot(self) -> Snapshot:
        return self._changes.snapshot()

    def base(self) -> Base:
        return self._changes.base()

    def base_for_a_view(self) -> Base:
        """The base, made anew where much of the index is not in it: what is not has no part in a View."""
        self._changes.fold(VIEWED_SHARE, at_least=1)
        self._forget_bases()
        return self._changes.base()

    def adopt(self, base: Base, layout: str | None) -> bool:
        """Have events routed by a layout of a base, or by none, from the next version on; not if there is another base.

        Whoever runs the stream has it take up that version, and calls `forget_views` then.
        """
        return self._changes.place(base.number, layout) is not None

    def forget_views(self) -> None:
        """Remove the layouts that are not in force. A query has links of its own to what it needs."""
        base = self._changes.base()
        folder = self._directory.folder(base.number)
        for path in folder.glob("placed-*.json"):
            if path.stem != base.placed:
                layout = self._directory.layout(base.number, path.stem, check=False)
                path.unlink()
                for file in () if layout is None else layout.files:
                    (folder / file.name).unlink(missing_ok=True)

    # ------------------------------------------------------------------ versions

    def _say(self, revision: int) -> None:
        self.covers = revision
        write_covers(self.files.index, Covers(self.version, revision))
        self._changes.fold()  # now that the stream can go on
        self._forget_bases()

    def _there(self) -> set[int] | None:
        """The rows in the index; None where there is none that can be gone on from."""
        assert self.domain is not None
        try:
            latest = self._directory.latest()
            if latest is None:
                return None
            if Domain.from_json(latest[1].domain) != self.domain:
                self._changes.apply(domain=self.domain)  # refuses what is more than further attributes
            return self._numbers()
        except FormatError:
            raise  # of another version of Tidings, which is to find it as it was
        except TidingsError as error:
            _log.warning("%s: the index is made anew: %s", self.files.key, error)
            return None

    def _numbers(self) -> set[int]:
        return set(self._changes.ids().to_pylist())

    def _made_anew(self, rows: Sequence[FilterRow]) -> None:
        """An index in place of whatever is there, its versions after all that the stream may have met."""
        assert self.domain is not None
        empty_index(self.files.index, self.domain, after=max(self.version, self._last_matched()))
        self._changes = IndexChanges(self.files.index)
        if len(rows) < COMPILED_AT:
            return
        table = self.spark.createDataFrame(_table(rows))
        index = pipeline.compile(table, self.files.index, domain=self.domain, placement="replicated")
        if index.rejected:
            for reject in index.rejects.limit(REASONS_KEPT).collect():
                self._reject(reject.id, reject.reason)

    def _last_matched(self) -> int:
        """The last version that the query has in its own directory."""
        versions = (self.files.query / "subscriptions").glob("*.json")
        return max((int(path.stem) for path in versions if path.stem.isdecimal()), default=0)

    def _change(self, rows: Sequence[FilterRow], remove: Iterable[int]) -> None:
        """Put rows in, in groups, and take others out with the first of them."""
        leaving = set(remove) & self._numbers() if remove else set[int]()
        sound = self._sound(rows)
        groups = [sound[start : start + GROUP] for start in range(0, len(sound), GROUP)]
        if not groups and leaving:
            groups = [[]]
        for group in groups:
            self._put(group, leaving)
            leaving = set()
        self._published = time.monotonic()

    def _forget_bases(self) -> None:
        """Remove compiled versions but for the last ones. A query has links of its own to what it needs."""
        if self._directory.folder(self.version).joinpath("replicated.json").exists():
            compiled = sorted(int(path.parent.name) for path in self.files.index.glob("[0-9]*/replicated.json"))
            for number in compiled[:-BASES_KEPT]:
                shutil.rmtree(self._directory.folder(number), ignore_errors=True)

    def _remove(self, coming: Sequence[FilterRow]) -> None:
        """Have those leave that can, and others come."""
        self._change(coming, self._retired)
        self._left += self._retired
        self._retired = set()

    def _sound(self, rows: Sequence[FilterRow]) -> list[FilterRow]:
        """The rows whose filters can be read; of the others it is noted why not."""
        assert self.domain is not None
        if not rows:
            return []
        texts = pa.array([row.filter for row in rows], pa.string())
        good = np.ones(len(rows), bool)
        for place, error in compile_filters(texts, self.domain, on_error="reject").rejects:
            good[place] = False
            self._reject(rows[place].number, str(error))
        return [row for row, is_good in zip(rows, good.tolist(), strict=True) if is_good]

    def _put(self, rows: Sequence[FilterRow], remove: set[int]) -> None:
        """One change. What brings it down is looked for by halves: one row must not keep the others out."""
        try:
            self._changes.apply(upsert=_table(rows), remove=remove, fold=False)
        except (PipelineError, OSError):
            raise  # the index cannot be written, which is no fault of a row
        except Exception as error:
            if len(rows) == 0:
                raise
            if len(rows) == 1:
                _log.exception("%s: filter %d cannot be put in", self.files.key, rows[0].number)
                self._reject(rows[0].number, f"cannot be compiled: {error}")
                if remove:
                    self._put([], remove)
                return
            half = len(rows) // 2
            self._put(rows[:half], remove)
            self._put(rows[half:], set())

    def _reject(self, number: int, reason: str) -> None:
        _log.warning("%s: filter %d is left out: %s", self.files.key, number, reason)
        self._ending.pop(number, None)
        self.rejected[number] = reason if len(self.rejected) < REASONS_KEPT else "see the driver's log"


def _table(rows: Sequence[FilterRow]) -> pa.Table:
    numbers = pa.array([row.number for row in rows], pa.int64())
    return pa.table({"id": numbers, "filter": pa.array([row.filter for row in rows], pa.string())})
