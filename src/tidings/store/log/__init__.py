"""The log of events: written durably, read by position; in files or in a topic of Kafka."""
