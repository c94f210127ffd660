"""How far the driver is behind the publishers, for each domain: what it has reached against what was appended.

All domains share one sequence of positions. So the events of a domain are counted as they are appended, and the
counts at some positions are kept: the lag is the count now less the count at the last kept position that the driver
has passed. When the gateway starts, a domain's mailboxes show how far the driver has come, whether it runs or not; from
then on the driver reports it.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidings.service.data.data_directory import DataDirectory, DataDirectoryError, parts_of_key

STALE_SECONDS = 15.0  # after which a driver that reports nothing counts as gone
OPENING_SECONDS = 60.0  # that a stream may take to open before that is a problem
DRIVER, SHARED = "driver", "shared"  # problems of all domains: no domain has such a key
_KEPT = 4096  # positions of a domain whose counts are kept


class _Mark(NamedTuple):
    """How much of a domain lies before a position."""

    position: int
    events: int
    size: int  # in bytes, as published


class Counted:
    """Counts the events of one domain that were appended, or waited to be matched when the gateway started."""

    def __init__(self, position: int) -> None:
        self._marks = [_Mark(position, 0, 0)]
        self._now = self._marks[0]

    def add(self, end: int, count: int, size: int = 0) -> None:
        now = self._now
        self._now = _Mark(max(now.position, end), now.events + count, now.size + size)

    def keep(self) -> None:
        """Keeps the count as it is now; called now and then."""
        if self._now.position > self._marks[-1].position:
            self._marks.append(self._now)
            if len(self._marks) > _KEPT:  # every other one of the older half
                first, half = self._marks[0], _KEPT // 2
                self._marks = [first, *self._marks[2:half:2], *self._marks[half:]]

    def passed(self, reached: int) -> None:
        """Forgets what lies before a position, except the last of it."""
        self._marks = self._marks[max(0, _place(self._marks, reached)) :]

    @property
    def size(self) -> int:
        return self._now.size

    def lag(self, reached: int) -> int:
        return self._now.events - self._before(reached).events

    def lag_bytes(self, reached: int) -> int:
        return self._now.size - self._before(reached).size

    def _before(self, reached: int) -> _Mark:
        """Returns what lies before a position, as far as it is kept."""
        marks = self._marks  # another thread may replace them
        return self._now if reached >= self._now.position else marks[max(0, _place(marks, reached))]


def _place(marks: list[_Mark], reached: int) -> int:
    return bisect.bisect_right(marks, reached, key=lambda mark: mark.position) - 1


class Lag:
    """What the driver last reported, and how far behind it is."""

    def __init__(self, data: DataDirectory, start: int) -> None:
        self._data = data
        self._start = start
        self._counted: dict[str, Counted] = {}
        self._reached: dict[str, int] = {}  # by domain; never goes back
        self._waiting: Counter[str] = Counter()  # bytes by tenant, as of the last reading, with what came since
        self._shared: frozenset[str] = frozenset()  # domains in a stream that several tenants share
        self._shared_waiting: Counter[str] = Counter()  # like `_waiting`, of these domains
        self.status: dict[str, Any] = {}
        self.problem: str | None = None  # with reading it
        self.created: Mapping[str, float] = {}  # the domains of the catalogue, and when each was made

    def problems(self) -> dict[str, str]:
        """Returns why events are not matched as they come: see `problems_of`."""
        found = problems_of(self.status, self.created) if self.driver == "running" else {}
        return {DRIVER: f"its status cannot be read: {self.problem}", **found} if self.problem else found

    def appended(self, key: str, end: int, count: int, size: int) -> None:
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = Counted(min(self._start, end))
        counted.add(end, count, size)
        self._waiting[parts_of_key(key)[0]] += size
        if key in self._shared:
            self._shared_waiting[parts_of_key(key)[0]] += size

    def is_before_others(self, key: str) -> bool:
        """Whether events of other tenants are matched after those of this domain that wait: they share a stream."""
        return key in self._shared

    def shared_waiting_bytes(self, tenant: str) -> int:
        """Returns how many bytes of a tenant's events wait in the stream that tenants share."""
        return self._shared_waiting[tenant]

    def waiting_bytes(self, tenant: str) -> int:
        """Returns the bytes of a tenant's events, before the log compresses them, that may wait to be matched."""
        return self._waiting[tenant]

    def forget(self, key: str) -> None:
        """Forgets a domain that was removed."""
        self._counted.pop(key, None)

    def found(self, key: str, reached: int, parts: Iterable[tuple[int, int, int]]) -> None:
        """Counts what was in the log when the gateway started and waits to be matched.

        All events of the domain before `reached` were matched; `parts` are those from there on, each (first, count,
        bytes).
        """
        self._reached[key] = max(reached, self.reached(key))
        counted = self._counted[key] = Counted(reached)
        for first, count, size in parts:
            counted.add(first + count, count, size)
            counted.keep()
        self._waiting[parts_of_key(key)[0]] += counted.size

    def read(self) -> None:
        """Reads the driver's status; called about once a second."""
        try:
            self.status = self._data.read_driver_status() or {}
            self.problem = None
        except (DataDirectoryError, OSError) as error:
            self.problem = str(error)
        for key in self.status.get("domains") or ():
            self._reached[key] = max(self.reached(key), self._reported(key))
        self._shared = self._shared_by_tenants()
        waiting: Counter[str] = Counter()
        shared: Counter[str] = Counter()
        for key, counted in list(self._counted.items()):
            reached = self.reached(key)
            counted.keep()
            counted.passed(reached)
            size = counted.lag_bytes(reached)
            waiting[parts_of_key(key)[0]] += size
            if key in self._shared:
                shared[parts_of_key(key)[0]] += size
        self._waiting, self._shared_waiting = waiting, shared

    def _shared_by_tenants(self) -> frozenset[str]:
        """Returns the domains of the shared stream while it runs; none if all belong to one tenant."""
        domains = self.status.get("domains")
        if self.driver != "running" or not isinstance(domains, dict):
            return frozenset()
        shared = frozenset(key for key in domains if self.domain(key).get("shared"))
        return shared if len({parts_of_key(key)[0] for key in shared}) > 1 else frozenset()

    def domain(self, key: str) -> dict[str, Any]:
        """Returns what the driver reports of a domain."""
        domains = self.status.get("domains")
        found = domains.get(key) if isinstance(domains, dict) else None
        return found if isinstance(found, dict) else {}

    def reached(self, key: str) -> int:
        """Returns the position before which all events of a domain were matched; -1 if unknown."""
        return self._reached.get(key, -1)

    def _reported(self, key: str) -> int:
        reached = self.domain(key).get("reached")
        return reached if isinstance(reached, int) else -1

    def of(self, key: str) -> int:
        """Returns how many events of a domain may wait to be matched."""
        counted = self._counted.get(key)
        return 0 if counted is None else counted.lag(self.reached(key))

    def domains(self) -> list[str]:
        """Returns the keys of the domains that are known here or to the driver."""
        return sorted({*self._counted, *(self.status.get("domains") or {})})

    @property
    def driver(self) -> str:
        """The state that the driver reports, "gone" if it reports nothing any more, or "not started"."""
        return driver_state(self.status)


