"""Where events come from.

stream_sources   the sources of a stream: the log, files, Kafka, a streaming DataFrame
log_source       the log as a source of Spark, for batch and stream
version_gate     no event meets a set of subscriptions that is older than the event
feed_items       RSS and Atom feeds, split into their items
table_files      tables in files: Parquet, JSON and CSV in, Parquet and JSON out
"""
