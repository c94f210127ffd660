"""Flooding: every node keeps its own subscriptions, and every event goes to every node. A system for tests.

placement   one key for all
node        a member that floods events
messages    what the nodes say to each other
laws, bugs  what must hold, and nodes that break it
"""

from tidings.systems.interface import System

SYSTEM = System(name="flooding", help="every event to every node, for comparison")
