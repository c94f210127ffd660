"""What a draft filter would have delivered over stored events, and how that differs from a subscription there is.

One pass over the events: every task matches its share against both filters and keeps a tally, which is counts by kind
and time and a few events of each kind; one task merges the tallies; the driver gets one row. A tally takes as much
memory after a billion events as after a thousand.
"""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.errors import DomainError, EventError, FilterError, SubscriptionError, did_you_mean
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import attributes_of
from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain, parse_path, path_text
from tidings.model.types import Path
from tidings.pipeline.build.event_schema import domain_of
from tidings.pipeline.build.table_reading import checked
from tidings.pipeline.job_errors import PipelineError, brief_errors
from tidings.pipeline.jobs.time_buckets import BUCKETS_MAX, DAY, SECOND, Bucket, Timeline, Times, moment
from tidings.pipeline.runtime.spark_workarounds import numbered

if TYPE_CHECKING:
    import os

    from rich.console import RenderableType

Event = dict[str, Any]

SAMPLES_MAX = 1_000
TIME = "_tidings_time"  # the column that says when an event was
NEITHER, ONLY_DRAFT, ONLY_EXISTING, BOTH = KINDS = range(4)  # of events: 1 is the draft, 2 the existing, 3 their sum

_YEARS_1_TO_9999 = (-62_135_596_800_000_000, 253_402_300_800_000_000)  # in microseconds: what a datetime can say

_TIMES = T.TimestampType | T.TimestampNTZType | T.DateType
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_IDS_LOOKED_AT = 10_000  # for the hint to a misspelt id


@dataclass(frozen=True)
class Counts:
    """Of some events, by which of the two filters they match. Without one to compare with, it matches nothing."""

    events: int
    only_draft: int
    only_existing: int
    both: int

    @property
    def draft(self) -> int:
        return self.only_draft + self.both

    @property
    def existing(self) -> int:
        return self.only_existing + self.both


@dataclass(frozen=True)
class Backtest:
    """What a draft filter would have delivered. Prints as a report with rich; `picture` draws the rate over time."""

    draft: str
    against: str | None  # the filter that it is compared with
    counts: Counts
    unfit: int  # events with a value that does not fit the domain, which match nothing
    time: str | None  # the column that says when an event was
    bucket: str | None
    first: dt.datetime | None  # time of an event, in UTC
    last: dt.datetime | None
    timeless: int  # events without a time: in the counts, and not in the rate
    rate: tuple[tuple[dt.datetime, Counts], ...]  # by the start of every bucket, in UTC
    samples: dict[str, tuple[Event, ...]]  # by "only_draft", "only_existing" and "both": drawn at random, in order
    reads: tuple[str, ...] = field(repr=False)  # the attributes that the filters ask anything of

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it: what JSON has no form for, such as times and decimals, is text."""
        return {
            "draft": self.draft,
            "against": self.against,
            "counts": _counts_dict(self.counts),
            "unfit": self.unfit,
            "time": self.time,
            "bucket": self.bucket,
            "first": None if self.first is None else self.first.isoformat(),
            "last": None if self.last is None else self.last.isoformat(),
            "timeless": self.timeless,
            "rate": [{"start": start.isoformat(), **_counts_dict(counts)} for start, counts in self.rate],
            "samples": {kind: [_plain(event) for event in events] for kind, events in self.samples.items()},
        }

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the rate over time to a file .png, .svg or .pdf. Needs matplotlib, the extra `plots`."""
        from tidings.pipeline.jobs.backtest_report import draw

        draw(self, path)

    def __rich__(self) -> RenderableType:
        from tidings.pipeline.jobs.backtest_report import report

        return report(self)


