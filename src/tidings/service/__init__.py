"""The service: publish over HTTP, match on Spark, deliver with nothing lost.

    publisher ─► gateway ─► log ─► driver: Spark streams ─► mailboxes ─► gateway ─► subscriber
    subscriber ─► gateway ─► catalogue ─► driver: compiles ─► index (versions)

Two processes under one supervisor. The gateway speaks HTTP and knows nothing of Spark; the driver runs the streams.
They meet in the files of a data directory, each of which has one writer: `data.data_directory` names them.

gateway      the process that speaks HTTP: publishing, subscribing, delivering
driver       the process that matches on Spark
data         the data directory: its files, backup and checks
supervisor   starts both processes, restarts them, and ends them
"""
