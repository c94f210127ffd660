"""The index of one domain that has its own stream: files that follow the catalogue."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidings import pipeline
from tidings.errors import TidingsError
from tidings.model.domain import Domain
from tidings.pipeline.build.index_directory import IndexDirectory, describe_version
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.sources.version_gate import Covers, forget_covers, write_covers
from tidings.pipeline.streams.index_changes import Base, IndexChanges, IndexSnapshot, empty_index
from tidings.service.data.data_directory import DomainFiles
from tidings.service.driver.followed_filters import REASONS_KEPT, FollowedFilters
from tidings.store.catalogue import Catalogue, FilterRow
from tidings.store.formats import FormatError
from tidings.systems.interface import REPLICATED, View, view_from_dict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = 10_000  # rows of one change
COMPILED_AT = 50_000  # rows of a new index from which a Spark job compiles it
BASES_KEPT = 2  # compiled versions: a query may be about to read the one before the last
VIEWED_SHARE = 0.05  # of the subscriptions may be outside the base when it gets a View

_log = logging.getLogger("tidings.service")


class DomainIndex(FollowedFilters):
    """Holds the filter rows of a domain in an index of files. The gate is closed until rows and files agree."""

    def __init__(self, files: DomainFiles, catalogue: Catalogue, spark: SparkSession) -> None:
        super().__init__(files, catalogue)
        self._spark = spark
        self._directory = IndexDirectory(files.index)
        self._changes = IndexChanges(files.index)

    @property
    def version(self) -> int:
        return self._directory.current() or 0

    # ------------------------------------------------------------------ Views

    @property
    def placed(self) -> str | None:
        """The layout that events are routed by, if the index has one."""
        return self._changes.placed

    def view(self) -> View | None:
        """Returns the View of this layout."""
        placed = describe_version(self._directory, self.version).placed
        return None if placed is None or placed[1].view is None else view_from_dict(placed[1].view)

    def snapshot(self) -> IndexSnapshot:
        return self._changes.snapshot()

    def base(self) -> Base:
        return self._changes.base()

    def base_for_a_view(self) -> Base:
        """Returns the base, rebuilt if much of the index is outside of it: only the base takes part in a View."""
        self._changes.fold(VIEWED_SHARE, at_least=1)
        self._forget_bases()
        return self._changes.base()

    def adopt(self, base: Base, layout: str | None) -> bool:
        """Route events by a layout of a base, or by none, from the next version on; returns whether
        that is still its base.

        The caller has the stream take up that version, then calls `forget_views`.
        """
        return self._changes.place(base.number, layout) is not None

    def forget_views(self) -> None:
        """Remove the layouts that are not in force. A query has its own links to the files that it needs."""
        base = self._changes.base()
        folder = self._directory.folder(base.number)
        for path in folder.glob("placed-*.json"):
            if path.stem != base.placed:
                layout = self._directory.layout(base.number, path.stem, check=False)
                path.unlink()
                for file in () if layout is None else layout.files:
                    (folder / file.name).unlink(missing_ok=True)

    # ------------------------------------------------------------------ versions

    def _begin(self) -> None:
        self.files.folder.mkdir(parents=True, exist_ok=True)
        forget_covers(self.files.index)

    def _covered(self, revision: int) -> None:
        self.covers = revision
        write_covers(self.files.index, Covers(self.version, revision))
        self._changes.fold()  # after the stream was let through
        self._forget_bases()

    def _there(self) -> set[int] | None:
        assert self.domain is not None
        try:
            latest = self._directory.latest()
            if latest is None:
                return None
            if Domain.from_json(latest[1].domain) != self.domain:
                self._changes.apply(domain=self.domain)  # raises unless attributes were only added
            return self._numbers()
        except FormatError:
            raise  # of another version of Tidings: the files stay as they are
        except TidingsError as error:
            _log.warning("%s: the index is rebuilt: %s", self.files.key, error)
            return None

    def _numbers(self) -> set[int]:
        return set(self._changes.ids().to_pylist())

    def _start_over(self, rows: Sequence[FilterRow]) -> None:
        """Replace the index by a new one, whose versions come after all that the stream may have used."""
        assert self.domain is not None
        empty_index(self.files.index, self.domain, after=max(self.version, self._last_matched()))
        self._changes = IndexChanges(self.files.index)
        if len(rows) < COMPILED_AT:
            return
        table = self._spark.createDataFrame(_table(rows))
        index = pipeline.compile(table, self.files.index, domain=self.domain, placement=REPLICATED)
        if index.rejected:
            for reject in index.rejects.limit(REASONS_KEPT).collect():
                self._reject(reject.id, reject.reason)

    def _last_matched(self) -> int:
        """Returns the last version that the query has in its own directory."""
        versions = (self.files.query / "subscriptions").glob("*.json")
        return max((int(path.stem) for path in versions if path.stem.isdecimal()), default=0)

    def _apply(self, rows: Sequence[FilterRow], remove: set[int]) -> None:
        """Put rows in, in groups, and take others out with the first of them."""
        groups = [rows[start : start + GROUP] for start in range(0, len(rows), GROUP)] or [[]]
        for group in groups:
            self._put(group, remove)
            remove = set()

    def _forget_bases(self) -> None:
        """Remove all compiled versions but the last ones. A query has its own links to the files that it needs."""
        if self._directory.folder(self.version).joinpath("replicated.json").exists():
            compiled = sorted(int(path.parent.name) for path in self.files.index.glob("[0-9]*/replicated.json"))
            for number in compiled[:-BASES_KEPT]:
                shutil.rmtree(self._directory.folder(number), ignore_errors=True)

    def _put(self, rows: Sequence[FilterRow], remove: set[int]) -> None:
        """Apply one change. If it fails, halve it until the row that breaks it is found, and leave that row out."""
        try:
            self._changes.apply(upsert=_table(rows), remove=remove, fold=False)
        except (PipelineError, OSError):
            raise  # the index cannot be written: no row is at fault
        except Exception as error:
            if len(rows) == 0:
                raise
            if len(rows) == 1:
                _log.exception("%s: filter %d cannot be added to the index", self.files.key, rows[0].number)
                self._reject(rows[0].number, f"cannot be compiled: {error}")
                if remove:
                    self._put([], remove)
                return
            half = len(rows) // 2
            self._put(rows[:half], remove)
            self._put(rows[half:], set())


def _table(rows: Iterable[FilterRow]) -> pa.Table:
    rows = list(rows)
    numbers = pa.array([row.number for row in rows], pa.int64())
    return pa.table({"id": numbers, "filter": pa.array([row.filter for row in rows], pa.string())})
