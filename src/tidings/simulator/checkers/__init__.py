"""Laws that hold after every message. They know nodes' state and nothing of the scenario."""