def backtest(
    events: DataFrame,
    filter: str,
    *,
    against: str | None = None,
    time: str | None = None,
    time_unit: str | None = None,
    bucket: str | None = None,
    samples: int = 5,
    seed: int = 0,
) -> Backtest:
    """Run a draft filter over a table of events; `against` is the filter to compare it with.

    `time` names the column that says when an event was: of timestamps or dates, of texts that Spark
    reads as timestamps, or of integers since 1970 in a `time_unit`. Without it, the only column of
    timestamps or dates is taken, if there is one. `bucket` is the stretch of time to count by (15m,
    1h, 1d, 1w, 1mo, …), by default as suits the time between the first and the last event. Of each
    kind of event, as many as `samples` are kept, drawn by `seed`.
    """
    asked = None if bucket is None else Bucket.parse(bucket)
    if not 0 <= samples <= SAMPLES_MAX:
        raise ValueError(f"samples are 0 to {SAMPLES_MAX:,} of each kind, not {samples}")
    if not isinstance(events, DataFrame):
        raise EventError(f"events come as a DataFrame, not as {type(events).__name__}")
    if events.isStreaming:
        raise EventError("a backtest is over stored events, and this DataFrame is streaming")
    domain = domain_of(events)
    reads = _attributes_read(filter, against, domain)
    clock = _clock(events, domain, time, time_unit)
    columns = tuple(dict.fromkeys(path[0] for path in reads))
    names = tuple(events.columns) if samples else columns
    task = Task((filter, against), domain.to_json(), names, columns, asked, samples, seed, clock.finest, clock.scale)
    # mapInArrow takes a dot or a back-quote in a name for syntax, so that columns travel under plain names.
    chosen = [F.col(_plain_name(events, name)).alias(f"c{number}") for number, name in enumerate(names)]
    if clock.column is not None:
        chosen.append(clock.column.alias(TIME))
    tally = _collect(_plainly_named(events).select(*chosen), task)
    if not tally.events:
        raise PipelineError("the table has no events; there is nothing to run the filter over")
    if clock.name is not None:
        _check_times(tally, clock, asked)
    return _result(tally, task, clock, reads)


def filter_of(subscriptions: DataFrame, id: str | int) -> str:
    """The filter of one subscription in a table with the columns id and filter."""
    table = checked(subscriptions)
    ids = F.col("id").cast("string")
    with brief_errors():
        found = table.where(ids == F.lit(str(id))).select("filter").limit(2).collect()
        if not found:
            known = [row[0] for row in table.select(ids).where(ids.isNotNull()).limit(_IDS_LOOKED_AT).collect()]
            raise SubscriptionError(f"there is no subscription '{id}'; {did_you_mean(str(id), known)}")
    if len(found) > 1:
        raise SubscriptionError(f"the subscription '{id}' is there more than once; every subscription needs its own id")
    text = found[0][0]
    if text is None:
        raise SubscriptionError(f"the subscription '{id}' has no filter to compare with")
    return str(text)


def _attributes_read(filter: str, against: str | None, domain: Domain) -> tuple[Path, ...]:
    paths = [reference.path for reference in attributes_of(parse_filter(filter, domain))]
    if against is not None:
        try:
            paths += [reference.path for reference in attributes_of(parse_filter(against, domain))]
        except FilterError as error:
            raise SubscriptionError(f"the subscription to compare with cannot be read; {error}") from error
    return tuple(dict.fromkeys(paths))


def _plainly_named(events: DataFrame) -> DataFrame:
    """The events with columns named by their places: names may differ in case only, which Spark ignores."""
    return events.toDF(*(f"p{place}" for place in range(len(events.columns))))


def _plain_name(events: DataFrame, name: str) -> str:
    return f"p{events.columns.index(name)}"


# ---------------------------------------------------------------------- when an event was


@dataclass(frozen=True)
class _Clock:
    name: str | None = None
    column: Column | None = None
    finest: Bucket = SECOND
    scale: int = 1  # of integers, to microseconds
    texts: bool = False


