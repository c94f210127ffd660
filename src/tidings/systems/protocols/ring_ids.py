"""Arithmetic on a ring of 2^bits ids, clockwise."""

from __future__ import annotations

from hashlib import sha1

from tidings.systems.protocols.effects import Id

ADDRESS_BITS = 48  # of the id of a process, which is the hash of its address


def between(low: Id, x: Id, high: Id) -> bool:
    """Whether x lies strictly between, clockwise; from an id to itself is once around, which leaves out only itself."""
    return low < x < high if low < high else x > low or x < high


def within(low: Id, x: Id, high: Id) -> bool:
    """Whether x lies in (low, high], clockwise: who is at `high` owns it, if `low` comes before."""
    return low < x <= high if low < high else x > low or x <= high


def ring_distance(a: Id, b: Id, bits: int) -> int:
    """The shorter way around."""
    ahead = (b - a) & ((1 << bits) - 1)
    return min(ahead, (1 << bits) - ahead)


def hashed(text: str, bits: int) -> Id:
    """The id of a name: the uppermost bits of its SHA-1, the base hash of Chord and Pastry; at most 160."""
    return int.from_bytes(sha1(text.encode()).digest(), "big") >> (160 - bits)
