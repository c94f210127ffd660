"""The steps of a match. Each is a function from DataFrame to DataFrame, and serves batch and stream.

match_step      `match`: events in, events with the subscriptions that they satisfy out
route_step      events to the partitions that hold what they may satisfy
match_tasks     what tasks do to match: rows, or visits of rows that were routed
index_version   a version of an index on a worker: base, delta, removed ids and View
combine_step    what an event found at several partitions, put together
counted_lists   lists of conjunctions, for placements that count (Chord, OPChord)
counted_stream  the same in a stream, where an event is known by its position
match_metrics   what matching takes, to compare with what the planner expected
"""
