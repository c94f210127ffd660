"""Where matches go: mailboxes, Parquet files, Kafka, the console."""
