"""Threads that tenants share: each in turn, and one always left to the others."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.gateway.fair_threads import FairThreads, asking


def submit(threads: FairThreads, tenant: str, work: Callable[..., Any], *values: Any) -> Future[Any]:
    def as_tenant() -> Future[Any]:
        asking.set(tenant)
        return threads.submit(work, *values)

    return contextvars.copy_context().run(as_tenant)


def test_a_tenant_with_much_to_do_leaves_a_thread_to_others() -> None:
    go_on = threading.Event()
    with FairThreads(3, "test") as threads:
        hogging = [submit(threads, "a", go_on.wait, 20) for _ in range(50)]
        assert submit(threads, "b", lambda: "done").result(20) == "done"
        assert not any(one.done() for one in hogging)
        go_on.set()
        assert all(one.result(20) for one in hogging)


def test_tenants_have_their_turn_however_much_one_asks_for() -> None:
    order: list[str] = []
    go_on = threading.Event()
    with FairThreads(1, "test") as threads:
        first = submit(threads, "a", go_on.wait, 20)
        rest = [submit(threads, "a", order.append, "a") for _ in range(10)]
        rest += [submit(threads, "b", order.append, "b") for _ in range(2)]
        rest += [submit(threads, "c", order.append, "c")]
        go_on.set()
        assert first.result(20)
        for one in rest:
            one.result(20)
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert sorted(order[3:5]) == ["a", "b"]
    assert order[5:] == ["a"] * 8


def test_errors_and_cancelled_work_are_as_with_any_executor() -> None:
    go_on = threading.Event()
    with FairThreads(1, "test") as threads:
        blocking = threads.submit(go_on.wait, 20)
        cancelled = threads.submit(go_on.wait, 20)
        assert cancelled.cancel()
        failing = threads.submit(lambda: 1 // 0)
        go_on.set()
        assert blocking.result(20)
        with pytest.raises(ZeroDivisionError):
            failing.result(20)
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit(go_on.wait)


def test_what_was_asked_for_is_done_before_the_threads_end() -> None:
    done: list[int] = []
    with FairThreads(2, "test") as threads:
        for number in range(100):
            submit(threads, f"t{number % 3}", done.append, number)
    assert sorted(done) == list(range(100))
