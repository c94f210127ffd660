"""A network in one process, whose every fault comes from one seed.

world         the virtual clock, the nodes, and the network between them
trace         what happened, a line each, and whether it happens again
scenario      a seed becomes a schedule: which nodes join, leave, crash, subscribe and publish, and when
measures      what a run costs: messages, bytes, hops, latency, load, false positives
own_workload  a user's own domain, filters and events, from files
workload      what is subscribed to and published: records and filters; XML documents and paths
run           plays a schedule, under the laws of the system; the fewest steps that fail
judge         what was delivered, by the oracle, and what the system owes
static_rings  exact hop counts on rings too large to simulate
"""
