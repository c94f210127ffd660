"""Several systems, each for the subscriptions that it serves best: what the planner makes.

placement   a View of several Views, and which of them serves a subscription
"""

from tidings.systems.interface import System

SYSTEM = System(
    name="planned",
    help="several systems, each for the subscriptions that it serves best",
    combines=True,
)
