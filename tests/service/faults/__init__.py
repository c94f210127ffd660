"""Break the service on purpose, over real HTTP and with real kills, and check what publishers and subscribers saw.

process    `tidings serve` as its user starts it: its processes by id, its files, its memory
workload   publishers and subscribers that write down everything they send and get
webhook    a receiver of webhooks that behaves as badly as it is told to
damage     what goes wrong with files
cluster    a Spark cluster on this machine, whose workers come and are killed
points     holds a process of the service at an exact point, to be killed there
scenarios  the faults, each a function that breaks something while the workload runs
run        a scenario from start to end: serve, work, break, wait, stop, read the log, check
table      what came of it, kept in a file and shown in the manual

`python -m tests.service.faults [NAME…]` runs them and prints a table; `test_faults.py` a short version.
"""
