"""A network in one process, whose every fault comes from one seed.

world       the virtual clock, the nodes, and the messages between them
network     how long messages take, which are lost, who is cut off from whom
trace       what happened, a line each, and whether it happens again
checkers/   laws that hold after every message, apart from the scenarios that try to break them
scenario    a seed becomes a schedule: who joins, leaves, crashes, subscribes, publishes, and when
systems     what is simulated: an overlay, its checkers, and its planted bugs
run         plays a schedule and judges it by the oracle
shrink      the fewest steps that still fail
workload, feeds  what is subscribed to and published: records and filters; XML and paths
sonnet, packet_path  Sonnet as it is simulated; the way of one packet through it
static      exact hop counts on rings too large to simulate
"""
