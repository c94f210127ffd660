"""Where an event meets the subscriptions that it satisfies: pure laws over arrays, and networks of nodes.

interface    what every system is, and how one is found: its record, its View, placing and routing
overlay      what a system is as a network: its nodes, laws and bugs

replicated/  every partition holds every subscription
chord/       lists on a ring, by hash
opchord/     lists on a ring, in order
digests/     index digests on multicast trees
clusters/    groups of similar subscriptions
sonnet/      path queries over XML, by digests
bluedove/    segments along several dimensions
planned/     several of them, each for the subscriptions that it serves best

planner/     which of them serves which subscriptions, by what an event costs
statistics   what adapting looks at: filters and events, a sample, or a declaration
view_notes   what a View has chosen, and what it cannot key, in words
system_settings  the parameters of the papers, as users name and write them
meeting      the join of place and route, in memory: what a placement finds
sharding     keys as the runner of a View stores them
geometry/    lines, cells, rings and boxes, which placements are made of
protocols/   what nodes are made of: effects, ring, Pastry, Scribe, gossip; the process that runs one
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
