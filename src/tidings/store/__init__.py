"""What has to outlive a process: the log of events, and what was delivered of it.

log        the log, written: durable, ordered, deduplicated; one writer
reader     the log, read: by position, as Arrow, from any process
page       the unit of both: consecutive events of one domain, with their checksum
repair     what to do when a checksum is wrong
log_in_topic   the log with its pages in Kafka: what counts there, and an index of it here
notifications  who got what: written by the pipeline, each batch in one transaction
deliveries     how far each subscriber has come
snapshot       several of these files copied as they are at one moment
formats        the number of each format on the disk
"""

from tidings.extras import require

require("apsw", "sqlalchemy")
