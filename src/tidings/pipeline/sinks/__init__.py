"""Where matches go.

stream_sinks     the sinks of a stream: a store of notifications, Parquet files, Kafka, the console
store_sink       how matches get into stores of notifications, each exactly once
mailbox_groups   groups of similar subscriptions, for which a store writes pages
"""
