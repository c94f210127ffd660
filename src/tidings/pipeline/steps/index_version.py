"""A version of an index on a worker: base, delta, removed ids and View, over files that versions share.

    base      files of the subscriptions as they were compiled, by shard
    delta     files of those that were put in since
    removed   a file of the ids that the base may still have and that no longer count
    view      which shards an event consults, and where; without a View every event consults all

A batch has one version, which travels with its tasks. A stream has many: each is a file `<number>.json` in the query's
folder, and a column of its events says which one they meet.

Python workers live across tasks and micro-batches, so what this module keeps is there for the next one. Files are
mapped when something is looked up in them: where events are routed, a worker maps only what it is asked for.
"""

from __future__ import annotations

import json
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles

from tidings.matching.matcher import Matcher
from tidings.matching.matches import Matches
from tidings.model.domain import Domain
from tidings.model.event import Reject
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps.match_metrics import DELTA, Measures
from tidings.systems.interface import CountsLists, View, view_from_dict

VERSIONS_KEPT = 4  # in a worker: that of a batch, that of one that is run again, and those of other queries
SCRATCH_BYTES = 384 << 20  # for matching a batch

_NOTHING_MEASURED = Measures()


@dataclass(frozen=True)
class Aside:
    """What a stream leaves out because it broke a batch: filters by their numbers, events by their positions.

    It holds for every version, so that a batch that is run again leaves out the same.
    """

    filters: frozenset[int] = frozenset()
    events: frozenset[int] = frozenset()

    def among(self, positions: Any) -> Any:
        """Returns which positions of an array are of events that are left out, as an array of booleans."""
        return pc.is_in(positions, value_set=pa.array(sorted(self.events), pa.int64()))


NOTHING = Aside()


# ---------------------------------------------------------------------- which files a version has


@dataclass(frozen=True, eq=False)
class VersionFiles:
    """The names of a version's files, and what else a worker needs to know of it."""

    base: Mapping[int, str]  # by shard; an empty shard has no file
    reads: tuple[str, ...]  # the columns that filters read
    delta: tuple[str, ...] = ()
    removed: str | None = None
    view: View | None = None
    domain: Domain | None = None  # given with a View

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.base.values(), *self.delta)


def read_version(folder: Path, name: str, shipped: str | None = None, *, lists: bool = False) -> VersionFiles:
    """Reads the version that a stream's driver wrote to a file of the query's folder.

    A View with lists that are counted is left out unless the caller counts (`lists`): then there is no View.
    """
    form = json.loads(find_file(folder, name, shipped).read_text())
    base: Mapping[int, str] = dict(enumerate(form["shards"]))
    view = domain = None
    if form.get("placed") is not None:
        layout = json.loads(find_file(folder, form["placed"]).read_text())
        placed = view_from_dict(layout["view"])
        if lists or not isinstance(placed, CountsLists):
            base = {file["shard"]: file["name"] for file in layout["files"]}
            view, domain = placed, Domain.from_json(form["domain"])
    return VersionFiles(base, tuple(form["reads"]), tuple(form["changes"]), form["overridden"], view, domain)


def read_ids(path: Path) -> Any:
    """Reads the column `id` of an Arrow file."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()["id"].combine_chunks()


def shipped_name(key: str, name: str) -> str:
    """Returns the name under which Spark brings a file of a query's own to executors: no other query has it."""
    return f"tidings-{key}-{name}"


def find_file(folder: Path | None, name: str, shipped: str | None = None) -> Path:
    """Returns where a file is: in the driver's folder if this worker sees that disk, else where Spark put it."""
    if folder is not None and (path := folder / name).exists():
        return path
    path = Path(SparkFiles.get(shipped or name))
    if path.exists():
        return path
    where = "" if folder is None else f" and is not in {folder}"
    raise PipelineError(
        f"the index file {name} did not reach this executor{where}; was the directory of the index or of the query's "
        "checkpoint removed or changed?"
    )


# ---------------------------------------------------------------------- a version that is in use


