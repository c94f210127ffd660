"""Turns are shared so that nobody who is slow takes those of the others."""

from __future__ import annotations

import random

import pytest

from tidings.service.gateway.fair_shares import FairTurns, Shares


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
