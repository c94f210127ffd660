"""The service: publish over HTTP, match on Spark, deliver with nothing lost.

    publisher ─► gateway ─► log ─► driver: one Spark stream per domain ─► mailboxes ─► gateway ─► subscriber
    subscriber ─► gateway ─► catalogue ─► driver: compiles ─► index (versions)

Two processes under one supervisor. The gateway speaks HTTP and knows nothing of Spark; the driver runs the
streams. They meet in the files of a data directory, each of which has one writer: `data_directory` names them.
"""
