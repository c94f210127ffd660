"""Jobs on Spark that the gateway asks for: replaying the past for one filter, and backtesting a draft filter.

A job is a row of the catalogue, which the gateway closes; the driver writes its answer to a file, in one step:

    {"done": true, …}                        for a replay the number of `matches`, positions and reasons of `misfits`
                                             (events that do not fit the domain as it is now); for a backtest see
                                             `backtest_answer`
    {"done": false, "reason": …, "kind": …}  it cannot be done; kind is "request" if another request could be

The request of a replay has number, domain, filter, from and to. That of a backtest has domain and filter, and
optionally `against` (another filter's text), from and to (positions, or times as text) and samples.

A job that has an answer is not done again. One that a crash has interrupted is, with the same result: the matches of
a replay enter the mailboxes in one transaction, under a name of their own.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings import pipeline
from tidings.errors import DomainError, EventError, FilterError, SubscriptionError, TidingsError
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import RESERVED_PREFIX, Domain
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.jobs.backtesting import Backtest, PastMatches, match_past
from tidings.service.data.data_directory import replace_json
from tidings.service.driver.domain_adaptation import past_events
from tidings.service.driver.followed_filters import domain_of
from tidings.service.driver.stream_thread import DriverContext
from tidings.store.catalogue import JobRow
from tidings.store.log.log_errors import LogRangeError
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.notifications import MAX_WAITING, REPLAY, Notifications

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AT_ONCE = 2  # jobs: the streams have the same cores
SAMPLES = 5

_log = logging.getLogger("tidings.service")


class Jobs:
    """Does open jobs, a few at a time, while the streams run.

    Tenants take turns, and none gets all threads: many jobs of one tenant do not delay those of another.
    """

    def __init__(self, context: DriverContext) -> None:
        self._context = context
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tidings-job")
        self._under_way: dict[str, tuple[str, Future[None]]] = {}  # tenant and work, by the job's id
        self._turns: dict[str, int] = {}  # when a tenant last began a job
        self._turn = itertools.count(1)
        self._stopped = threading.Event()

    def look(self) -> None:
        """Begin jobs that have no answer yet, if a thread is free."""
        self._under_way = {id_: one for id_, one in self._under_way.items() if not one[1].done()}
        if len(self._under_way) >= AT_ONCE:
            return
        data = self._context.data
        waiting: dict[str, list[JobRow]] = {}  # by tenant
        for job in self._context.catalogue.open_jobs():
            if job.id not in self._under_way and not data.answer(job.id).exists():
                waiting.setdefault(job.tenant, []).append(job)
        while len(self._under_way) < AT_ONCE and (tenant := self._next(waiting)) is not None:
            job = waiting[tenant].pop(0)
            self._turns[tenant] = next(self._turn)
            self._under_way[job.id] = tenant, self._pool.submit(self._answer, job)

    def _next(self, waiting: Mapping[str, list[JobRow]]) -> str | None:
        """Returns the tenant whose job is next: the one that has waited longest, of those that may begin another."""
        running = Counter(tenant for tenant, _ in self._under_way.values())
        able = [tenant for tenant, jobs in waiting.items() if jobs and running[tenant] < AT_ONCE - 1]
        return min(able, key=lambda tenant: (running[tenant], self._turns.get(tenant, 0)), default=None)

    def stop(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, job: JobRow) -> None:
        if self._is_closed(job):
            return  # its answer was read between two looks
        try:
            answer = {"done": True, **_KINDS[job.kind](self._context, job)}
        except KeyError as error:
            answer = _refused(f"the job has no {error}, or is of a kind that the driver does not know: {job.kind}")
        except (DomainError, EventError, FilterError, SubscriptionError, LogRangeError) as error:
            answer = _refused(str(error))
        except TidingsError as error:
            answer = {"done": False, "kind": "service", "reason": str(error)}
        except Exception as error:
            if self._stopped.is_set():
                return  # Spark is shutting down: the next driver does the job
            _log.exception("job %s failed", job.id)
            answer = {"done": False, "kind": "service", "reason": f"{type(error).__name__}: {error}"}
        if (answer["done"] or not self._stopped.is_set()) and not self._is_closed(job):
            replace_json(self._context.data.answer(job.id), answer, durable=True)

    def _is_closed(self, job: JobRow) -> bool:
        """Whether it is not needed any more: its subscription was deleted, or its answer was read."""
        found = self._context.catalogue.job(job.id)
        return found is None or found.closed is not None


def _refused(reason: str) -> dict[str, Any]:
    return {"done": False, "kind": "request", "reason": reason}


# ---------------------------------------------------------------------- replay


def replay(context: DriverContext, job: JobRow) -> dict[str, Any]:
    """Match positions [from, to) with one filter, into the mailbox of its row; doing it again changes nothing."""
    request = job.request
    domain = _domain(context, job)
    number, text = int(request["number"]), str(request["filter"])
    parse_filter(text, domain)  # here, so that an error names what is wrong with the filter
    query = f"{REPLAY}{number}"
    files = context.data.domain(job.tenant, request["domain"])
    files.folder.mkdir(parents=True, exist_ok=True)  # the stream may not have made it yet
    with Notifications(files.mailboxes, max_waiting=MAX_WAITING) as mailboxes:
        events = past_events(context.spark, context.data.log, domain, int(request["from"]), int(request["to"]))
        past = PastMatches(np.empty(0, np.int64), {})
        if events is not None:
            past = match_past(events, text, domain, prefix=RESERVED_PREFIX)
        if mailboxes.last_batch(query) is None:
            # Without `reached`: a stream that has lost its checkpoint continues after what the mailboxes reached.
            mailboxes.load([_one_each(past.matched, number)], query=query, batch=0, version=0, reached={})
        found = mailboxes.batches(query)[0].notifications
    return {"matches": found, "misfits": {str(position): reason for position, reason in past.misfits.items()}}


def _one_each(positions: npt.NDArray[np.int64], number: int) -> pa.Table:
    """Returns events that all match one filter row, as a load takes them."""
    starts: Any = pa.array(np.arange(len(positions) + 1), pa.int32())
    lists = pa.ListArray.from_arrays(starts, pa.array([number] * len(positions), pa.int64()))
    columns: dict[str, Any] = {"position": pa.array(positions, pa.int64()), "subscriptions": lists}
    return pa.table(columns)


# ---------------------------------------------------------------------- backtest


def backtest(context: DriverContext, job: JobRow) -> dict[str, Any]:
    """Returns what a draft filter would have delivered over a part of the log, and what another one if given."""
    request = job.request
    domain = _domain(context, job)
    with LogReader(context.data.log) as log:
        start = _place(log, request.get("from"), log.start)
        end = _place(log, request.get("to"), log.end)
    events = past_events(context.spark, context.data.log, domain, start, end)
    against = request.get("against")
    if events is None:
        return backtest_answer(None, against is not None)
    misfits = events.where(f"{RESERVED_PREFIX}rejected IS NOT NULL").count()
    fit = events.where(f"{RESERVED_PREFIX}rejected IS NULL").drop(
        f"{RESERVED_PREFIX}rejected", f"{RESERVED_PREFIX}subscriptions_version"
    )
    try:
        made = pipeline.backtest(
            fit,
            str(request["filter"]),
            against=against,
            time=f"{RESERVED_PREFIX}time",
            samples=int(request.get("samples", SAMPLES)),
        )
    except PipelineError as error:
        if "has no events" not in str(error):
            raise
        return backtest_answer(None, against is not None, misfits)
    return backtest_answer(made, against is not None, misfits)


def backtest_answer(made: Backtest | None, compared: bool, misfits: int = 0) -> dict[str, Any]:
    """Returns what the API does: counts, the rate over time, a few events, the difference from the other filter.

    `misfits` is the number of events that do not fit the domain as it is now, and are left out of all of that.
    """
    if made is None:
        nothing: dict[str, Any] = {"count": 0, "events": 0, "misfits": misfits, "bucket": None, "rate": []}
        nothing["samples"] = []
        gone = {"existing": 0, "only_draft": 0, "only_existing": 0, "both": 0, "samples": {}}
        return {**nothing, "difference": gone if compared else None}
    told = made.to_dict()
    samples = {kind: [_sample(event) for event in events] for kind, events in told["samples"].items()}
    matched = sorted([*samples["only_draft"], *samples["both"]], key=lambda sample: sample["position"])
    difference = None
    if compared:
        counts = told["counts"]
        difference = {name: counts[name] for name in ("existing", "only_draft", "only_existing", "both")}
        difference["samples"] = {kind: samples[kind] for kind in ("only_draft", "only_existing")}
    return {
        "count": made.counts.draft,
        "events": made.counts.events,
        "misfits": misfits,
        "bucket": made.bucket,
        "rate": [{"time": row["start"], "count": row["draft"]} for row in told["rate"]],
        "samples": matched[:SAMPLES] if not compared else matched,
        "difference": difference,
    }


def _sample(event: dict[str, Any]) -> dict[str, Any]:
    attributes = {name: value for name, value in event.items() if not name.startswith(RESERVED_PREFIX)}
    return {
        "position": event[f"{RESERVED_PREFIX}position"],
        "time": event[f"{RESERVED_PREFIX}time"],
        "event": attributes,
    }


# ---------------------------------------------------------------------- both


def _domain(context: DriverContext, job: JobRow) -> Domain:
    row = context.catalogue.domain(job.tenant, job.request["domain"])
    if row is None:
        raise DomainError(f"domain: '{job.request['domain']}' was deleted")
    return domain_of(row)


def _place(log: LogReader, given: int | str | None, default: int) -> int:
    """Returns a position as given, or that of a time."""
    if given is None:
        return default
    if isinstance(given, int):
        return given
    time = dt.datetime.fromisoformat(given)
    return log.position_at(time if time.tzinfo else time.replace(tzinfo=dt.UTC))


_KINDS: dict[str, Callable[[DriverContext, JobRow], dict[str, Any]]] = {"replay": replay, "backtest": backtest}
