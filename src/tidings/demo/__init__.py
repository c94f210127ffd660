"""See it work: a month of real flights from New York against a few thousand filters.

`flights` holds the events and how they were drawn, `people` the subscribers, `job` the run.
"""
