"""BlueDove: segments along several dimensions, and the least loaded of several candidates.

Several attributes are dimensions, each cut into segments. In each dimension a subscription is held by every segment
that it overlaps, so an event goes to any one of the segments that it lies in: the one that should be done first.
Matchers own segments, dispatchers in front of them place subscriptions and forward events.

M. Li, F. Ye, M. Kim, H. Chen and H. Lei, "A Scalable and Elastic Publish/Subscribe Service", IPDPS 2011.

placement        segments, groups of them, who owns them, and the candidate that an event goes to
forwarding       the policies by which it is chosen
segments         a matcher joins or leaves, and a View follows the load
measured_load    the load of partitions on Spark
segment_table    the segments as nodes share them
segment_node     a node with segments: sets of subscriptions, and segments that change hands
holdings         the sets, and a digest by which a dispatcher knows what a matcher holds
matcher_node     the same, with queues of events that it matches
dispatcher_node  the same, with subscriptions of its own that it keeps in place
load_watch       what a dispatcher knows of the matchers' load
node             a dispatcher, a matcher, or both
messages         what the nodes say to each other
laws, bugs       what must hold, and nodes that break it
"""

from tidings.systems.interface import System
from tidings.systems.system_settings import Setting

POLICIES = ("adaptive", "response time", "subscriptions", "random")

SYSTEM = System(
    name="bluedove",
    help="dispatchers, and matchers with segments",
    options=("dimensions", "segments", "policy"),
    settings=(
        Setting("policy", "choice", "policy", "which candidate gets an event", POLICIES),
        Setting("role", "choice", "role", "what a node is", ("dispatcher", "matcher", "both")),
        Setting(
            "dimensions", "integer", "dimensions", "attributes that are dimensions; 1 is P2P", least=1, shared=True
        ),
        Setting(
            "full_replication", "switch", "full_replication", "every matcher holds every subscription", shared=True
        ),
        Setting("service_ms", "number", "matcher.service_ms.fixed_ms", "time that matching an event takes"),
        Setting(
            "service_ms_each", "number", "matcher.service_ms.each_ms", "and more of it for each subscription compared"
        ),
        Setting("phi", "number", "matcher.gossip.convict_phi", "φ, beyond which a silent node is convicted"),
        Setting("gossip_ms", "integer", "matcher.gossip.period_ms", "between two rounds of gossip", least=1),
        Setting("report_ms", "integer", "matcher.report_ms", "between two reports of load", least=1),
        Setting("log", "switch", "log", "whether a dispatcher keeps events over a crash"),
    ),
    abilities=("log", "queue", "growth"),
)