def _clock(events: DataFrame, domain: Domain, name: str | None, unit: str | None) -> _Clock:
    """The column that says when an event was; refuses one that says no time."""
    if unit is not None and unit not in _MICROSECONDS:
        raise ValueError(f"time_unit is {', '.join(map(repr, _MICROSECONDS))}, not {unit!r}")
    if name is None:
        times = [field.name for field in events.schema.fields if isinstance(field.dataType, _TIMES)]
        if len(times) != 1:
            return _Clock()
        path: Path = (times[0],)
    elif name in events.columns:
        path = (name,)
    else:
        found = domain.find(parse_path(name))
        if found is None:
            raise DomainError(
                f"the events have no column '{name}' to take the time from; {did_you_mean(name, domain.names)}"
            )
        path = found[0]
    column = F.col(path_text((_plain_name(events, path[0]), *path[1:])))
    match _plainly_named(events).select(column).schema[0].dataType:
        case T.DateType():
            return _Clock(path_text(path), column, finest=DAY)
        case T.TimestampType() | T.TimestampNTZType():
            return _Clock(path_text(path), column)
        case T.StringType():
            return _Clock(path_text(path), column.try_cast("timestamp"), texts=True)
        case T.IntegralType() if unit is not None:
            return _Clock(path_text(path), column.cast("bigint"), scale=_MICROSECONDS[unit])
        case T.IntegralType() as integers:
            raise DomainError(
                f"the column '{name}' is {integers.simpleString()}, which is a time only with its unit since 1970; "
                "say s, ms or us as the time unit, or take a column of timestamps"
            )
        case other:
            raise DomainError(
                f"the column '{name}' is {other.simpleString()}, which is no time; take a column of timestamps, dates, "
                "texts such as 2024-01-31T08:30:00Z, or integers since 1970"
            )


def _check_times(tally: BacktestTally, clock: _Clock, asked: Bucket | None) -> None:
    if tally.timeless == tally.events:
        why = "its texts are no times such as 2024-01-31T08:30:00Z" if clock.texts else "it is NULL in all of them"
        raise EventError(f"no event has a time in the column '{clock.name}': {why}")
    if tally.timeline.overflows:
        raise PipelineError(
            f"a bucket of {asked} divides the time from {_moment(tally.timeline.first)} to "
            f"{_moment(tally.timeline.last)} into {tally.timeline.needed:,}, and {BUCKETS_MAX:,} are the most; "
            "give a longer one, or none"
        )


def _moment(time: int | None) -> dt.datetime | None:
    return None if time is None else moment(time)


# ---------------------------------------------------------------------- tasks


@dataclass(frozen=True)
class Task:
    """What a worker has to know."""

    filters: tuple[str, str | None]
    domain: str  # as JSON
    names: tuple[str, ...]  # of the columns that arrive, whatever they are called on the way, the time apart
    columns: tuple[str, ...]  # of those, what the filters read
    bucket: Bucket | None
    samples: int
    seed: int
    finest: Bucket  # that the times are worth
    scale: int  # of times in integers, to microseconds


@lru_cache(maxsize=8)  # the matchers of the last backtests: a worker's next task has the same
def _matcher(filters: tuple[str, str | None], domain: str) -> Matcher:
    draft, existing = filters
    subscriptions = [(ONLY_DRAFT, draft)] + ([] if existing is None else [(ONLY_EXISTING, existing)])
    return Matcher(subscriptions, Domain.from_json(domain), threads=1)  # Spark runs a task for each core already


