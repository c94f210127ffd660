from __future__ import annotations

from random import Random

from tests.systems.bluedove.cloud import A, B

from tidings.systems.bluedove.holdings import BUCKETS, CopySets, HoldingsDigest, bucket_of
from tidings.systems.bluedove.messages import Copy

EXPIRE_MS = 30_000


def copy(number: int, dispatcher: int = A, version: int = 1) -> Copy:
    return Copy(f"s{number}", dispatcher, "x > 1", version)


def digest_of(*copies: tuple[int, str, int]) -> HoldingsDigest:
    made = HoldingsDigest()
    for one in copies:
        made.add(one)
    return made


def test_a_digest_is_of_what_is_there_whatever_came_and_went_in_between() -> None:
    copies = [(number % 3, f"s{number}", number) for number in range(200)]
    shuffled = Random(1).sample(copies, 200)
    made = digest_of(*shuffled, (0, "gone", 7))
    assert made.whole != digest_of(*copies).whole
    made.remove((0, "gone", 7))
    assert (made.whole, made.buckets, made.count) == (digest_of(*copies).whole, digest_of(*copies).buckets, 200)
    assert len({bucket_of(one) for one in copies}) > BUCKETS / 2


def test_dimension_and_version_are_part_of_what_is_compared() -> None:
    wholes = {digest_of(one).whole for one in [(0, "s", 1), (1, "s", 1), (0, "s", 2), (0, "t", 1)]}
    assert len(wholes) == 4


def test_sides_agree_once_what_differs_is_settled_and_the_rest_runs_out() -> None:
    sets = CopySets(2, EXPIRE_MS)
    sets.hold(0, copy(1), 0, claimed=True)
    sets.hold(1, copy(2), 0, claimed=False)  # from another matcher
    sets.hold(0, copy(3), 0, claimed=True)  # given up meanwhile
    claimed = [(0, "s1", 1), (1, "s2", 1), (1, "s4", 1)]
    assert not sets.agrees(A, digest_of(*claimed).whole, 1_000)
    buckets = tuple(range(BUCKETS))
    assert sets.settle(A, buckets, tuple(claimed), 1_000) == ((1, "s4", 1),)
    sets.hold(1, copy(4), 1_500, claimed=True)
    assert sets.agrees(A, digest_of(*claimed).whole, 20_000)
    sets.expire(EXPIRE_MS + 900)
    assert ("s3", A) in sets.sets[0]  # for a while: perhaps it was placed while the message was under way
    sets.expire(EXPIRE_MS + 1_001)
    assert [sorted(held) for held in sets.sets] == [[("s1", A)], [("s2", A), ("s4", A)]]
    assert sets.agrees(A, digest_of(*claimed).whole, 40_000)


def test_copies_of_a_dispatcher_that_is_silent_run_out_and_others_stay() -> None:
    sets = CopySets(1, EXPIRE_MS)
    sets.hold(0, copy(1, A), 0, claimed=True)
    sets.hold(0, copy(2, B), 0, claimed=True)
    assert sets.agrees(B, digest_of((0, "s2", 1)).whole, 20_000)
    sets.expire(EXPIRE_MS + 1)
    assert list(sets.sets[0]) == [("s2", B)]
    sets.hold(0, copy(1, A), 40_000, claimed=True)
    assert sets.agrees(A, digest_of((0, "s1", 1)).whole, 40_000)


def test_a_newer_copy_replaces_an_older_one_and_not_the_other_way_around() -> None:
    sets = CopySets(1, EXPIRE_MS)
    assert sets.hold(0, copy(1, version=2), 0, claimed=True)
    assert not sets.hold(0, copy(1, version=1), 0, claimed=True)
    assert sets.agrees(A, digest_of((0, "s1", 2)).whole, 0)
    assert sets.hold(0, copy(1, version=3), 0, claimed=True)
    assert sets.agrees(A, digest_of((0, "s1", 3)).whole, 0)
