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

SYSTEM = System(
    name="clusters",
    help="multicast groups of similar subscriptions",
)
