"""BlueDove: segments along several dimensions, and the least loaded of several candidates.

Several attributes are dimensions, each cut into segments. In each dimension a subscription is held by every segment
that it overlaps, so an event goes to any one of the segments that it lies in: the one that should be done first.
Matchers own segments, dispatchers in front of them place subscriptions and forward events.

M. Li, F. Ye, M. Kim, H. Chen and H. Lei, "A Scalable and Elastic Publish/Subscribe Service", IPDPS 2011.

placement      segments, groups of them, who owns them, and the candidate that an event goes to;
               a matcher joins or leaves
segment_table  the segments as nodes share them
segment_node   a node with segments: sets of subscriptions, and segments that change hands
matcher_node   the same, with queues of events that it matches
node           a dispatcher, a matcher, or both
messages       what the nodes say to each other
laws, bugs     what must hold, and nodes that break it
"""

from tidings.systems.interface import System

SYSTEM = System(
    name="bluedove",
    help="dispatchers, and matchers with segments",
    options=("dimensions", "segments"),
    abilities=("log", "queue"),
)
