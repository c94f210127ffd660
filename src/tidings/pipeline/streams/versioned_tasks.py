"""What tasks of a stream do to match: every row against the version of the subscriptions that it is pinned to.

Python workers live across micro-batches, so what this module keeps is there for the next one: the
versions of late, over shards that they share. A version is a folder's `<number>.json`, which names

    shards       files of the subscriptions as they were compiled
    changes      a file of those that were changed since, if any were
    overridden   a file of the ids that `shards` may still have, and that no longer count
    placed       a layout of the same subscriptions as `shards`, by a View, where there is one

Files are mapped when something is looked up in them: where events are routed, a worker maps what it is asked for.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles

from tidings.matching.matcher import Matcher
from tidings.matching.matches import Matches
from tidings.model.domain import Domain
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps.match_tasks import Task, answer, consulted, scattered
from tidings.pipeline.streams.left_out import NOTHING, Aside
from tidings.systems.interface import View, view_from_dict

VERSIONS_KEPT = 3  # in a worker: that of a batch, that of one that is run again, and another query's

_tried = 0  # candidates that this worker has verified since it began
_versions: OrderedDict[tuple[str, int, frozenset[int]], PinnedVersion] = OrderedDict()  # the least recently used first
_files: dict[tuple[str, frozenset[int]], dict[str, Matcher | Placed]] = {}  # what versions of a query share, by name


def tried() -> int:
    """How many candidates this worker has verified since it began."""
    return _tried


@dataclass(frozen=True, eq=False)
class Placed:
    """A View, and the files of its shards."""

    view: View
    files: dict[int, str]


@dataclass(frozen=True)
class PinnedTask:
    """What a worker has to know: small, since it travels with every task."""

    names: tuple[str, ...]  # of the events' columns
    folder: str  # of the query's versions, on the driver's disk
    key: str  # of the query: before the names of files that Spark brings to other disks
    version: str  # the column that says which
    rejected: str | None  # the column that says why an event does not fit its domain, where the source tells
    string_ids: bool
    keeps: tuple[str, ...] = ()  # the columns that go on with the matches; all where none is named
    position: str = "position"  # the column that says which event it is
    aside: Aside = NOTHING  # what is left out


def match_pinned(task: PinnedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows with their matches; rows of several versions may come in one batch."""
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(task.names))
        for version, rows in by_version(task, batch):
            yield from answered(task, rows, version.match)


def by_version(task: PinnedTask, batch: pa.RecordBatch) -> Iterator[tuple[PinnedVersion, pa.RecordBatch]]:
    """The rows of a batch that are pinned to one version each."""
    numbers = np.asarray(batch.column(task.version))
    for number in np.unique(numbers).tolist():
        yield _version(task, number), batch if (numbers == number).all() else batch.filter(pa.array(numbers == number))


def answered(
    task: PinnedTask, rows: pa.RecordBatch, match: Callable[[pa.RecordBatch], list[Matches]]
) -> Iterator[pa.RecordBatch]:
    """The columns that go on, with what `match` finds; NULL for rows that do not fit their domain or are left out."""
    names = task.keeps or task.names
    shape = Task(names=names, files={}, reads=(), counts=False, string_ids=task.string_ids)
    fit = _fitting(task, rows)
    if not pc.all(fit, min_count=0).as_py():
        unfit = rows.filter(pc.invert(fit)).select(list(names))
        (nothing,) = answer(unfit, [], shape)
        nulls = pa.nulls(len(unfit), nothing.schema.field("subscriptions").type)
        yield nothing.set_column(nothing.num_columns - 1, "subscriptions", nulls)
        rows = rows.filter(fit)
    if len(rows):
        yield from answer(rows.select(list(names)), match(rows), shape)


def _fitting(task: PinnedTask, rows: pa.RecordBatch) -> Any:
    """Which rows are matched: those that fit their domain and are not left out."""
    fit: Any = pa.array(np.ones(len(rows), bool))
    if task.rejected is not None:
        fit = rows.column(task.rejected).is_null()
    if task.aside.events:
        fit = pc.and_(fit, pc.invert(task.aside.among(rows.column(task.position))))
    return fit


