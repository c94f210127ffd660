"""What tasks of a stream do to match: every row against the version of the subscriptions that it is pinned to.

Python workers live across micro-batches, so what this module keeps is there for the next one: the
versions of late, over shards that they share. A version is a folder's `<number>.json`, which names

    shards       files of the subscriptions as they were compiled
    changes      a file of those that were changed since, if any were
    overridden   a file of the ids that `shards` may still have, and that no longer count
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles

from tidings.matching.matcher import Matcher
from tidings.matching.matches import Matches
from tidings.pipeline.errors import PipelineError
from tidings.pipeline.worker import Task, answer

VERSIONS_KEPT = 3  # in a worker: that of a batch, that of one that is run again, and another query's

_tried = 0  # candidates that this worker has verified since it began
_versions: OrderedDict[tuple[str, int], _Version] = OrderedDict()  # the least recently used first


def tried() -> int:
    """How many candidates this worker has verified since it began."""
    return _tried


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


def match_pinned(task: PinnedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows with their matches; rows of several versions may come in one batch."""
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(task.names))
        numbers = np.asarray(batch.column(task.version))
        for number in np.unique(numbers).tolist():
            rows = batch if (numbers == number).all() else batch.filter(pa.array(numbers == number))
            yield from _matched(task, _version(task, number), rows)


def _matched(task: PinnedTask, version: _Version, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    names = task.keeps or task.names
    shape = Task(names=names, files={}, reads=(), counts=False, string_ids=task.string_ids)
    if task.rejected is not None and rows.column(task.rejected).null_count < len(rows):
        fit = rows.column(task.rejected).is_null()
        unfit = rows.filter(pc.invert(fit)).select(list(names))
        (answered,) = answer(unfit, [], shape)
        nothing = pa.nulls(len(unfit), answered.schema.field("subscriptions").type)
        yield answered.set_column(answered.num_columns - 1, "subscriptions", nothing)
        rows = rows.filter(fit)
    if len(rows):
        matches = version.match(rows.select(version.reads or rows.schema.names[:1]))
        yield from answer(rows.select(list(names)), matches, shape)


@dataclass(eq=False)
class _Version:
    reads: list[str]
    shards: dict[str, Matcher]  # by file
    changes: dict[str, Matcher]
    overridden: Any  # ids; None where there are none
    _dead: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by file and slot

    def match(self, events: pa.RecordBatch) -> list[Matches]:
        global _tried
        matchers = [*self.shards.values(), *self.changes.values()]
        before = sum(matcher._counters[1] for matcher in matchers)
        found = self._found(events)
        _tried += sum(matcher._counters[1] for matcher in matchers) - before
        return found

    def _found(self, events: pa.RecordBatch) -> list[Matches]:
        found = []
        for name, shard in self.shards.items():
            matches = shard.match(events, on_error="reject")
            found.append(matches if self.overridden is None else self._without_dead(name, matches))
        return found + [changes.match(events, on_error="reject") for changes in self.changes.values()]

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


def _version(task: PinnedTask, number: int) -> _Version:
    place = (task.folder, number)
    if place not in _versions:
        _versions[place] = _load(task, number)
    _versions.move_to_end(place)
    while len(_versions) > VERSIONS_KEPT:
        _versions.popitem(last=False)
    return _versions[place]


def _load(task: PinnedTask, number: int) -> _Version:
    form = json.loads(Path(_find(task, f"{number}.json", task.key)).read_text())
    own = [version for (folder, _), version in _versions.items() if folder == task.folder]
    known = {name: shard for version in own for name, shard in version.shards.items()}

    def load(names: list[str]) -> dict[str, Matcher]:
        # Spark runs a task for each core already: one thread each.
        return {name: known.get(name) or Matcher.load(_find(task, name), threads=1) for name in names}

    overridden = None
    if form["overridden"] is not None:
        with pa.memory_map(_find(task, form["overridden"])) as file:
            overridden = pa.ipc.open_file(file).read_all()["id"].combine_chunks()
    return _Version(form["reads"], load(form["shards"]), load(form["changes"]), overridden)


def shipped_name(key: str, name: str) -> str:
    """The name under which Spark brings a file of the query's own to executors: no other query has it."""
    return f"tidings-{key}-{name}"


def _find(task: PinnedTask, name: str, key: str = "") -> str:
    """A file where the driver put it, if this worker sees that disk; else where Spark did."""
    path = os.path.join(task.folder, name)
    if os.path.exists(path):
        return path
    path = SparkFiles.get(shipped_name(key, name) if key else name)
    if os.path.exists(path):
        return path
    raise PipelineError(
        f"stream: the file {name} of the subscriptions is neither in {task.folder} nor did Spark bring it to this "
        "executor; was the checkpoint's directory changed?"
    )
