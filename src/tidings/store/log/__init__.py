"""The log of events: durable, ordered, deduplicated.

    events ─► event_record ─► appends ─► log_writer ─► page ─► log_files, or topic_pages ─► kafka_topic
                                                         └──► log_reader ─► Arrow batches

event_record   an event as the log keeps it: its JSON text and its identity
page           consecutive events of one domain with their checksum; pages as Arrow
appends        events that wait to be written, and the identities that find duplicates among them
log_writer     appends events: one writer, one transaction and one fsync for those that wait together
log_reader     reads events by position, from any process
log_files      the files of a log: opening, the writer's lock, the end that was acknowledged
log_repair     finds damaged positions, and gives them up
log_in_topic   the log with its pages in Kafka, and an index of them in files
topic_pages    pages as records of a topic, and which topic a log uses
kafka_topic    a topic of Kafka: connecting, appending, reading, removing
log_errors     what can go wrong, one class for each remedy
"""
