"""The published systems as networks: nodes that join, route, store, multicast, fail and repair.

A node is *sans-I/O*: state in, effects out. It has no clock, socket, thread or source of chance of its own; whoever
drives it (`tidings.simulator`, or `process` over TCP) hands it messages, timers and the time, and
carries out the effects.

    core        ids, messages, effects, what a node is
    ring        arithmetic on a ring of ids
    codec       messages as JSON: on the wire, and in traces
    content     filters and events, as every node of a system understands them
    chord, opchord        the ring; subscriptions in lists on it (lists: where)
    pastry, scribe        prefix routing; multicast trees; digests: index digests on them (keys: where)
    gossip, matcher, bluedove   one-hop membership; matchers with segments; dispatchers in front of them
    sonnet                path queries over XML: hosts of virtual nodes on a ring by digests
        _paths, _messages, _settings    what queries and documents mean; what is said; how it is set
        _ring, _virtual (_down, _asks)  a place on the ring and in a group; links up and down, packets, degrading
        _rest                           a whole network at once, as joining would have left it
    process, launch       any of these as a process over TCP; publication_log: what a dispatcher must not lose
        link, drops                     the way to one peer; what is dropped, counted by reason
    space, clusters       boxes and points; clusters of subscriptions as multicast groups
"""
