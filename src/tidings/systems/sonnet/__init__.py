"""Sonnet: XML documents find path queries by digests.

A path query is a digest of its tokens: which ones, and in which order. Queries whose paths begin alike are a group, and
groups hang below each other by their beginnings; a document goes down from group to group where some path of it
begins as the group's do. What a digest admits is checked exactly at the end.

A. Zhou et al., "Sonnet: an efficient distributed content-based dissemination broker", SIGMOD 2007.

placement     groups of paths, the share of the documents that offer each, and who owns them
path_digest   what a query asks for, in 128 bits
path_groups   groups of paths that begin alike: which a query asks for, and which a document offers
document_header  what a packet carries of its document, and which queries that may satisfy
paths         queries and documents, one at a time, as nodes understand them
prefix_ring   a virtual node's place on the ring and in its group
group_rows    what a virtual node knows of the groups that hang below its own
virtual_node  one subscription, or a placeholder for a group: links up and down, packets
node          a host of virtual nodes; sonnet_settings: what can be set; seating: a whole network at once
messages      what virtual nodes say to each other
packet_path   the path of one packet through the ring, as text and as a picture
laws, bugs    what must hold, and nodes that break it
"""

from tidings.systems.interface import System, Variant
from tidings.systems.system_settings import Setting

SYSTEM = System(
    name="sonnet",
    help="path queries over XML on a prefix ring, by ranks",
    needs="documents",
    abilities=("log", "path"),
    settings=(
        Setting(
            "digest", "choice", "ordering", "how digests keep the order of tokens", ("ranks", "hashes"), shared=True
        ),
        Setting("theta", "number", "ratio", "θ, down-stream nodes to an up-stream one, beyond which nodes degrade"),
        Setting("capacity", "number", "capacity", "packets a second that a node sends, beyond which it is overloaded"),
        Setting("degrades", "switch", "degrades", "whether nodes degrade"),
        Setting("chooses", "switch", "chooses", "whether up-stream nodes are chosen by their scores"),
        Setting("enters_anywhere", "switch", "enters_anywhere", "whether packets enter at a random 0-node"),
        Setting("successors", "integer", "chord.successors", "length of a node's successor list", least=1),
        Setting("log", "switch", "log", "whether a publisher keeps events over a crash"),
    ),
    variants={"hashes": Variant("the same, by hashes", {"ordering": "hashes"})},
)
