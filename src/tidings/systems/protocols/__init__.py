"""What the nodes of systems are made of: they join, route, store, multicast, fail and repair.

A node is *sans-I/O*: state in, effects out. It has no clock, socket, thread or source of chance of its own; the driver
(`tidings.simulator`, or `process` over TCP) hands it messages, timers and the time, and carries out the effects.

    effects       ids, messages, effects, what a node is
    ring_ids      arithmetic on a ring of ids
    message_codec messages as JSON: on the wire, and in traces
    content       filters and events, as every node of a system understands them, and the groups in which they meet
    ring          Chord's ring; ring_laws: what must hold of it
    pastry        prefix routing
    scribe        multicast trees on Pastry; pastry_laws: what must hold of both
    gossip        one-hop membership
    many_domains  several domains in one node
    process       a node as a process over TCP, and its log of publications
    link          the way from a process to one peer; what is dropped, counted by reason
    listener      the connections that peers open to a process
    network_secret  what the nodes of a network prove to each other, and how: TLS with certificates of their own
"""
