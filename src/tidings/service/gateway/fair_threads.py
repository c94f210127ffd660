"""Threads that tenants share fairly: each in turn, however much one of them asks for.

    with FairThreads(8, "tidings-store") as threads: ...     # an Executor like any other

Who asks is known by `asking`, which the token of a request sets. One thread is always left to the others, so
that work that takes long does not stop them.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

asking: ContextVar[str | None] = ContextVar("asking", default=None)  # the tenant; None: the service itself


class FairThreads(Executor):
    """A pool of threads with a queue for each tenant, served in turn."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads = threads
        self._of_one = max(1, threads - 1)
        self._lock = threading.Lock()
        self._queues: OrderedDict[str | None, deque[Callable[[], None]]] = OrderedDict()  # none is empty
        self._running: Counter[str | None] = Counter()

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
        """Start what may run now; with the lock held."""
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
        """End when all that was asked for is done."""
        with self._lock:
            waiting = [work for queue in self._queues.values() for work in queue]
            self._queues.clear()
        for work in waiting:
            self._pool.submit(work)
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


_NOBODY: Any = object()
