"""A real service at the mercy of chance: one seed makes a schedule, the schedule is carried out, histories are judged.

content    what is published and asked for: shapes of domains, their events in every form, filters with their meaning
schedule   a seed ─► a list of timed actions, as plain data
motifs     the short stories that a schedule is made of
world      a service with its tenants, publishers, readers and receivers, and what each action does to it
meaning    what a filter's text means, by the plain interpreter, for the checker
hostile    what a tenant may try on purpose
run        a schedule from start to end: serve, act, settle, stop, read the log, check
planted    bugs that were real, put back into a service that serves here
results    what came of it, kept in a file and shown in the manual
hooks      what is run in the service's processes at their start: a clock that jumps, small settings, planted bugs

`python -m tests.service.torture --help` says how; publishers, subscribers and the checker are those of `faults` and
`history`.
"""
