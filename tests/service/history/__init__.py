"""Was every promise kept? A checker of what publishers and subscribers wrote down, apart from the service's code.

judge      what a filter means, by an evaluation of its own
records    what is written down, one JSON object a line
history    those records, put in order for the questions that invariants ask
invariants I1 to I9, each a function from a history to its violations
checker    all of them, and a report for people: python -m tests.service.history FILE…
simulated  histories of a service that keeps its promises, and ways to break them
"""
