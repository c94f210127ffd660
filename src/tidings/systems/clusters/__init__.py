"""Clusters of similar subscriptions as multicast groups.

Subscriptions are boxes in the space of the events, events are points, and clusters are boxes around similar
subscriptions. A subscription is registered in every cluster that it meets, an event is multicast in one cluster that
contains it.

E. Casalicchio et al., "Clustering mechanism for content-based system in DHT-based overlay networks".

placement       axes, clusters on them, who owns them, and when they are worth making again
clustering      groups of similar boxes
micro_clusters  groups of millions of boxes, approximately
space           boxes and points, one filter or event at a time
node            a member of the groups, which knows all clusters
messages        what the nodes say to each other
laws, bugs      what must hold, and nodes that break it
"""

from tidings.systems.interface import System
from tidings.systems.system_settings import Setting

SYSTEM = System(
    name="clusters",
    help="multicast groups of similar subscriptions",
    settings=(
        Setting("K", "integer", "clusters", "clusters that MGC makes", least=1),
        Setting("gammaI", "number", "inefficiency", "γI, what a false negative costs"),
        Setting("gammaR", "number", "reorganising", "γR, what it costs to reorganise a group"),
        Setting("c", "number", "gain", "c, below which the cost of new clusters has to be", least=float("-inf")),
        Setting("coordinator", "node", "coordinator", "the only node that proposes clusters; none: any node may"),
        Setting("mode", "choice", "mode", "what a new cluster is made for", ("strict", "paper"), shared=True),
        Setting("method", "choice", "method", "how boxes are clustered", ("merged", "cut", "kmeans")),
        Setting("leaves", "integer", "scribe.pastry.leaves", "size of a leaf set", least=2),
    ),
)
