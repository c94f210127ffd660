"""Replicated: every partition holds every subscription, and an event is matched where it is.

For tables that are small, or that nothing divides well. There are no nodes: there is nothing to route.

placement   one key for all
"""

from tidings.systems.interface import REPLICATED, System

SYSTEM = System(
    name=REPLICATED,
    help="every partition holds every subscription",
)
