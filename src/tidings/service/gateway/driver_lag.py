"""How far the driver is behind the publishers, domain by domain: what it has reached against what was appended.

A position is of all domains together. So the events of a domain are counted as they are appended, and the
counts at some positions are kept: the lag is the count now less the count at the last kept position that
the driver has passed. How far it has come is known from a domain's mailboxes when the gateway begins, where a
driver need not be up, and from then on from what the driver reports.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tidings.service.data.data_directory import DataDirectory, DataDirectoryError, parts_of_key

STALE_SECONDS = 15.0  # after which a driver that says nothing counts as gone
OPENING_SECONDS = 60.0  # that a stream may take to open before it is said to be a problem
DRIVER, SHARED = "driver", "shared"  # problems of all domains: no domain has such a key
_KEPT = 4096  # positions of a domain whose counts are kept


class Counted:
    """The events of one domain that were appended, or were there and not matched when the gateway began."""

    __slots__ = ("counts", "last", "positions", "size", "sizes", "total")

    def __init__(self, position: int) -> None:
        self.positions = [position]
        self.counts = [0]
        self.sizes = [0]
        self.last = position  # the position after the last event
        self.total = 0
        self.size = 0  # of their texts in bytes

    def add(self, end: int, count: int, size: int = 0) -> None:
        self.last = max(self.last, end)
        self.total += count
        self.size += size

    def keep(self) -> None:
        """Note the count as it is now; called now and then."""
        if self.last > self.positions[-1]:
            last, total, size = self.last, self.total, self.size
            self.counts.append(total)  # before the position: who looks for one finds the other
            self.sizes.append(size)
            self.positions.append(last)
            if len(self.positions) > _KEPT:  # the older half a little coarser
                half = _KEPT // 2
                self.positions[1:half] = self.positions[2:half:2]
                self.counts[1:half] = self.counts[2:half:2]
                self.sizes[1:half] = self.sizes[2:half:2]

    def passed(self, reached: int) -> None:
        """Forget what lies before a position, but for the last of it."""
        at = bisect.bisect_right(self.positions, reached) - 1
        if at > 0:
            del self.positions[:at]
            del self.counts[:at]
            del self.sizes[:at]

    def lag(self, reached: int) -> int:
        if reached >= self.last:
            return 0
        at = bisect.bisect_right(self.positions, reached) - 1
        return self.total - self.counts[max(at, 0)]

    def lag_bytes(self, reached: int) -> int:
        if reached >= self.last:
            return 0
        at = bisect.bisect_right(self.positions, reached) - 1
        return self.size - self.sizes[max(at, 0)]


class Lag:
    """What the driver last said, and how far behind that leaves it."""

    def __init__(self, data: DataDirectory, start: int) -> None:
        self._data = data
        self._start = start
        self._counted: dict[str, Counted] = {}
        self._reached: dict[str, int] = {}  # by domain; never goes back
        self._waiting: Counter[str] = Counter()  # bytes by tenant, as of the last look, with what came since
        self._shared: frozenset[str] = frozenset()  # domains in a stream that several tenants share
        self._shared_waiting: Counter[str] = Counter()  # like `_waiting`, of these domains
        self.status: dict[str, Any] = {}
        self.problem: str | None = None  # with reading it
        self.created: Mapping[str, float] = {}  # the domains of the catalogue, and when each was made

    def problems(self) -> dict[str, str]:
        """Why events are not matched as they come: see `problems_of`."""
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
        """Bytes of a tenant's events, as the log has them before it compresses them, that may wait to be matched."""
        return self._waiting[tenant]

    def forget(self, key: str) -> None:
        """A domain is gone, and nothing of it waits any more."""
        self._counted.pop(key, None)

    def found(self, key: str, reached: int, parts: Iterable[tuple[int, int, int]]) -> None:
        """Count what was in the log when the gateway began and waits to be matched.

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
        """Take in the driver's status; to be called about once a second."""
        try:
            self.status = self._data.read_driver_status() or {}
            self.problem = None
        except (DataDirectoryError, OSError) as error:
            self.problem = str(error)
        for key in self.status.get("domains") or ():
            self._reached[key] = max(self.reached(key), self._said(key))
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
        """The domains of the shared stream while it runs; none where they are all of one tenant."""
        domains = self.status.get("domains")
        if self.driver != "running" or not isinstance(domains, dict):
            return frozenset()
        shared = frozenset(key for key, status in domains.items() if status.get("shared"))
        return shared if len({parts_of_key(key)[0] for key in shared}) > 1 else frozenset()

    def domain(self, key: str) -> dict[str, Any]:
        """What the driver says of a domain."""
        domains = self.status.get("domains")
        found = domains.get(key) if isinstance(domains, dict) else None
        return found if isinstance(found, dict) else {}

    def reached(self, key: str) -> int:
        """All events of the domain before this position were matched; -1 if that is not known of any."""
        return self._reached.get(key, -1)

    def _said(self, key: str) -> int:
        reached = self.domain(key).get("reached")
        return reached if isinstance(reached, int) else -1

    def of(self, key: str) -> int:
        """Events of a domain that may still wait to be matched."""
        counted = self._counted.get(key)
        return 0 if counted is None else counted.lag(self.reached(key))

    def domains(self) -> list[str]:
        """The keys of the domains that anything is known of."""
        return sorted({*self._counted, *(self.status.get("domains") or {})})

    @property
    def driver(self) -> str:
        """What the driver says its state is, "gone" where it has fallen silent, or "not started"."""
        return driver_state(self.status)


def driver_state(status: Mapping[str, Any]) -> str:
    """The state of a driver by what it last wrote; "gone" where it has fallen silent, or "not started"."""
    said = status.get("time")
    if not isinstance(said, int | float):
        return "not started"
    return str(status.get("state", "running")) if time.time() - said < STALE_SECONDS else "gone"


def problems_of(status: Mapping[str, Any], created: Mapping[str, float]) -> dict[str, str]:
    """Why events are not matched as they come, from what a running driver last wrote.

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
    for key, said in domains.items():
        if problem := _stream_problem(said):
            found[key] = problem
    now, started = time.time(), status.get("started")
    begun = started if isinstance(started, int | float) else 0.0
    for key, made in created.items():
        if key not in domains and now - max(made, begun) > OPENING_SECONDS:
            found[key] = f"the driver has no stream for it after {OPENING_SECONDS:g} seconds"
    return found


def _stream_problem(said: Any) -> str | None:
    """Why a stream does not match, by what the driver says of it; None if it does."""
    if not isinstance(said, dict):
        return f"the driver says nothing of its stream that makes sense: {said!r}"
    state, problem, since = said.get("state"), said.get("problem"), said.get("since")
    if state == "running":
        return None if problem is None else f"its stream is running with a problem: {problem}"
    is_recent = isinstance(since, int | float) and time.time() - since < OPENING_SECONDS
    if state in ("opening", "paused") and is_recent and problem is None:
        return None
    return f"its stream is {state}: {problem or 'it takes long'}"
