"""Index digests over Scribe and Pastry.

An index is an ordered set of attributes, each divided into parts. A subscription chooses one index of which it
constrains every attribute, and joins a multicast tree for each digest (hash) of parts that it overlaps; an event is
multicast in the tree of its own digest, once for each index.

D. Tam, R. Azimi and H.-A. Jacobsen, "Building Content-Based Publish/Subscribe Systems with Distributed Hash Tables",
DBISP2P 2003.

placement      indices, digests, and who owns them; which indices serve a table best
node           a member of the trees; home nodes as a variant
messages       what the nodes say to each other
laws, bugs     what must hold, and nodes that break it
"""

from tidings.systems.interface import System, Variant
from tidings.systems.system_settings import Setting

SYSTEM = System(
    name="digests",
    help="multicast trees by index digests, matched at the leaves",
    settings=(
        Setting(
            "matching", "choice", "matching", "where events are matched exactly", ("leaf", "tree", "home"), shared=True
        ),
        Setting("leaves", "integer", "scribe.pastry.leaves", "size of a leaf set", least=2),
    ),
    variants={
        "tree": Variant("the same, matched in the trees", {"matching": "tree"}),
        "home": Variant("the same, matched at home nodes, without trees", {"matching": "home"}),
    },
)
