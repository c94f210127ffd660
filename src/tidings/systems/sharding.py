"""Which file a copy is in, and which files an event consults where: keys, as they are stored.

A *shard* is what one owner holds of one channel, or what every owner holds at one key. A subscription is
in a shard once, however many of its keys lead there, and an event consults it once. An event has one key in a
channel, and a subscription is in one of the channels that an event has a key in: so it is found once here too, as
is one that has a single key, or one in each of the owners of which an event visits one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidings.model.event import EventBatch
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.geometry.line_positions import event_hashes
from tidings.systems.interface import EVERYWHERE, Numbers, Routed, View, channels_of, positions_of, route

SHARD_BITS = 20  # of an owner, or of a position that everybody holds


def shards_of(keys: Numbers, view: View) -> Numbers:
    owners = view.owners(keys)
    return (channels_of(keys) << np.int64(SHARD_BITS)) | np.where(owners == EVERYWHERE, positions_of(keys), owners)


def channel_of_shard(shard: int) -> int:
    return shard >> SHARD_BITS


@dataclass(frozen=True, eq=False)
class Visits:
    """Where events go: visit i is of event `events[i]` to `partitions[i]`, and consults the shards
    `shards[offsets[i]:offsets[i + 1]]` there. By event; every event has one at least."""

    events: Numbers
    partitions: Numbers
    offsets: Numbers
    shards: Numbers

    def __len__(self) -> int:
        return len(self.events)


def visits_of(events: EventBatch, view: View) -> Visits:
    """Every owner once that an event has to visit. What is held everywhere is consulted at the first."""
    routed = route(events, view)
    owners = view.owners(routed.keys)
    owned = owners != EVERYWHERE
    visiting = np.zeros(events.count, bool)
    visiting[routed.events[owned]] = True
    homeless = np.flatnonzero(~visiting)
    count = max(1, view.partitions)
    rows, partitions = distinct_pairs(
        np.concatenate([routed.events[owned], homeless]),
        np.concatenate([owners[owned], _anywhere(events, view, homeless, count)]),
    )
    if len(rows) == events.count:
        at = routed.events
    else:
        first = np.searchsorted(rows, routed.events)
        named = np.searchsorted(rows * count + partitions, routed.events * count + np.where(owned, owners, 0))
        at = np.where(owned, named, first)
    at, shards = distinct_pairs(at, shards_of(routed.keys, view))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=len(rows)))])
    return Visits(rows, partitions, offsets, shards)


def consulted(routed: Routed, view: View) -> tuple[Numbers, Numbers]:
    """(event, shard) for every shard that events consult."""
    return distinct_pairs(routed.events, shards_of(routed.keys, view))


def _anywhere(events: EventBatch, view: View, rows: Numbers, count: int) -> Numbers:
    """A partition for events that may go to any: by their values, so that they go the same way again."""
    if count == 1 or not len(rows):
        return np.zeros(len(rows), np.int64)
    return np.asarray((event_hashes(events, view.paths)[rows] % np.uint64(count)).astype(np.int64))
