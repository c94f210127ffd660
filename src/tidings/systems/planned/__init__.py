"""Several systems, each for the subscriptions that it serves best: what the planner makes."""
