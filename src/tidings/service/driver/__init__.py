"""The driver: the process that matches on Spark.

    catalogue ─► followed_filters ─► domain_index ─► domain_stream ─┬─► mailboxes
                       └──────────────────────────► shared_stream ──┘

driver_process      the process: follows the catalogue, runs streams and jobs, writes its status
stream_assignment   which stream matches each domain: its own, or the shared one
followed_filters    the filters of one domain, followed from the catalogue; in memory for the shared stream
domain_index        the same in an index of files, for a domain that has its own stream
stream_thread       keeps one query running: retries, isolates what breaks it, follows, prunes
domain_stream       the stream of one large domain
shared_stream       the stream that small domains share
domain_adaptation   adapts the View and the mailbox groups of a domain while its stream runs
mailbox_upkeep      removes what was acknowledged, and mailboxes of deleted subscriptions
gateway_jobs        replays and backtests that the gateway asks for
"""