class BacktestTally:
    """What is kept of the events of one task, or of all."""

    def __init__(self, task: Task) -> None:
        self._samples = task.samples
        self.unfit = self.timeless = 0
        self.kinds = np.zeros(len(KINDS), np.int64)
        self.timeline = Timeline(len(KINDS), task.bucket, finest=task.finest)
        # Of each kind those with the least priorities, which are random: a fair sample, and so is that of two merged.
        self.chosen: dict[int, list[tuple[float, int, Event]]] = {kind: [] for kind in KINDS if kind != NEITHER}

    @property
    def events(self) -> int:
        return int(self.kinds.sum())

    def add(self, batch: pa.RecordBatch, task: Task, random: np.random.Generator) -> None:
        timed = TIME in batch.schema.names
        events = (batch.drop_columns([TIME]) if timed else batch).rename_columns(list(task.names))
        asked = events.select(list(task.columns)) if task.columns else _rows(batch.num_rows)
        matches = _matcher(task.filters, task.domain).match(asked, on_error="reject")
        kinds = np.zeros(batch.num_rows, np.int64)
        np.add.at(kinds, matches.events, np.asarray(matches.ids))
        self.kinds += np.bincount(kinds, minlength=len(KINDS))
        self.unfit += len({reject.row for reject in matches.rejects})
        times = np.zeros(batch.num_rows, np.int64)
        if timed:
            times, known = _times(batch.column(TIME), task.scale)
            self.timeless += int((~known).sum())
            self.timeline.add(times[known], kinds[known])
        for kind, kept in self.chosen.items():
            self._sample(kept, np.flatnonzero(kinds == kind), events, times, random)

    def _sample(
        self, kept: list[tuple[float, int, Event]], rows: Times, events: pa.RecordBatch, times: Times, random: Any
    ) -> None:
        priorities = random.random(len(rows))
        if self._samples and len(kept) == self._samples:
            good = priorities < kept[-1][0]
            rows, priorities = rows[good], priorities[good]
        best = np.argsort(priorities)[: self._samples]
        if len(best):
            found = zip(priorities[best], times[rows[best]], _records(events.take(rows[best])), strict=True)
            self._keep(kept, [(float(priority), int(time), event) for priority, time, event in found])

    def _keep(self, kept: list[tuple[float, int, Event]], more: list[tuple[float, int, Event]]) -> None:
        kept[:] = sorted([*kept, *more], key=lambda one: one[0])[: self._samples]

    def merge(self, other: BacktestTally) -> None:
        self.kinds += other.kinds
        self.unfit += other.unfit
        self.timeless += other.timeless
        self.timeline.merge(other.timeline)
        for kind, kept in self.chosen.items():
            self._keep(kept, other.chosen[kind])


def _times(column: Any, scale: int) -> tuple[Times, npt.NDArray[np.bool_]]:
    """Microseconds since 1970, and which events have any that a calendar has."""
    if pa.types.is_date(column.type):
        days = column.cast(pa.int32())
        column, scale = days.cast(pa.int64()), 86_400_000_000
    elif pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64())
    known = np.asarray(column.is_valid())
    numbers = np.asarray(column.fill_null(0))
    low, high = (end // scale for end in _YEARS_1_TO_9999)
    known &= (numbers >= low) & (numbers < high)
    return np.where(known, numbers, 0) * scale, known


def _rows(count: int) -> pa.RecordBatch:
    """Events of which nothing is asked."""
    return pa.RecordBatch.from_pydict({"": pa.nulls(count)})


def _records(events: pa.RecordBatch) -> list[Event]:
    columns = {name: _values(events.column(name)) for name in events.schema.names}
    return [{name: values[row] for name, values in columns.items()} for row in range(events.num_rows)]


def _values(column: Any) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # a year that Python's dates do not have
        return list(column.cast(pa.string()).to_pylist())


def _tally_events(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    random = np.random.default_rng([task.seed, 0 if context is None else context.partitionId()])
    tally = BacktestTally(task)
    for batch in batches:
        tally.add(batch, task, random)
    yield _packed(tally)


def _merge_tallies(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    whole = BacktestTally(task)
    for batch in batches:
        for tally in batch.column("tally"):
            whole.merge(pickle.loads(tally.as_py()))
    yield _packed(whole)


def _packed(tally: BacktestTally) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(tally)], pa.binary())], names=["tally"])


def _collect(events: DataFrame, task: Task) -> BacktestTally:
    tallies = events.mapInArrow(partial(_tally_events, task), "tally binary")
    with brief_errors():
        (row,) = tallies.repartition(1).mapInArrow(partial(_merge_tallies, task), "tally binary").collect()
    tally = pickle.loads(row.tally)
    assert isinstance(tally, BacktestTally)
    return tally


# ---------------------------------------------------------------------- the answer


