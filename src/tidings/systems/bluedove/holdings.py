"""What a matcher holds of a dispatcher's subscriptions, and whether both agree on it: a digest, in buckets.

A dispatcher does not repeat its subscriptions: now and then it sends the digest of those that a matcher has confirmed.
Where the matcher's own is another, they compare the buckets, and then what is in those that differ.
"""

from __future__ import annotations

from functools import reduce
from operator import xor

from tidings.systems.bluedove.messages import Copy
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.ring_ids import hashed

BUCKETS = 64
_DIGEST_BITS = 48
_BUCKET_BITS = 6

CopyKey = tuple[str, Id]  # a subscription, and its dispatcher
Confirmed = tuple[int, str, int]  # a copy, as both sides name it: dimension, subscription, version


def bucket_of(copy: Confirmed) -> int:
    return _hash_of(copy) % BUCKETS


def _hash_of(copy: Confirmed) -> int:
    dimension, subscription, version = copy
    return hashed(f"{dimension} {version} {subscription}", _DIGEST_BITS + _BUCKET_BITS)


class HoldingsDigest:
    """A digest of copies that are added and removed one at a time."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets = [0] * BUCKETS
        self.count = 0

    @property
    def whole(self) -> int:
        return reduce(xor, self._buckets)

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(self._buckets)

    def add(self, copy: Confirmed) -> None:
        self._toggle(copy)
        self.count += 1

    def remove(self, copy: Confirmed) -> None:
        self._toggle(copy)
        self.count -= 1

    def _toggle(self, copy: Confirmed) -> None:
        number = _hash_of(copy)
        self._buckets[number % BUCKETS] ^= number // BUCKETS


class CopySets:
    """The copies that a matcher holds along each dimension.

    A copy is *claimed* once its dispatcher has placed it here, or named it. One that came from another matcher is not,
    and runs out if that does not follow. So do all copies of a dispatcher that has been silent for as long.
    """

    def __init__(self, dimensions: int, expire_ms: int) -> None:
        self.sets: list[dict[CopyKey, Copy]] = [{} for _ in range(dimensions)]
        self._expire_ms = expire_ms
        self._unclaimed: list[dict[CopyKey, int]] = [{} for _ in range(dimensions)]  # and when they run out
        self._claimed: dict[Id, HoldingsDigest] = {}  # by dispatcher
        self._renewed: dict[Id, int] = {}  # when a dispatcher last placed or confirmed something

    def hold(self, dimension: int, copy: Copy, now_ms: int, *, claimed: bool) -> bool:
        """Hold a copy, unless there is a newer one; returns whether it is new here."""
        key = (copy.subscription, copy.dispatcher)
        known = self.sets[dimension].get(key)
        if known is not None and known.version > copy.version:
            return False
        is_new = known is None or known.version < copy.version
        if is_new:
            if known is not None:
                self.drop(dimension, key)
            self.sets[dimension][key] = copy
        if is_new or key in self._unclaimed[dimension]:
            self._unclaimed[dimension][key] = now_ms + self._expire_ms
        if claimed:
            self._claim(dimension, key, now_ms)
        return is_new

    def drop(self, dimension: int, key: CopyKey) -> None:
        self._unclaim(dimension, key, 0)
        del self.sets[dimension][key], self._unclaimed[dimension][key]

    def _claim(self, dimension: int, key: CopyKey, now_ms: int) -> None:
        self._renewed[key[1]] = now_ms
        if self._unclaimed[dimension].pop(key, None) is not None:
            held = self.sets[dimension][key]
            digest = self._claimed.setdefault(key[1], HoldingsDigest())
            digest.add((dimension, held.subscription, held.version))

    def _unclaim(self, dimension: int, key: CopyKey, until_ms: int) -> None:
        if key not in self._unclaimed[dimension]:
            held = self.sets[dimension][key]
            self._claimed[key[1]].remove((dimension, held.subscription, held.version))
            self._unclaimed[dimension][key] = until_ms

    # What the dispatcher says

    def agrees(self, dispatcher: Id, digest: int | None, now_ms: int) -> bool:
        """Take the digest of what a dispatcher claims, or None if that is changing; whether it is what is held."""
        self._renewed[dispatcher] = now_ms
        return digest is None or digest == self._digest_of(dispatcher).whole

    def buckets(self, dispatcher: Id) -> tuple[int, ...]:
        return self._digest_of(dispatcher).buckets

    def _digest_of(self, dispatcher: Id) -> HoldingsDigest:
        return self._claimed.get(dispatcher, HoldingsDigest())

    def settle(
        self, dispatcher: Id, buckets: tuple[int, ...], copies: tuple[Confirmed, ...], now_ms: int
    ) -> tuple[Confirmed, ...]:
        """Take all that a dispatcher claims in some buckets; returns what is not held of it."""
        claimed, asked = dict.fromkeys(copies), set(buckets)
        for dimension, held in enumerate(self.sets):
            for key, copy in held.items():
                if copy.dispatcher != dispatcher:
                    continue
                confirmed = (dimension, copy.subscription, copy.version)
                if confirmed in claimed:
                    self._claim(dimension, key, now_ms)
                    del claimed[confirmed]
                elif bucket_of(confirmed) in asked:
                    self._unclaim(dimension, key, now_ms + self._expire_ms)
        return tuple(claimed)

    def expire(self, now_ms: int) -> None:
        silent = {id for id, at in self._renewed.items() if at + self._expire_ms < now_ms}
        for dimension, held in enumerate(self.sets):
            unclaimed = self._unclaimed[dimension]
            over = [key for key in held if key[1] in silent or unclaimed.get(key, now_ms) < now_ms]
            for key in over:
                self.drop(dimension, key)
        for id in silent:
            del self._renewed[id]
            self._claimed.pop(id, None)
