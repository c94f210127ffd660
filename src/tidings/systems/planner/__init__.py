"""Which system serves which subscriptions, by what an event costs.

planner        the divisions of a table among systems, what each would cost, and the one that is chosen
expected_cost  what matching costs an event, expected from samples
"""
