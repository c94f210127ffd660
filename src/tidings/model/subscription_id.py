"""The subscription id of a peer-to-peer ring, which says by itself how many lists must name it.

P. Triantafillou and I. Aekaterinidis, "Content-based Publish-Subscribe Over Structured P2P
Networks", section 3, "The Subscription Identifier" and Figure 3: the concatenation of

    c1  the node where the subscription belongs       m bits, in a ring of m-bit identifiers
    c2  the subscription's number at that node        ⌈log2 of how many a node can have⌉ bits
    c3  the number of attributes it constrains        as many bits as the count of attributes needs

An event matches a subscription of a conjunction that is found in exactly c3 of the lists which the
event's values lead to.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings.errors import SubscriptionError


@dataclass(frozen=True, slots=True)
class SubscriptionId:
    owner: int  # c1
    number: int  # c2
    constrained: int  # c3


@dataclass(frozen=True, slots=True)
class SubscriptionIdCodec:
    """Packs ids into integers of `bits` bits, c1 uppermost, for one size of ring, node and schema."""

    owner_bits: int
    max_subscriptions: int  # outstanding at one node: numbers are 0 to this less 1
    attributes: int  # of the schema: from 0 to this many can be constrained

    def __post_init__(self) -> None:
        for what in ("owner_bits", "max_subscriptions", "attributes"):
            value = getattr(self, what)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SubscriptionError(f"subscription id: {what} is a whole number from 1, not {value!r}")

    @property
    def number_bits(self) -> int:
        return (self.max_subscriptions - 1).bit_length()  # ⌈log2(max_subscriptions)⌉, exactly

    @property
    def constrained_bits(self) -> int:
        return self.attributes.bit_length()

    @property
    def bits(self) -> int:
        return self.owner_bits + self.number_bits + self.constrained_bits

    def encode(self, id: SubscriptionId) -> int:
        self._check(id)
        return (id.owner << self.number_bits | id.number) << self.constrained_bits | id.constrained

    def decode(self, packed: int) -> SubscriptionId:
        if not isinstance(packed, int) or isinstance(packed, bool) or packed < 0 or packed >> self.bits:
            raise SubscriptionError(f"subscription id: {packed!r} is no number of {self.bits} bits")
        rest, constrained = packed >> self.constrained_bits, packed & ((1 << self.constrained_bits) - 1)
        id = SubscriptionId(rest >> self.number_bits, rest & ((1 << self.number_bits) - 1), constrained)
        self._check(id)
        return id

    def _check(self, id: SubscriptionId) -> None:
        ends = {"owner": 1 << self.owner_bits, "number": self.max_subscriptions, "constrained": self.attributes + 1}
        for part, end in ends.items():
            value = getattr(id, part)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < end:
                raise SubscriptionError(f"subscription id: {part} {value!r} is out of range (0 to {end - 1})")
