"""Try parts of a batch that fails, asked by the driver over standard input.

Run as `python -m tidings.pipeline.streams.failure_search`.

A batch may fail by an exception, and it may also kill its process. So it is tried in a process of its own. The first
line says which batch; the reply says which events and filters it has. Each further line is a try of some of
them; the reply is null, or what went wrong:

    {"folder": …, "version": 7, "domain": {…}, "log": …, "start": 40, "end": 90, "aside": […]}  →  {"events": 9, …}
    {"events": [0, 4], "filters": [0, 9]}                                                       →  {"error": null}
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.sources.log_source import read_members
from tidings.pipeline.steps.index_version import read_ids, read_version
from tidings.pipeline.streams.version_files import SharedMember
from tidings.store.log.log_reader import LogReader
from tidings.store.log.page import Page, attribute_columns

START_SECONDS = 120.0
TRY_SECONDS = 120.0  # after which a try counts as failed
MOST = 20  # filters and events that are found in one batch
EARLIER = 100  # events before the batch that a filter is tried with,
EARLIER_POSITIONS = 10_000  # among so many positions
REASON_CHARACTERS = 500
_FAILS = "matching fails"


@dataclass(frozen=True)
class Suspect:
    """A batch of one domain that fails."""

    folder: str  # of the query's versions
    version: int
    domain: dict[str, Any]  # whose name is its key
    log: str
    start: int
    end: int  # positions [start, end)
    aside_filters: tuple[int, ...] = ()
    aside_events: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        return str(self.domain["name"])


@dataclass
class Culprits:
    """What makes a batch fail: filters by number and events by position, each with the reason."""

    filters: dict[int, str]
    events: dict[int, str]

    def __bool__(self) -> bool:
        return bool(self.filters or self.events)


def culprits_of(suspect: Suspect) -> Culprits:
    """Find by halves what makes a batch fail; nothing if it does not fail, or fails only as a whole."""
    found = Culprits({}, {})
    with _Prober(suspect) as prober:
        while len(found.filters) + len(found.events) < MOST:
            if prober.attempt(prober.all_events, prober.all_filters) is None:
                break
            event, filter_ = _pair_that_fails(prober)
            if event is not None and (filter_ is None or _is_to_blame(prober, event, filter_)):
                found.events[prober.positions[event]] = prober.attempt(_one(event), prober.all_filters) or _FAILS
            elif filter_ is not None:
                within = prober.all_events if event is None else _one(event)
                found.filters[prober.numbers[filter_]] = prober.attempt(within, _one(filter_)) or _FAILS
            else:
                break
            prober.leave_out(found)
    return found


def _pair_that_fails(prober: _Prober) -> tuple[int | None, int | None]:
    """An event and a filter that fail by themselves; None where a part fails only as a whole."""
    event = _narrowed(prober.all_events, partial(prober.attempt, filters=prober.all_filters))
    within = prober.all_events if event is None else _one(event)
    if event is not None and prober.attempt(within, (0, 0)) is not None:
        return event, None  # it cannot even be read
    return event, _narrowed(prober.all_filters, partial(prober.attempt, within))


def _is_to_blame(prober: _Prober, event: int, filter_: int) -> bool:
    """Whether of an event and a filter that fail together it is the event.

    It is if it fails with other filters too, or there are no others, and the filter fails with no other event. Earlier
    events are tried for that as well.
    """
    others = [part for part in ((0, filter_), (filter_ + 1, len(prober.numbers))) if part[0] < part[1]]
    if others and all(prober.attempt(_one(event), part) is None for part in others):
        return False
    rest = [part for part in ((0, event), (event + 1, prober.events)) if part[0] < part[1]]
    return bool(rest) and all(prober.attempt(part, _one(filter_)) is None for part in rest)


def _one(number: int) -> tuple[int, int]:
    return number, number + 1


def _narrowed(part: tuple[int, int], attempt: Callable[[tuple[int, int]], str | None]) -> int | None:
    """Of a part that fails, one member that fails by itself; None where they fail only together."""
    low, high = part
    if high - low == 0:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if attempt((low, middle)) is not None:
            high = middle
        elif attempt((middle, high)) is not None:
            low = middle
        else:
            return None
    return low if attempt((low, high)) is not None else None


class _Prober:
    """The process that tries, started again when a try has killed it."""

    def __init__(self, suspect: Suspect) -> None:
        self._suspect = suspect
        self._process: subprocess.Popen[bytes] | None = None
        self.numbers: list[int] = []
        self.positions: list[int] = []
        self.events = 0  # those of the batch, and after them some from before it

    @property
    def all_events(self) -> tuple[int, int]:
        return 0, len(self.positions)

    @property
    def all_filters(self) -> tuple[int, int]:
        return 0, len(self.numbers)

    def __enter__(self) -> _Prober:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def leave_out(self, found: Culprits) -> None:
        """Try the rest from now on."""
        filters = tuple({*self._suspect.aside_filters, *found.filters})
        events = tuple({*self._suspect.aside_events, *found.events})
        self._suspect = replace(self._suspect, aside_filters=filters, aside_events=events)
        self._kill()
        self._start()

    def attempt(self, events: tuple[int, int], filters: tuple[int, int]) -> str | None:
        """What goes wrong; None where nothing does."""
        if self._process is None:
            self._start()
        answer = self._ask({"events": events, "filters": filters}, TRY_SECONDS)
        if isinstance(answer, str):
            self._kill()
            return answer
        error: str | None = answer["error"]
        return error

    def _start(self) -> None:
        command = [sys.executable, "-m", "tidings.pipeline.streams.failure_search"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answer = self._ask(asdict(self._suspect), START_SECONDS)
        if isinstance(answer, str) or "error" in answer:
            self._kill()
            reason = answer if isinstance(answer, str) else answer["error"]
            raise PipelineError(f"stream: the batch that fails cannot be read to be tried in parts: {reason}")
        self.numbers, self.positions = answer["filters"], answer["events"]
        self.events = len(self.positions) + answer["earlier"]

    def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any] | str:
        """The answer, or why there is none."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return "the process that matches dies of it"
        line = _line(process.stdout, seconds)
        if line is None:
            return f"matching takes more than {seconds:.0f} s"
        if not line:
            return "the process that matches dies of it"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _line(stream: IO[bytes], seconds: float) -> bytes | None:
    """The next line; empty at the end of the stream, None where none comes in time."""
    until, found = time.monotonic() + seconds, b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(stream.fileno(), 1 << 16)
        if not part:
            return b""
        found += part
    return found


