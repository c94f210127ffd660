"""Chord: a hash of every value.

For each attribute that a filter constrains, a subscription is held at the hash of every value that the attribute may
have; an event visits the hash of each of its values, and matches what it finds in as many lists as the filter
constrains attributes. The nodes are a Chord ring: the successor of a hash owns its list.

P. Triantafillou and I. Aekaterinidis, "Content-based Publish-Subscribe Over Structured P2P Networks", DEBS 2004.

placement   the lists, by hash
node        a member of the ring: the node of `opchord`, with these lists
laws, bugs  those of `opchord`
"""

from tidings.systems.interface import System
from tidings.systems.system_settings import Setting

SYSTEM = System(
    name="chord",
    help="lists on a ring, by hash",
    settings=(
        Setting("successors", "integer", "chord.successors", "length of a node's successor list", least=1),
        Setting("copies", "integer", "copies", "copies of a list, at the successors of its node"),
        Setting(
            "values",
            "integer",
            "values_max",
            "values that a range is held at, at most; 0: all that are declared",
            shared=True,
        ),
    ),
)
