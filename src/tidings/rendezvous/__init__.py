"""Where an event meets the subscriptions that it satisfies: pure laws over arrays, without Spark.

interface    what every placement is, and how one is found by its name
placements/  one file each: chord, opchord, …
places       where filters and events lie on an attribute's line; cells: lines that are coarse
ring         identifiers, nodes, who owns what
statistics   what adapting looks at
meeting      the join of place and route, in memory: what a placement finds
"""

from tidings.rendezvous.interface import (
    EVERYWHERE,
    Placed,
    PlacementError,
    Routed,
    View,
    channels_of,
    place,
    placement_named,
    placements,
    positions_of,
    route,
    view_from_dict,
    view_to_dict,
)
from tidings.rendezvous.meeting import Meeting, meet
from tidings.rendezvous.statistics import Statistics, statistics_of

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
    "placements",
    "positions_of",
    "route",
    "statistics_of",
    "view_from_dict",
    "view_to_dict",
]
