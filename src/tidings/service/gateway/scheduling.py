"""Who runs when: slots and threads that tenants share fairly, and work that is repeated in the background.

Slots: a tenant may take a slot while it has fewer than are free (Choudhury and Hahne 1998, "dynamic queue length
thresholds", with a factor of 1): one alone gets half of them, two get a third each, n get 1/(n + 1). There is always
a slot for a newcomer.

Threads: each tenant has a queue, and the queues are served in turn. One thread is always left to the other tenants, so
that slow work of one does not stop them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from tidings.errors import TidingsError

T = TypeVar("T")
P = ParamSpec("P")

asking: ContextVar[str | None] = ContextVar("asking", default=None)  # the tenant; None: the service itself
_NOBODY: Any = object()
_logger = logging.getLogger(__name__)


class Shares:
    """A number of slots, and how many of them each name has taken."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._taken: Counter[str] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def taken(self, name: str) -> int:
        return self._taken[name]

    def has_room(self, name: str) -> bool:
        return self._taken[name] < self._slots - self._total

    def take(self, name: str) -> None:
        self._taken[name] += 1
        self._total += 1

    def give_back(self, name: str) -> None:
        self._taken[name] -= 1
        self._total -= 1
        if not self._taken[name]:
            del self._taken[name]


class FairTurns:
    """Decides whose turn is next: tenants in turn, then a tenant's endpoints, then the keys waiting for one endpoint.

    Tenants share the slots. The endpoints of a tenant share half of them, which is the most that a tenant can have. A
    tenant may have a limit of its own.
    """

    def __init__(self, slots: int, limit: Callable[[str], int] | None = None) -> None:
        self._slots = slots
        self._limit = limit
        self._tenants = Shares(slots)
        self._endpoints: dict[str, Shares] = {}  # by tenant
        self._waiting: OrderedDict[str, OrderedDict[str, deque[int]]] = OrderedDict()  # the next in turn first
        self._places: dict[int, tuple[str, str]] = {}  # tenant and endpoint of the keys that wait or run
        self._running: set[int] = set()

    def __contains__(self, key: int) -> bool:
        """Whether a key waits for a turn, or has one."""
        return key in self._places

    def has_turn(self, key: int) -> bool:
        return key in self._running

    def wait(self, key: int, tenant: str, endpoint: str) -> None:
        """Queues a key that neither waits nor runs."""
        assert key not in self._places
        self._places[key] = (tenant, endpoint)
        self._waiting.setdefault(tenant, OrderedDict()).setdefault(endpoint, deque()).append(key)

    def next(self) -> int | None:
        """Gives a turn to the next key that can have one, and returns it."""
        for tenant, endpoints in self._waiting.items():
            if not self._tenants.has_room(tenant) or self._is_at_limit(tenant):
                continue
            shares = self._endpoints.get(tenant) or Shares(max(2, self._slots // 2))
            for endpoint, keys in endpoints.items():
                if shares.has_room(endpoint):
                    key = keys.popleft()
                    self._tenants.take(tenant)
                    shares.take(endpoint)
                    self._endpoints[tenant] = shares
                    self._running.add(key)
                    self._rotate(tenant, endpoint)
                    return key
        return None

    def running(self, tenant: str) -> int:
        """Returns how many turns a tenant has."""
        return self._tenants.taken(tenant)

    def _is_at_limit(self, tenant: str) -> bool:
        return self._limit is not None and self.running(tenant) >= self._limit(tenant)

    def end(self, key: int) -> None:
        """Ends the turn of a key."""
        self._running.remove(key)
        tenant, endpoint = self._places.pop(key)
        self._tenants.give_back(tenant)
        shares = self._endpoints[tenant]
        shares.give_back(endpoint)
        if not shares.total:
            del self._endpoints[tenant]

    def _rotate(self, tenant: str, endpoint: str) -> None:
        endpoints = self._waiting[tenant]
        endpoints.move_to_end(endpoint)
        if not endpoints[endpoint]:
            del endpoints[endpoint]
        self._waiting.move_to_end(tenant)
        if not endpoints:
            del self._waiting[tenant]


class FairThreads(Executor):
    """A pool of threads with a queue for each tenant, served in turn. `asking` says which tenant submits."""

    def __init__(self, threads: int, name: str, *, of_one: int | None = None) -> None:
        """`of_one` is how many threads one tenant may have at a time; by default all but one."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads = threads
        self._of_one = of_one or max(1, threads - 1)
        self._lock = threading.Lock()
        self._queues: OrderedDict[str | None, deque[Callable[[], None]]] = OrderedDict()  # none is empty
        self._running: Counter[str | None] = Counter()

    async def run(self, work: Callable[..., T], *values: Any) -> T:
        """Calls a function in a thread, and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self, work, *values)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        tenant = asking.get()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            self._queues.setdefault(tenant, deque()).append(work)
            self._start()
        return future

    def _start(self) -> None:
        """Starts what may run now; the caller holds the lock."""
        while self._queues and self._running.total() < self._threads:
            tenant = next((one for one in self._queues if self._running[one] < self._of_one), _NOBODY)
            if tenant is _NOBODY:
                return
            queue = self._queues.pop(tenant)
            work = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # behind the others
            self._running[tenant] += 1
            self._pool.submit(self._run, tenant, work)

    def _run(self, tenant: str | None, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._running[tenant] -= 1
                if not self._running[tenant]:
                    del self._running[tenant]
                self._start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends when everything that was submitted is done."""
        with self._lock:
            waiting = [work for queue in self._queues.values() for work in queue]
            self._queues.clear()
        for work in waiting:
            self._pool.submit(work)
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


class Background:
    """Repeats some work with a pause in seconds, from `start` until `stop`, whatever it raises."""

    def __init__(self, name: str, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        self._name = name
        self._seconds = seconds
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._work()
            except (TidingsError, OSError) as error:  # of a store, which may work the next time
                _logger.warning("%s: %s", self._name, error)
            except Exception:  # our mistake; to stop because of it would be another, unnoticed one
                _logger.exception("%s failed", self._name)
