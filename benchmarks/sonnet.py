"""How well does Sonnet's overlay spare its nodes, at 500 to 3,000 of them, beside flooding and plain DHT multicast?

The paper claims less than 20 % false positives, a load that is balanced better than by other ways to transmit packets,
and more so with more nodes; it gives neither the definition nor the curves. Here a node is a host with one
subscription, and whatever its host does for others is its load as well. Measured are

    false positives   packets that a subscription's filter was given for nothing: as a share of all that it was given,
                      and of the pairs of document and subscription that do not match
    messages          that carry a document, from its publisher to the last who gets it
    repeats           of a document that was not confirmed in time, counted apart
    load              packets that a host sent: the most in units of the mean, and the deviation in units of the mean

for Sonnet with the paper's ranks and with hashes, with every packet entering at one 0-node, and under a load that nodes
degrade for; for flooding over the same ring; and for plain DHT multicast: a Scribe tree for each group of queries, and
a document to the root of every group that one of its paths could belong to. All of them deliver the same, which
is what lxml says: that is checked first.

    python -m benchmarks.sonnet [--quick] [--nodes 500 1000 2000 3000]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, cast

import numpy as np
from lxml import etree

from benchmarks.record import write
from tidings.simulator.trace import Trace
from tidings.simulator.world import Network, World
from tidings.systems.digests.node import DigestNode, DigestSettings
from tidings.systems.protocols.content import GroupKeys
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.pastry import PastrySettings
from tidings.systems.protocols.ring import ChordSettings
from tidings.systems.protocols.ring_ids import hashed
from tidings.systems.protocols.scribe import ScribeSettings, Spread
from tidings.systems.sonnet.document_header import document_paths
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.path_digest import MAX_TOKENS, Ordering, digest_of, to_bits
from tidings.systems.sonnet.paths import RING_BITS, Paths
from tidings.systems.sonnet.placement import network_view
from tidings.systems.sonnet.seating import seat_at_rest
from tidings.systems.sonnet.sonnet_settings import SonnetSettings
from tidings.testing.real_data import DataMissing
from tidings.testing.xml_workloads import XML_WORKLOADS

SEED = 7
DOCUMENTS = 100
BUSY_DOCUMENTS = 240  # of which the second half is measured, when nodes have degraded that do
BUSY_EVERY_MS = 100
SETTLED_MS = 20_000  # whom a document did not reach while nodes degraded is told of it by then
# The ring is at rest, and so are the rows.
SLOW = ChordSettings(bits=RING_BITS, successors=4, stabilize_ms=60_000, fingers_ms=1 << 30)
AT_REST = SonnetSettings(SLOW, announce_ms=60_000, expiry_ms=180_000)
BITS = 40


class Workload:
    """Queries and documents, and what lxml says of them."""

    def __init__(self, name: str, nodes: int, documents: int) -> None:
        made = XML_WORKLOADS[name](queries=nodes, documents=documents)
        self.name = name
        self.queries = {f"s{number}": query for number, query in enumerate(made.queries)}
        self.documents = {f"d{number}": document.decode() for number, document in enumerate(made.documents)}
        paths: dict[str, list[str]] = {}
        for id, query in self.queries.items():
            paths.setdefault(query, []).append(id)
        compiled = [(etree.XPath(query), ids) for query, ids in paths.items()]
        self.matches: set[tuple[str, str]] = set()
        for name_, document in self.documents.items():
            tree = etree.fromstring(document.encode()).getroottree()
            for path, ids in compiled:
                if path(tree):
                    self.matches.update((id, name_) for id in ids)

    def event(self, name: str, again: str = "") -> Event:
        return Event(f"{name}{again}", json.dumps(self.documents[name]))


def hosts_of(workload: Workload, random: Random, variant: Ordering, settings: SonnetSettings) -> list[SonnetNode]:
    """As many hosts as queries, each with one, at rest."""
    paths = Paths(network_view(variant))
    ids = sorted(random.sample(range(1 << BITS), len(workload.queries)))
    hosts = [SonnetNode(id, random, paths, settings) for id in ids]
    seat_at_rest(
        hosts,
        {name: (host, text) for (name, text), host in zip(workload.queries.items(), hosts, strict=True)},
        random,
    )
    return hosts


def sonnet(workload: Workload, variant: Ordering = "ranks", *, anywhere: bool = True) -> dict[str, Any]:
    random = Random(SEED)
    hosts = hosts_of(workload, random, variant, AT_REST._replace(enters_anywhere=anywhere))
    world = World(random, Network(random))
    world.nodes = {host.id: host for host in hosts}
    _publish(world, hosts, workload.documents, workload)
    _check(world, workload)
    return _row(workload, world, [_sent(host) for host in hosts], sum(host.received for host in hosts)) | {
        "virtual_nodes": sum(len(host.virtual) for host in hosts),
        "placeholders": sum(len(host.placeholders) for host in hosts),
    }


def busy(workload: Workload, *, degrades: bool) -> dict[str, Any]:
    """Documents come fast; what is measured is the second half of the time."""
    random = Random(SEED)
    rate = 1_000 / BUSY_EVERY_MS
    settings = AT_REST._replace(
        chord=SLOW._replace(stabilize_ms=2_000), capacity=rate / 2, degrades=degrades, looks_around=1_000
    )
    hosts = hosts_of(workload, random, "ranks", settings)
    world = World(random, Network(random))
    for host in hosts:
        world.add(host)
    names = list(workload.documents)
    before: list[int] = []
    given = repeated = 0
    for number in range(BUSY_DOCUMENTS):
        if number == BUSY_DOCUMENTS // 2:
            before, given = [_sent(host) for host in hosts], sum(host.received for host in hosts)
            repeated = _repeated(hosts)
        host = random.choice(hosts)
        name = names[number % len(names)]
        world.do(host.id, host.publish(workload.event(name, f" {number}"), world.now_ms))
        world.run(world.now_ms + BUSY_EVERY_MS)
    sent = [_sent(host) - then for host, then in zip(hosts, before, strict=True)]
    repeated = _repeated(hosts) - repeated
    world.run(world.now_ms + SETTLED_MS)
    told = Counter((d.subscription, d.event.split()[0]) for d in world.deliveries)
    times = Counter(names[number % len(names)] for number in range(BUSY_DOCUMENTS))
    assert told == {pair: times[pair[1]] for pair in workload.matches}, "degrading has lost or made something"
    measured = range(BUSY_DOCUMENTS // 2, BUSY_DOCUMENTS)
    matches = Counter(name for _, name in workload.matches)
    true = sum(matches[names[number % len(names)]] for number in measured)
    received = sum(host.received for host in hosts) - given
    return _figures(workload, len(measured), sent, received, true) | {
        "repeats_per_document": round(repeated / len(measured), 1),
        "degraded": sum(node.degraded_from is not None for host in hosts for node in host.virtual.values()),
    }


def flooding(workload: Workload) -> dict[str, Any]:
    """Every document to everybody, over the ring's own broadcast."""
    random = Random(SEED)
    hosts = hosts_of(workload, random, "ranks", AT_REST)
    world = World(random, Network(random))
    world.nodes = {host.id: host for host in hosts}
    for number, name in enumerate(workload.documents):
        host = random.choice(hosts)
        packet = host.paths.packet(workload.event(name))
        world.do(host.id, host._carry(host.zero, host.zero.cast(packet, number), number))
    world.run(1 << 40)
    pairs = len(workload.queries) * len(workload.documents)
    return _row(workload, world, [_sent(host) for host in hosts], pairs)


