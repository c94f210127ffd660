"""OPChord: values in their order around the ring.

As Chord, but the hash keeps the order of values: a range is an arc of the ring, held by the nodes on it, one after the
other, instead of a list for each value in it.

P. Triantafillou and I. Aekaterinidis, "Content-based Publish-Subscribe Over Structured P2P Networks", DEBS 2004.

placement     the order of each attribute's values, and arcs on the ring
lists         where a ring keeps one subscription's lists, by Chord's or OPChord's View
list_holder   a member of the ring that holds entries of lists: copies, handing over
list_keeper   the same, with walks along arcs and questions
walk_request  a walk that was asked for, and how far it has come
node          the same, with subscribers and publishers
messages      what the nodes say to each other
laws, bugs    what must hold, and nodes that break it
"""

from tidings.systems.interface import System
from tidings.systems.system_settings import Setting

SYSTEM = System(
    name="opchord",
    help="lists on a ring, in order",
    settings=(
        Setting("successors", "integer", "chord.successors", "length of a node's successor list", least=1),
        Setting("copies", "integer", "copies", "copies of a list, at the successors of its node"),
        Setting("stretch", "integer", "stretch", "nodes that a walk goes before it reports or is divided", least=1),
        Setting(
            "empirical",
            "switch",
            "empirical",
            "values spread as in a sample, if there is one, and not evenly",
            shared=True,
        ),
        Setting(
            "jump", "number", "jump", "nodes to a value, beyond which a walk jumps from value to value", shared=True
        ),
    ),
)