class Versions(Protocol):
    """What the rows of a batch are matched against."""

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[ShardedVersion, pa.RecordBatch]]:
        """Returns each version that the batch has rows of, with those rows."""


@dataclass(frozen=True)
class OneVersion:
    """All rows meet one version, which travels with the task."""

    files: VersionFiles
    shards_kept: int | None = None  # loaded at a time in a worker that serves one partition after the other

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[ShardedVersion, pa.RecordBatch]]:
        def make() -> ShardedVersion:
            return ShardedVersion(self.files, None, shards_kept=self.shards_kept)

        names = self.files.names  # no other build has files of these names
        yield _kept((names, self.files.reads), make) if names else make(), batch


@dataclass(frozen=True)
class PinnedVersions:
    """A column says which version of a query's folder a row meets."""

    folder: str  # on the driver's disk
    key: str  # of the query: before the names of files that Spark brings to other disks
    column: str
    aside: Aside = NOTHING
    lists: bool = False  # whether those who match can count lists

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[ShardedVersion, pa.RecordBatch]]:
        numbers = np.asarray(batch.column(self.column))
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            yield self.version(number), batch if mine.all() else batch.filter(pa.array(mine))

    def version(self, number: int) -> ShardedVersion:
        return _kept((self.folder, number, self.aside.filters, self.lists), lambda: self._read(number))

    def _read(self, number: int) -> ShardedVersion:
        folder, name = Path(self.folder), f"{number}.json"
        files = read_version(folder, name, shipped_name(self.key, name), lists=self.lists)
        removed = None if files.removed is None else read_ids(find_file(folder, files.removed))
        return ShardedVersion(files, folder, removed, self.aside.filters)