def _result(tally: BacktestTally, task: Task, clock: _Clock, reads: tuple[Path, ...]) -> Backtest:
    bucket, starts, counts = tally.timeline.shown()
    draft, against = task.filters
    chosen = {
        name: tuple(event for _, _, event in sorted(tally.chosen[kind], key=lambda one: one[1]))
        for name, kind in (("only_draft", ONLY_DRAFT), ("only_existing", ONLY_EXISTING), ("both", BOTH))
    }
    return Backtest(
        draft=draft,
        against=against,
        counts=_counts(tally.kinds),
        unfit=tally.unfit,
        time=clock.name,
        bucket=None if clock.name is None else str(bucket),
        first=_moment(tally.timeline.first),
        last=_moment(tally.timeline.last),
        timeless=tally.timeless,
        rate=tuple((moment(start), _counts(row)) for start, row in zip(starts.tolist(), counts, strict=True)),
        samples=chosen,
        reads=tuple(map(path_text, reads)),
    )


def _counts(kinds: Times) -> Counts:
    return Counts(int(kinds.sum()), *(int(kinds[kind]) for kind in (ONLY_DRAFT, ONLY_EXISTING, BOTH)))


def _counts_dict(counts: Counts) -> dict[str, int]:
    return {
        "events": counts.events,
        "draft": counts.draft,
        "existing": counts.existing,
        "only_draft": counts.only_draft,
        "only_existing": counts.only_existing,
        "both": counts.both,
    }


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Decimal() | dt.timedelta():
            return str(value)
        case float() if not math.isfinite(value):  # which JSON does not have
            return str(value)
        case _:
            return value


# ---------------------------------------------------------------------- one filter over the log


MAX_MISFITS = 10_000  # of which a history is told


class PastMatches(NamedTuple):
    """Positions of events, in their order."""

    matched: npt.NDArray[np.int64]
    misfits: dict[int, str]  # of events that do not fit the domain as it is now, with the reasons


def match_past(events: DataFrame, filter: str, domain: Domain, *, prefix: str) -> PastMatches:
    """Matches events that `read_log` returns with a prefix and `on_error="reject"`.

    Raises EventError if more than MAX_MISFITS events do not fit the domain.
    """
    step = partial(_matched, tuple(events.columns), domain.to_json(), filter, prefix)
    with brief_errors():
        found: Any = numbered(events).mapInArrow(step, "position bigint, misfit string").toArrow()
    found = found.sort_by("position").combine_chunks()
    fits = pc.is_null(found["misfit"])
    misfits = found.filter(pc.invert(fits))
    if len(misfits) > MAX_MISFITS:
        raise EventError(
            f"more than {MAX_MISFITS:,} events do not fit the domain '{domain.name}' as it is now; the first is at "
            f"position {misfits['position'][0]}: {misfits['misfit'][0]}; begin after them"
        )
    matched = np.asarray(found.filter(fits)["position"].combine_chunks(), np.int64)
    return PastMatches(matched, dict(zip(misfits["position"].to_pylist(), misfits["misfit"].to_pylist(), strict=True)))


def _matched(
    names: tuple[str, ...], domain: str, filter: str, prefix: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # Spark runs a task for each core already: one thread each.
    matcher = Matcher([(0, filter)], Domain.from_json(domain), threads=1)
    attributes = [name for name in names if not name.startswith(prefix)]
    left = MAX_MISFITS + 1
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(names))
        fits = batch.column(f"{prefix}rejected").is_null()
        fit, unfit = batch.filter(fits), batch.filter(pc.invert(fits)).slice(0, left)
        if len(fit):
            rows: Any = pa.array(matcher.match(fit.select(attributes), on_error="reject").events, pa.int64())
            yield _found(fit.column(f"{prefix}position").take(rows), pa.nulls(len(rows), pa.string()))
        if len(unfit):
            left -= len(unfit)
            yield _found(unfit.column(f"{prefix}position"), unfit.column(f"{prefix}rejected"))


def _found(positions: Any, misfits: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([positions, misfits], names=["position", "misfit"])