def driver_state(status: Mapping[str, Any]) -> str:
    """Returns the state that a driver last wrote, "gone" if that was long ago, or "not started"."""
    said = status.get("time")
    if not isinstance(said, int | float):
        return "not started"
    return str(status.get("state", "running")) if time.time() - said < STALE_SECONDS else "gone"


def problems_of(status: Mapping[str, Any], created: Mapping[str, float]) -> dict[str, str]:
    """Returns why events are not matched as they come, from what a running driver last wrote.

    Returns reasons by the key of the domain, or under DRIVER and SHARED for what concerns all of them. `created` has
    the domains of the catalogue, and when each was made. A stream may take a while to open, and a domain to be named;
    one that takes long, that is in any other state than running, or that has a problem, is a problem.
    """
    found: dict[str, str] = {}
    if status.get("problem"):
        found[DRIVER] = str(status["problem"])
    if status.get("shared") is not None and (problem := _stream_problem(status["shared"])):
        found[SHARED] = problem
    domains = status.get("domains")
    domains = domains if isinstance(domains, dict) else {}
    for key, report in domains.items():
        if problem := _stream_problem(report):
            found[key] = problem
    now, started = time.time(), status.get("started")
    begun = started if isinstance(started, int | float) else 0.0
    for key, made in created.items():
        if key not in domains and now - max(made, begun) > OPENING_SECONDS:
            found[key] = f"the driver has no stream for it after {OPENING_SECONDS:g} seconds"
    return found


def _stream_problem(report: Any) -> str | None:
    """Returns why a stream does not match, by the driver's report; None if it does."""
    if not isinstance(report, dict):
        return f"the driver's report of its stream is malformed: {report!r}"
    state, problem, since = report.get("state"), report.get("problem"), report.get("since")
    if state == "running":
        return None if problem is None else f"its stream is running with a problem: {problem}"
    is_recent = isinstance(since, int | float) and time.time() - since < OPENING_SECONDS
    if state == "opening" and is_recent and problem is None:
        return None
    return f"its stream is {state}: {problem or 'it takes long'}"
