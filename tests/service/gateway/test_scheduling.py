"""Slots and threads are shared fairly, and background work goes on after a failure."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until_async

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.errors import TidingsError
from tidings.service.gateway.scheduling import Background, FairThreads, FairTurns, Shares, asking


def test_one_alone_has_half_and_n_have_an_equal_share_with_one_left() -> None:
    for count in (1, 2, 3, 7):
        shares = Shares(64)
        names = [str(number) for number in range(count)]
        taken = dict.fromkeys(names, 0)
        while any(shares.has_room(name) for name in names):
            for name in names:
                if shares.has_room(name):
                    shares.take(name)
                    taken[name] += 1
        assert max(taken.values()) - min(taken.values()) <= 1
        assert min(taken.values()) >= 64 // (count + 1) - 1
        assert shares.has_room("who comes new")


def begun(turns: FairTurns) -> list[int]:
    keys = []
    while (key := turns.next()) is not None:
        keys.append(key)
    return keys


def test_many_slow_endpoints_of_one_tenant_leave_turns_for_another() -> None:
    turns = FairTurns(128, lambda tenant: 64)
    for key in range(1_000):
        turns.wait(key, "a", f"https://slow{key}.example")
    assert len(begun(turns)) == 64
    turns.wait(1_000, "b", "https://quick.example")
    assert begun(turns) == [1_000]


def test_one_slow_endpoint_leaves_turns_for_the_others_of_its_tenant() -> None:
    turns = FairTurns(128, lambda tenant: 64)
    for key in range(1_000):
        turns.wait(key, "a", "https://slow.example")
    slow = begun(turns)
    assert slow == list(range(32))
    turns.wait(1_000, "a", "https://quick.example")
    assert begun(turns) == [1_000]
    turns.end(slow[0])
    turns.end(1_000)
    assert begun(turns) == [32]


def test_a_tenant_has_no_more_turns_than_it_may() -> None:
    turns = FairTurns(128, lambda tenant: 5 if tenant == "a" else 64)
    for key in range(100):
        turns.wait(key, "ab"[key % 2], f"https://{key}.example")
    running = begun(turns)
    assert [sum(key % 2 == whose for key in running) for whose in (0, 1)] == [5, 50]
    turns.end(running[0])
    assert len(begun(turns)) == 1


def test_those_who_wait_have_their_turns_in_turn() -> None:
    turns = FairTurns(2, lambda tenant: 64)
    for key, (tenant, endpoint) in enumerate([("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), ("b", "x")]):
        turns.wait(key, tenant, endpoint)
    order = []
    while (key := turns.next()) is not None:
        order.append(key)
        turns.end(key)
    assert order == [0, 3, 2, 4, 1]


@pytest.mark.parametrize("seed", range(10))
def test_everyone_who_waits_has_a_turn_and_nobody_two_at_once(seed: int) -> None:
    chance = random.Random(seed)
    turns = FairTurns(chance.choice([1, 2, 5, 64]), lambda tenant: 3 if tenant == "a" else 64)
    running: set[int] = set()
    left = set(range(300))
    for key in left:
        turns.wait(key, chance.choice("abc"), chance.choice("xyz"))
    while left or running:
        for key in begun(turns):
            assert key in left
            assert turns.has_turn(key)
            left.discard(key)
            running.add(key)
        assert running, "somebody waits, and nobody has a turn"
        ended = chance.choice(sorted(running))
        turns.end(ended)
        running.discard(ended)
        assert ended not in turns


def test_a_tenant_has_no_more_turns_than_its_limit() -> None:
    turns = FairTurns(128, {"a": 3, "b": 100}.__getitem__)
    for key in range(20):
        turns.wait(key, "a" if key < 10 else "b", f"endpoint{key}")
    running = begun(turns)
    assert (turns.running("a"), turns.running("b")) == (3, 10)
    turns.end(min(running))
    assert len(begun(turns)) == 1
    assert turns.running("a") == 3


def submit(threads: FairThreads, tenant: str, work: Callable[..., Any], *values: Any) -> Future[Any]:
    def as_tenant() -> Future[Any]:
        asking.set(tenant)
        return threads.submit(work, *values)

    return contextvars.copy_context().run(as_tenant)


def test_a_tenant_with_much_to_do_leaves_a_thread_to_others() -> None:
    go_on = threading.Event()
    with FairThreads(3, "test") as threads:
        hogging = [submit(threads, "a", go_on.wait, LAST_RESORT_SECONDS) for _ in range(50)]
        assert submit(threads, "b", lambda: "done").result(LAST_RESORT_SECONDS) == "done"
        assert not any(one.done() for one in hogging)
        go_on.set()
        assert all(one.result(LAST_RESORT_SECONDS) for one in hogging)


def test_tenants_have_their_turn_however_much_one_asks_for() -> None:
    order: list[str] = []
    go_on = threading.Event()
    with FairThreads(1, "test") as threads:
        first = submit(threads, "a", go_on.wait, LAST_RESORT_SECONDS)
        rest = [submit(threads, "a", order.append, "a") for _ in range(10)]
        rest += [submit(threads, "b", order.append, "b") for _ in range(2)]
        rest += [submit(threads, "c", order.append, "c")]
        go_on.set()
        assert first.result(LAST_RESORT_SECONDS)
        for one in rest:
            one.result(LAST_RESORT_SECONDS)
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert sorted(order[3:5]) == ["a", "b"]
    assert order[5:] == ["a"] * 8


def test_errors_and_cancelled_work_are_as_with_any_executor() -> None:
    go_on = threading.Event()
    with FairThreads(1, "test") as threads:
        blocking = threads.submit(go_on.wait, LAST_RESORT_SECONDS)
        cancelled = threads.submit(go_on.wait, LAST_RESORT_SECONDS)
        assert cancelled.cancel()
        failing = threads.submit(lambda: 1 // 0)
        go_on.set()
        assert blocking.result(LAST_RESORT_SECONDS)
        with pytest.raises(ZeroDivisionError):
            failing.result(LAST_RESORT_SECONDS)
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit(go_on.wait)


def test_what_was_asked_for_is_done_before_the_threads_end() -> None:
    done: list[int] = []
    with FairThreads(2, "test") as threads:
        for number in range(100):
            submit(threads, f"t{number % 3}", done.append, number)
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("error", [TidingsError("a store"), OSError("a disk"), KeyError("our own mistake")])
def test_a_failure_is_told_and_the_work_is_done_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    done = []

    async def work() -> None:
        done.append(1)
        if len(done) < 3:
            raise error

    async def run() -> None:
        background = Background("the work", 0.001, work)
        background.start()
        await until_async(lambda: len(done) >= 4)
        await background.stop()
        assert len(asyncio.all_tasks()) == 1  # only this one is left to do anything

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert sum("the work" in record.getMessage() for record in caplog.records) == 2