@dataclass(eq=False)
class PinnedVersion:
    reads: list[str]
    shards: list[str]  # files
    changes: list[str]
    overridden: Any  # ids; None where there are none
    placed: Placed | None
    domain: Domain | None  # where it is placed
    files: set[str]  # all of these
    load: Callable[[str], Matcher]
    _dead: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by file and slot

    def match(self, rows: pa.RecordBatch) -> list[Matches]:
        """Each row with all subscriptions."""
        events = self._read(rows)
        found = [self._looked_up(name, events) for name in self.shards]
        return found + [self._looked_up(name, events) for name in self.changes]

    def match_visits(self, rows: pa.RecordBatch, shards: Any, is_first: Any) -> list[Matches]:
        """Each row with the shards that it consults here; and what was changed since, at an event's first visit."""
        assert self.placed is not None
        events = self._read(rows)
        found = []
        for shard, mine in consulted(shards):
            if shard in self.placed.files:
                found.append(self._of_some(self.placed.files[shard], events, mine))
        first = np.flatnonzero(np.asarray(is_first))
        return found + [self._of_some(name, events, first) for name in self.changes if len(first)]

    def _read(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(self.reads or rows.schema.names[:1])

    def _of_some(self, name: str, events: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> Matches:
        some = events if len(rows) == len(events) else events.take(rows)
        return scattered(self._looked_up(name, some), rows, len(events))

    def _looked_up(self, name: str, events: pa.RecordBatch) -> Matches:
        global _tried
        matcher = self.load(name)
        before = matcher._counters[1]
        matches = matcher.match(events, on_error="reject")
        _tried += matcher._counters[1] - before
        return matches if self.overridden is None or name in self.changes else self._without_dead(name, matches)

    def _without_dead(self, name: str, matches: Matches) -> Matches:
        if name not in self._dead:
            ids: Any = matches.subscription_ids
            self._dead[name] = np.asarray(pc.is_in(ids, value_set=self.overridden).to_numpy(zero_copy_only=False))
        alive = ~self._dead[name][matches.slots]
        if alive.all():
            return matches
        counts = np.bincount(matches.events[alive], minlength=len(matches.offsets) - 1)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Matches(offsets, matches.slots[alive], matches.id_columns, matches.rejects)


def _version(task: PinnedTask, number: int) -> PinnedVersion:
    place = (task.folder, number, task.aside.filters)
    if place not in _versions:
        _versions[place] = _load(task, number)
    _versions.move_to_end(place)
    while len(_versions) > VERSIONS_KEPT:
        (folder, _, aside), _gone = _versions.popitem(last=False)
        _forget(folder, aside)
    return _versions[place]


def _forget(folder: str, aside: frozenset[int]) -> None:
    """What no version of a query needs any more."""
    theirs = (version.files for (place, _, out), version in _versions.items() if (place, out) == (folder, aside))
    needed = set[str]().union(*theirs)
    _files[folder, aside] = {name: held for name, held in _files.get((folder, aside), {}).items() if name in needed}


def _load(task: PinnedTask, number: int) -> PinnedVersion:
    name = f"{number}.json"
    form = json.loads(find_file(task.folder, name, shipped_name(task.key, name)).read_text())
    overridden = None
    if form["overridden"] is not None:
        with pa.memory_map(str(find_file(task.folder, form["overridden"]))) as file:
            overridden = pa.ipc.open_file(file).read_all()["id"].combine_chunks()
    files = {*form["shards"], *form["changes"]}
    placed = domain = None
    if form.get("placed") is not None:
        placed = _shared(task, form["placed"], _placed)
        domain = Domain.from_json(form["domain"])
        files |= {form["placed"], *placed.files.values()}
    load = partial(_shared, task, read=partial(_matcher, task.aside.filters))
    return PinnedVersion(form["reads"], form["shards"], form["changes"], overridden, placed, domain, files, load)


def _shared(task: PinnedTask, name: str, read: Callable[[str], Any]) -> Any:
    """What a file holds, read once for all versions that have it."""
    held = _files.setdefault((task.folder, task.aside.filters), {})
    if name not in held:
        held[name] = read(str(find_file(task.folder, name)))
    return held[name]


def _matcher(aside: frozenset[int], path: str) -> Matcher:
    matcher = Matcher.load(path, threads=1)  # Spark runs a task for each core already
    return without(matcher, aside) if aside else matcher


def without(matcher: Matcher, aside: frozenset[int]) -> Matcher:
    """The same subscriptions but for some, which are not as much as looked at."""
    table = matcher.subscriptions()
    left_out: Any = pc.is_in(table["id"], value_set=pa.array(sorted(aside), pa.int64()))
    if not pc.any(left_out).as_py():
        return matcher
    return Matcher(table.filter(pc.invert(left_out)), matcher.domain, threads=1)


def _placed(path: str) -> Placed:
    form = json.loads(Path(path).read_text())
    return Placed(view_from_dict(form["view"]), {file["shard"]: file["name"] for file in form["files"]})


def shipped_name(key: str, name: str) -> str:
    """The name under which Spark brings a file of the query's own to executors: no other query has it."""
    return f"tidings-{key}-{name}"


def find_file(folder: str, name: str, shipped: str | None = None) -> Path:
    """A file where the driver put it, if this worker sees that disk; else where Spark did, perhaps as `shipped`."""
    path = Path(folder, name)
    if path.exists():
        return path
    path = Path(SparkFiles.get(shipped or name))
    if path.exists():
        return path
    raise PipelineError(
        f"stream: the file {name} of the subscriptions is neither in {folder} nor did Spark bring it to this "
        "executor; was the checkpoint's directory changed?"
    )
