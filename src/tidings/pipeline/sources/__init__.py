"""Where events come from: the log, files, Kafka, feeds."""