@dataclass(eq=False)
class ShardedVersion:
    """Matches events against a version."""

    files: VersionFiles
    folder: Path | None  # None: Spark brought the files
    removed: Any = None  # ids
    aside: frozenset[int] = frozenset()
    shards_kept: int | None = None
    _dead: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by file and slot

    @property
    def view(self) -> View | None:
        return self.files.view

    def match(self, rows: pa.RecordBatch, measures: Measures = _NOTHING_MEASURED) -> list[Matches]:
        """Returns the matches of each row with all subscriptions, file by file."""
        events = self._read(rows)
        with enough_memory():
            for name in self.files.names:
                _load(self, name, self.files.names)
            found = [self._found(name, shard, events, measures) for shard, name in self.files.base.items()]
            return found + [self._found(name, DELTA, events, measures) for name in self.files.delta]

    def match_visits(
        self, rows: pa.RecordBatch, shards: Any, is_first: Any, measures: Measures = _NOTHING_MEASURED
    ) -> list[Matches]:
        """Returns the matches of each row with the shards that it consults here, and at its first visit the delta."""
        events, found = self._read(rows), []
        with enough_memory():
            for shard, mine in consulted(shards):
                if shard in self.files.base:
                    found.append(self._of_some(self.files.base[shard], shard, events, mine, measures))
            first = np.flatnonzero(np.asarray(is_first))
            for name in self.files.delta if len(first) else ():
                found.append(self._of_some(name, DELTA, events, first, measures))
        return found

    def _read(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(list(self.files.reads) or rows.schema.names[:1])

    def _of_some(
        self, name: str, shard: int, events: pa.RecordBatch, rows: npt.NDArray[np.int64], measures: Measures
    ) -> Matches:
        some = events if len(rows) == len(events) else events.take(rows)
        return _scattered(self._found(name, shard, some, measures), rows, len(events))

    def _found(self, name: str, shard: int, events: pa.RecordBatch, measures: Measures) -> Matches:
        matcher = _load(self, name, (name,))
        with measures.matching(shard, matcher, len(events)):
            matches = matcher.match(events, on_error="reject")
        return matches if self.removed is None or shard == DELTA else self._without_removed(name, matches)

    def _without_removed(self, name: str, matches: Matches) -> Matches:
        if name not in self._dead:
            ids: Any = matches.subscription_ids
            self._dead[name] = np.asarray(pc.is_in(ids, value_set=self.removed).to_numpy(zero_copy_only=False))
        alive = ~self._dead[name][matches.slots]
        if alive.all():
            return matches
        counts = np.bincount(matches.events[alive], minlength=len(matches.offsets) - 1)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Matches(offsets, matches.slots[alive], matches.id_columns, matches.rejects)


def consulted(shards: Any) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Returns each shard that rows consult, with those rows, ascending; from an Arrow column of lists."""
    numbers = np.asarray(shards.flatten())
    rows = np.repeat(np.arange(len(shards)), np.diff(np.asarray(shards.offsets)))
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    for part in np.split(order, ends):
        if len(part):
            yield int(numbers[part[0]]), rows[part]


def _scattered(matches: Matches, rows: npt.NDArray[np.int64], count: int) -> Matches:
    """The matches of some rows of a batch, ascending, as those of the whole batch."""
    if len(rows) == count:
        return matches
    counts = np.zeros(count, np.int64)
    counts[rows] = np.diff(matches.offsets)
    rejects = [Reject(int(rows[reject.row]), reject.attribute, reject.reason) for reject in matches.rejects]
    return Matches(np.concatenate([[0], np.cumsum(counts)]), matches.slots, matches.id_columns, rejects)


# ---------------------------------------------------------------------- what a worker keeps

_Loaded = tuple[Path | None, str, frozenset[int]]  # folder, name, filters that are left out

_versions: OrderedDict[Any, ShardedVersion] = OrderedDict()  # the least recently used first
_loaded: OrderedDict[_Loaded, Matcher] = OrderedDict()  # likewise


def _kept(key: Any, make: Callable[[], ShardedVersion]) -> ShardedVersion:
    """The version of a key; with the least recently used version go the files that only it had."""
    if key not in _versions:
        _versions[key] = make()
    _versions.move_to_end(key)
    while len(_versions) > VERSIONS_KEPT:
        _versions.popitem(last=False)
        needed = {_key(version, name) for version in _versions.values() for name in version.files.names}
        for other in [other for other in _loaded if other not in needed]:
            del _loaded[other]
    return _versions[key]


def _key(version: ShardedVersion, name: str) -> _Loaded:
    return version.folder, name, version.aside


def _load(version: ShardedVersion, name: str, together: Sequence[str]) -> Matcher:
    """The matcher of a file; if memory is short, others go first, but for those that are needed together."""
    key = _key(version, name)
    if key not in _loaded:
        path, needed = find_file(version.folder, name), {_key(version, one) for one in together}
        size = path.stat().st_size
        for other in [other for other in _loaded if other not in needed]:
            if _spare_bytes() >= size + SCRATCH_BYTES:
                break
            del _loaded[other]
        matcher = Matcher.load(path, threads=1)  # Spark runs a task for each core already
        _loaded[key] = _without(matcher, version.aside) if version.aside else matcher
        if version.shards_kept is not None:
            mine = {_key(version, one) for one in version.files.names}
            loaded = [other for other in _loaded if other in mine]
            for other in loaded[: max(0, len(loaded) - version.shards_kept)]:
                del _loaded[other]
    _loaded.move_to_end(key)
    return _loaded[key]


def _without(matcher: Matcher, aside: frozenset[int]) -> Matcher:
    """The same subscriptions but for some. Built again: a filter that is only removed may still be evaluated."""
    table = matcher.subscriptions()
    left_out: Any = pc.is_in(table["id"], value_set=pa.array(sorted(aside), pa.int64()))
    if not pc.any(left_out).as_py():
        return matcher
    return Matcher(table.filter(pc.invert(left_out)), matcher.domain, threads=1)


def _spare_bytes() -> float:
    """The addresses that this process may still take, where Spark bounds them."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return inf
    return limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raises what to do about it if a worker runs out of memory."""
    try:
        yield
    except MemoryError as error:
        raise PipelineError(
            f"a Python worker has too little memory for its part of the index ({error}): give workers more "
            "(spark.executor.pyspark.memory), or each a smaller part (placement='auto', or one that has "
            "segments, with more of them)"
        ) from error