# ---------------------------------------------------------------------- in the process that tries


class _Batch:
    """A batch, of which parts are tried."""

    def __init__(self, suspect: Suspect) -> None:
        self._domain = Domain.from_json(suspect.domain)
        self.filters = _filters_of(suspect)
        aside = set(suspect.aside_events)
        with LogReader(suspect.log) as log:
            start, end = max(suspect.start, log.start), min(suspect.end, log.end)
            batch = _events_of(log.pages(start, end, domain=suspect.key), start, end)
            begin = max(log.start, log.removed_to(suspect.key), start - EARLIER_POSITIONS)
            earlier = _events_of(log.pages(begin, start, domain=suspect.key), begin, start)[-EARLIER:]
        self._events = [(position, page) for position, page in batch if position not in aside]
        self.positions = [position for position, _ in self._events]
        earlier = [(position, page) for position, page in earlier if position not in aside]
        self.earlier = len(earlier)
        self._events += earlier

    def match(self, events: tuple[int, int], filters: tuple[int, int]) -> None:
        rows = self.filters.slice(filters[0], filters[1] - filters[0])
        matcher = Matcher(rows, self._domain, threads=1) if len(rows) else None
        for position, end, pages in _ranges(self._events[events[0] : events[1]]):
            for read in attribute_columns(pages, self._domain, position, end, on_error="reject"):
                if matcher is not None:
                    fit: Any = read.rejected.is_null()
                    matcher.match(read.attributes.filter(fit), on_error="reject")


def _events_of(pages: Iterable[Page], start: int, end: int) -> list[tuple[int, Page]]:
    """The positions [start, end) that pages have, each with its page."""
    return [(position, page) for page in pages for position in range(max(page.first, start), min(page.end, end))]


def _ranges(events: list[tuple[int, Page]]) -> Iterator[tuple[int, int, list[Page]]]:
    """Runs of consecutive events of the same page: positions [start, end) of it."""
    at = 0
    while at < len(events):
        position, page = events[at]
        count = 1
        while at + count < len(events) and events[at + count] == (position + count, page):
            count += 1
        yield position, position + count, [page]
        at += count


def _filters_of(suspect: Suspect) -> pa.Table:
    """The filters of a version, but for those that are left out, as a table with id and filter."""
    folder, name = Path(suspect.folder), f"{suspect.version}.json"
    if "members" in json.loads((folder / name).read_text()):
        rows = SharedMember.from_text((folder / read_members(folder / name)[suspect.key]).read_text()).rows
        columns: dict[str, Any] = {
            "id": pa.array(list(rows), pa.int64()),
            "filter": pa.array(list(rows.values()), pa.string()),
        }
        table = pa.table(columns)
    else:
        files = read_version(folder, name)
        removed = pa.array([], pa.int64()) if files.removed is None else read_ids(folder / files.removed)
        parts = [_but(_subscriptions(folder / one), removed) for one in files.base.values()]
        parts += [_subscriptions(folder / one) for one in files.delta]
        table = _each_once(pa.concat_tables(parts)) if parts else Matcher([]).subscriptions()
    return _but(table, pa.array(sorted(suspect.aside_filters), pa.int64())).combine_chunks()


def _subscriptions(path: Path) -> pa.Table:
    return Matcher.load(path, threads=1).subscriptions()


def _each_once(table: pa.Table) -> pa.Table:
    """By a View a subscription may be in several files."""
    return table.group_by("id", use_threads=False).aggregate([("filter", "first")]).rename_columns(["id", "filter"])


def _but(table: Any, ids: Any) -> pa.Table:
    kept: pa.Table = table.filter(pc.invert(pc.is_in(table["id"], value_set=ids))) if len(table) else table
    return kept


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not be taken for an answer

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        batch = _Batch(Suspect(**json.loads(sys.stdin.readline())))
        numbers: list[Any] = batch.filters["id"].to_pylist()
        answer({"filters": numbers, "events": batch.positions, "earlier": batch.earlier})
    except Exception as error:
        answer({"error": _reason(error)})
        return 1
    for line in sys.stdin:
        part = json.loads(line)
        try:
            batch.match(tuple(part["events"]), tuple(part["filters"]))
            answer({"error": None})
        except Exception as error:
            answer({"error": _reason(error)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
