"""What has to outlive a process: events, who wants what, and what was delivered.

log           the events: durable, ordered, deduplicated; in files, or in a topic of Kafka
catalogue     domains, subscriptions, tokens and jobs; in SQLite or PostgreSQL
mailboxes     notifications, and how far each subscriber has come
sqlite_file   what all our SQLite files share: kind and format checked, durable writes, clear errors
snapshot      copies several SQLite files as they are at one moment
formats       the number of each format on the disk
"""

from tidings.extras import require

require("apsw", "sqlalchemy")
