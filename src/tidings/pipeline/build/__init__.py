"""From a table of subscriptions to an index: built by tasks, kept in versioned files.

compiled_index       `compile` and `Index`: a table, compiled for the events of one domain
table_reading        a table of subscriptions checked, counted, and its filters read
placement_choice     which placement is asked for, and what an executor can hold
shard_building       shard files: what the driver does, and has tasks do
index_directory      the directory of an index: immutable versions, and which is current
event_schema         what a Spark schema says of events: their domain, and whether an index fits them
"""
