"""Where an event meets the subscriptions that it satisfies: pure laws over arrays, without Spark.

interface    what every placement is, and how one is found by its name
placements/  one file each: replicated, bluedove, digests, clusters, sonnet, chord, opchord, planned
planner      which of them serves which subscriptions, by what an event costs; expected: what matching costs it
statistics   what adapting looks at
places       where filters and events lie on an attribute's line; cells: lines that are coarse; parts: divided lines
pairs        pairs of numbers, each once
ring         identifiers, nodes, who owns what; balance: owners that have about as much to do
forwarding   BlueDove's policies; segments: matchers join and leave
clustering   groups of similar boxes; rtree: boxes found by others; groups: clusters made anew where that pays
index_choice which indices digests are made of
path_groups  paths over XML that begin alike; sonnet_digest: 128 bits for a path
meeting      the join of place and route, in memory: what a placement finds
sharding     keys as whoever runs a View stores them; change: from one View to the next
"""

from tidings.systems.interface import (
    EVERYWHERE,
    Placed,
    PlacementError,
    Routed,
    View,
    channels_of,
    place,
    placement_named,
    positions_of,
    route,
    view_from_dict,
    view_to_dict,
)
from tidings.systems.meeting import Meeting, meet
from tidings.systems.statistics import Statistics, statistics_of

__all__ = [
    "EVERYWHERE",
    "Meeting",
    "Placed",
    "PlacementError",
    "Routed",
    "Statistics",
    "View",
    "channels_of",
    "meet",
    "place",
    "placement_named",
    "positions_of",
    "route",
    "statistics_of",
    "view_from_dict",
    "view_to_dict",
]