class PathKeys:
    """Groups of queries as topics: by the tokens that a query keeps in order; all documents visit that of no token."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.content = self

    def held(self, text: str) -> tuple[Id, ...]:
        return (self._topic(self.paths.lineage(text).tokens),)

    def visited(self, event: Event) -> tuple[Id, ...]:
        found, _ = document_paths(self.paths.document(event))
        prefixes = {tokens[:length] for tokens in found for length in range(1, min(len(tokens), MAX_TOKENS) + 1)}
        return tuple(dict.fromkeys(self._topic(tokens) for tokens in ((), *sorted(prefixes))))

    def _topic(self, tokens: tuple[str, ...]) -> Id:
        return hashed(f"{to_bits(digest_of(tokens)):x}", BITS)

    def record(self, event: Event) -> Event:
        return event

    def interest(self, text: str) -> _Interest:
        return _Interest(self.paths, text)


class _Interest:
    def __init__(self, paths: Paths, text: str) -> None:
        self._paths, self._text = paths, text

    def holds(self, event: Event) -> bool:
        return self._paths.holds(self._text, event)


class _Sent(Trace):
    """Messages that carry an event, by who sent them; and how many came to where they are matched."""

    def __init__(self) -> None:
        super().__init__()
        self.by: Counter[Id] = Counter()

    def message(self, now_ms: int, sender: Id, to: Id, message: Any) -> None:
        if isinstance(message, Spread) or "event" in getattr(getattr(message, "payload", None), "_fields", ()):
            self.by[sender] += 1

    def note(self, now_ms: int, what: str, *about: Any) -> None:
        pass


def dht_multicast(workload: Workload) -> dict[str, Any]:
    random = Random(SEED)
    keys = cast(GroupKeys, PathKeys(Paths()))
    settings = DigestSettings(ScribeSettings(PastrySettings(bits=BITS, leaves=16)))
    ids = sorted(random.sample(range(1 << BITS), len(workload.queries)))
    nodes = [_Counting(id, random, keys, settings) for id in ids]
    world = World(random, Network(random))
    for node in nodes:
        node.seat(ids)
        world.nodes[node.id] = node
    for (name, text), node in zip(workload.queries.items(), nodes, strict=True):
        world.do(node.id, node.subscribe(name, text, 0))
    world.run(1 << 30)
    trace = world.trace = _Sent()
    _publish(world, nodes, workload.documents, workload)
    _check(world, workload)
    return _row(workload, world, [trace.by[node.id] for node in nodes], sum(node.given for node in nodes))


class _Counting(DigestNode):
    given = 0

    def received(self, group: Id, event: Event, now_ms: int) -> Any:
        self.given += len(self._members.get(group, ()))
        return super().received(group, event, now_ms)


# ---------------------------------------------------------------------- figures


def _publish(world: World, nodes: list[Any], documents: Iterable[str], workload: Workload) -> None:
    for name in documents:
        node = world.random.choice(nodes)
        world.do(node.id, node.publish(workload.event(name), world.now_ms))
    world.run(1 << 40)


def _check(world: World, workload: Workload) -> None:
    told = [(delivery.subscription, delivery.event) for delivery in world.deliveries]
    assert len(set(told)) == len(told), "a subscription was told twice"
    assert set(told) == workload.matches, "deliveries are not what lxml says"


def _sent(host: SonnetNode) -> int:
    return host.packets_sent - host.repeats_sent


def _repeated(hosts: list[SonnetNode]) -> int:
    return sum(host.repeats_sent for host in hosts)


def _row(workload: Workload, world: World, sent: list[int], received: int) -> dict[str, Any]:
    return _figures(workload, len(workload.documents), sent, received, len(workload.matches))


def _figures(workload: Workload, documents: int, sent: list[int], received: int, true: int) -> dict[str, Any]:
    load = np.array(sent, float)
    pairs = documents * len(workload.queries)
    return {
        "documents": documents,
        "matches_per_document": round(true / documents, 1),
        "messages_per_document": round(load.sum() / documents, 1),
        "false_of_received": round((received - true) / received, 4),
        "false_of_not_matching": round((received - true) / (pairs - true), 5),
        "load_most_by_mean": round(load.max() / load.mean(), 1),
        "load_deviation_by_mean": round(load.std() / load.mean(), 2),
        "hosts_that_send": round(float((load > 0).mean()), 3),
    }


WAYS: dict[str, Callable[[Workload], dict[str, Any]]] = {
    "sonnet": lambda workload: sonnet(workload),
    "sonnet, hashes": lambda workload: sonnet(workload, "hashes"),
    "sonnet, one entry": lambda workload: sonnet(workload, anywhere=False),
    "sonnet, busy": lambda workload: busy(workload, degrades=False),
    "sonnet, busy, degrading": lambda workload: busy(workload, degrades=True),
    "flooding": flooding,
    "DHT multicast": dht_multicast,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sonnet", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[500, 1_000, 2_000, 3_000])
    parser.add_argument("--workloads", nargs="*", default=["bibliography", "dtd"])
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--quick", action="store_true", help="100 nodes, 20 documents; nothing written")
    options = parser.parse_args(arguments)
    question = (__doc__ or "").splitlines()[0]
    for name in options.workloads:
        for nodes in [100] if options.quick else options.nodes:
            try:
                workload = Workload(name, nodes, 20 if options.quick else DOCUMENTS)
            except DataMissing as missing:
                print(f"{name}: {missing}")
                break
            for way in options.ways:
                start = time.process_time()
                row = {"workload": name, "nodes": nodes, "way": way, "seed": SEED} | WAYS[way](workload)
                print(", ".join(f"{key} {value}" for key, value in row.items()), end="", flush=True)
                print(f", {time.process_time() - start:.1f} s", flush=True)
                if not options.quick:
                    write("sonnet", question, [row], same=("workload", "nodes", "way"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
