"""Sonnet's prefix ring: groups as ranges, links and packets, placeholders, moving up and down, near up-streams."""

from __future__ import annotations

import json
from random import Random

import pytest
from lxml import etree

from tidings.errors import FilterError, TidingsError
from tidings.simulator.world import Network, World
from tidings.systems.protocols.effects import Event, Id, Send
from tidings.systems.protocols.ring import AskState, Notify, State
from tidings.systems.sonnet import laws
from tidings.systems.sonnet.messages import AskRows
from tidings.systems.sonnet.node import TIDY, SonnetNode
from tidings.systems.sonnet.path_digest import Ordering
from tidings.systems.sonnet.paths import Paths, group_of, hangs_below, lineage_of, range_of
from tidings.systems.sonnet.placement import network_view
from tidings.systems.sonnet.sonnet_settings import SonnetSettings
from tidings.systems.sonnet.virtual_node import VirtualNode
from tidings.xml.path_parser import parse_path

# Figure 1, where the query of the text says `author` and the feed has `a`
FEED = """<rss version="2.0"><channel><item>
<title>SIGMOD 2005 research paper</title><link>http://doi.acm.org/10.1145/1066159</link>
<description><a>T. Johnson</a><a>S. Muthukrishnan</a><a>I. Rozenbaum</a>
<title>Sampling Algorithms in a Stream Operator</title><inproceedings>SIGMOD 2005</inproceedings></description>
</item></channel></rss>"""
OTHER = "<rss><channel><item><title>News</title><author>A. Zhou</author></item></channel></rss>"
QUERIES = {
    "paper": '/rss/channel/item[description/a = "T. Johnson"]/link',
    "as written": '/rss/channel/item[description/author = "T. Johnson"]/link',
    "items": "/rss/channel/item",
    "items too": "/rss/channel/item",
    "title": '/rss/channel/item/title[. = "News"]',
    "anywhere": "//a",
    "any": "/*",
    "starred": "/rss/*/item/author",
    "other": "/dblp/article/title",
}


class Net:
    """Hosts in a world, seated on the ring."""

    def __init__(
        self,
        hosts: int = 6,
        seed: int = 1,
        plane_ms: int = 0,
        settings: SonnetSettings = SonnetSettings(),  # noqa: B008
        variant: Ordering = "ranks",
    ) -> None:
        random = Random(seed)
        self.world = World(random, Network(random, plane_ms=plane_ms))
        self.paths = Paths(network_view(variant))
        self.hosts = [
            SonnetNode(id, random, self.paths, settings) for id in sorted(random.sample(range(1 << 32), hosts))
        ]
        ring = sorted(host.zero.id for host in self.hosts)
        for host in self.hosts:
            host.zero.seat(ring)
            self.world.add(host)

    def subscribe(self, number: int, name: str, text: str) -> None:
        host = self.hosts[number % len(self.hosts)]
        self.world.do(host.id, host.subscribe(name, text, self.world.now_ms))

    def unsubscribe(self, number: int, name: str) -> None:
        host = self.hosts[number % len(self.hosts)]
        self.world.do(host.id, host.unsubscribe(name, self.world.now_ms))

    def publish(self, number: int, name: str, document: str) -> None:
        host = self.hosts[number % len(self.hosts)]
        self.world.do(host.id, host.publish(Event(name, json.dumps(document)), self.world.now_ms))

    def rest(self, ms: int = 8_000) -> None:
        self.world.run(self.world.now_ms + ms)

    def told(self) -> list[tuple[str, str]]:
        return sorted((delivery.subscription, delivery.event) for delivery in self.world.deliveries)

    def virtual(self) -> list[VirtualNode]:
        return list(laws.members_of(self.world).values())

    def flaws(self) -> list[str]:
        laws_at_rest = (laws.ring_flaws, laws.link_flaws, laws.placeholder_flaws)
        return [what for flaws in laws_at_rest for what in flaws(self.world).values()]


def judged(queries: dict[str, str], documents: dict[str, str]) -> list[tuple[str, str]]:
    trees = {name: etree.fromstring(text).getroottree() for name, text in documents.items()}
    return sorted((id, name) for id, text in queries.items() for name, tree in trees.items() if tree.xpath(text))


@pytest.mark.parametrize("variant", ["ranks", "hashes"])
def test_every_matching_subscriber_is_told_once_and_nobody_else(variant: Ordering) -> None:
    network = Net(variant=variant)
    for number, (name, text) in enumerate(QUERIES.items()):
        network.subscribe(number, name, text)
    network.rest()
    assert set(network.world.active) == set(QUERIES)
    documents = {"feed": FEED, "other": OTHER}
    for number, (name, document) in enumerate(documents.items()):
        network.publish(number, name, document)
    network.rest(2_000)
    assert network.told() == judged(QUERIES, documents)


@pytest.mark.parametrize("variant", ["ranks", "hashes"])
def test_a_group_is_a_range_of_the_ring_and_hangs_below_one_with_a_token_less(variant: Ordering) -> None:
    for text in QUERIES.values():
        lineage = lineage_of(parse_path(text), variant)
        low, high = range_of(lineage.group, variant)
        for digest in (0, 1, (1 << 19) - 1):
            id = lineage.id_at(7, digest)
            assert low <= id < high
            assert group_of(id, variant) == lineage.group
        above = lineage.parent
        assert above is not None
        assert hangs_below(above.digest, lineage.digest)
        assert not hangs_below(lineage.digest, above.digest)
        while not above.is_zero:
            below, above = above, above.parent
            assert above is not None
            assert hangs_below(above.digest, below.digest)


def test_what_is_no_path_and_what_is_no_document_are_refused_and_change_nothing() -> None:
    network = Net(hosts=1)
    (host,) = network.hosts
    with pytest.raises(FilterError, match="path"):
        host.subscribe("s", "/rss/channel[1]", 0)
    with pytest.raises(TidingsError):
        host.publish(Event("e", json.dumps("<rss>")), 0)
    with pytest.raises(TidingsError, match="XML"):
        host.publish(Event("e", json.dumps({"price": 1})), 0)
    assert not host.own
    assert len(host.virtual) == 1


def test_placeholders_stand_for_empty_groups_and_go_when_nobody_hangs_below_them() -> None:
    network = Net()
    network.subscribe(0, "deep", "/a/b/c/d")
    network.rest()
    assert sorted(node.lineage.tokens for node in network.virtual() if node.lineage.tokens) == [
        ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"),
    ]  # fmt: skip
    network.subscribe(1, "above", "/a/b")
    network.rest()
    network.unsubscribe(0, "deep")
    network.rest(40_000)
    left = [node for node in network.virtual() if node.lineage.tokens]
    assert sorted(node.lineage.tokens for node in left)[-1] == ("a", "b")
    network.unsubscribe(1, "above")
    network.rest(60_000)
    assert not [node for node in network.virtual() if node.lineage.tokens]
    assert not any(node.down for node in network.virtual())


def test_a_query_that_others_hang_below_is_given_up_without_losing_them() -> None:
    network = Net()
    network.subscribe(0, "above", "/a/b")
    network.rest()
    network.subscribe(1, "below", "/a/b/c")
    network.rest()
    network.unsubscribe(0, "above")
    for number in range(5):
        network.publish(number, f"e{number}", "<a><b><c/></b></a>")
        network.rest(1_000)
    assert network.told() == [("below", f"e{number}") for number in range(5)]


def test_a_host_that_leaves_takes_no_group_with_it_that_others_hang_below() -> None:
    network = Net()
    network.subscribe(0, "above", "/a/b")
    network.rest()
    network.subscribe(1, "below", "/a/b/c")
    network.rest()
    gone = network.hosts.pop(0)  # and with it whoever stood for /a
    network.world.stop(gone.id, gone.leave(network.world.now_ms))
    for number in range(10):
        network.publish(number, f"e{number}", "<a><b><c/></b></a>")
        network.rest(100)
    network.rest(30_000)
    assert network.told() == [("below", f"e{number}") for number in range(10)]
    assert not any(host.log.pending() for host in network.hosts)


@pytest.mark.parametrize(("seed", "later_ms"), [(42, 54), (68, 159), (147, 19)])
def test_who_comes_to_a_group_that_was_just_given_up_is_in_place_when_all_know_of_it(seed: int, later_ms: int) -> None:
    network = Net(hosts=7, seed=seed)
    network.subscribe(0, "one", "/a")
    network.rest(6_000)
    network.unsubscribe(0, "one")
    network.rest(later_ms)
    network.subscribe(1, "two", "/a")
    while "two" not in network.world.active:
        network.rest(10)
    for number in range(28):
        network.publish(number, f"e{number}", "<a/>")
        network.rest(30 if number % 7 == 6 else 0)
    network.rest(10_000)
    assert network.told() == sorted(("two", f"e{number}") for number in range(28))


def repeated(network: Net) -> int:
    return sum(host.repeats_sent for host in network.hosts)


def test_a_document_is_not_sent_again_where_a_node_says_that_it_confirms_it_later() -> None:
    network = Net()
    network.subscribe(0, "s", "/a/b")
    network.rest()
    (above,) = [node for node in network.virtual() if node.lineage.tokens == ("a",)]
    above._complete_ms = network.world.now_ms + 8_000  # as if others may have yet to register with it
    publisher = next(host for host in network.hosts if host.id != above.host)
    network.publish(network.hosts.index(publisher), "e", "<a><b/></a>")
    network.rest(7_000)
    assert network.told() == [("s", "e")]
    assert publisher.log.pending()
    network.rest(3_000)
    assert not publisher.log.pending()
    assert not repeated(network)


def test_a_document_that_a_node_passed_on_too_early_reaches_who_came_later() -> None:
    network = Net()
    network.subscribe(0, "s", "/a/b")
    network.rest()
    (above,) = [node for node in network.virtual() if node.lineage.tokens == ("a",)]
    above._complete_ms = network.world.now_ms + 5_000  # those below have yet to register again …
    above.down.clear()
    network.publish(1, "e", "<a><b/></a>")
    network.rest(2_500)  # … and do so with their next registration
    assert above.down
    network.rest(5_000)
    assert network.told() == [("s", "e")]
    assert not repeated(network)


def test_a_document_is_sent_again_where_a_node_that_was_to_confirm_it_is_gone() -> None:
    network = Net()
    network.subscribe(0, "s", "/a/b")
    network.rest()
    (above,) = [node for node in network.virtual() if node.lineage.tokens == ("a",)]
    publisher = next(host for host in network.hosts if host.id != above.host)
    above._complete_ms = network.world.now_ms + 60_000
    network.publish(network.hosts.index(publisher), "e", "<a><b/></a>")
    network.rest(1_000)
    network.hosts.remove(next(host for host in network.hosts if host.id == above.host))
    network.world.crash(above.host)
    network.rest(40_000)
    assert repeated(network)
    assert not publisher.log.pending()


def test_a_document_for_a_group_that_is_gone_is_confirmed_when_nobody_comes_to_it() -> None:
    network = Net(settings=SonnetSettings(expiry_ms=180_000))
    network.subscribe(0, "s", "/a")
    network.rest()
    (node,) = [node for node in network.virtual() if node.lineage.tokens == ("a",)]
    node.seat_row(lineage_of(parse_path("/a/b"), "ranks").group, (), 1.0)  # of long ago, as somebody remembers it
    network.publish(1, "e", "<a><b/></a>")
    network.rest(9_000)
    assert network.told() == [("s", "e")]
    assert not any(host.log.pending() for host in network.hosts)
    assert not repeated(network)
    assert not node.down


def test_who_has_lost_all_that_followed_asks_the_node_before_it() -> None:
    network = Net(hosts=8)
    before, node = sorted((host.zero for host in network.hosts), key=lambda zero: zero.id)[2:4]
    following = node.successors
    node._fingers = [None] * len(node._fingers)  # it has joined a moment ago
    node.successors = following[:1]
    node._learn()
    asked = node.on_undelivered(following[0], Notify(), 0)
    assert Send(before.id, AskState("adopt")) in asked
    node.on_message(before.id, State("adopt", before.predecessor, before.successors), 0)
    assert node.successors == before.successors[1:]


def busy(network: Net, documents: int, every_ms: int) -> None:
    for number in range(documents):
        network.publish(number, f"b{network.world.now_ms}", "<a><b/></a>")
        network.rest(every_ms)


def test_nodes_degrade_into_an_overloaded_group_and_are_upgraded_when_it_is_not() -> None:
    settings = SonnetSettings(ratio=4.0, capacity=4.0)
    network = Net(hosts=8, settings=settings)
    queries = {f"s{number}": "/a/b" for number in range(24)}
    for number, (name, text) in enumerate(queries.items()):
        network.subscribe(number, name, text)
    network.rest()
    assert set(network.world.active) == set(queries)

    def degraded() -> int:
        return sum(node.degraded_from is not None for node in network.virtual())

    assert not degraded()
    before = len(network.world.deliveries)
    busy(network, documents=150, every_ms=100)
    assert degraded() >= 3
    network.rest(1_000)
    assert len(network.world.deliveries) - before == 150 * len(queries)
    assert len(set(network.told())) == len(network.told())
    assert repeated(network) < 0.02 * sum(host.packets_sent for host in network.hosts)
    network.rest(60_000)
    assert not degraded()
    assert not network.flaws()


def test_a_placeholder_that_helped_in_a_group_stays_while_nobody_else_is_there() -> None:
    network = Net()
    network.subscribe(0, "below", "/a/b")
    network.rest()
    (above,) = [node for node in network.virtual() if node.lineage.tokens == ("a",)]
    above.degraded_from = lineage_of(parse_path("/a/b"), "ranks").group  # those it came to help have gone
    for _ in range(200):
        network.rest(100)
        assert not network.flaws()
    assert above.degraded_from is None


def test_a_placeholder_makes_way_for_another_only_when_that_one_is_in_place() -> None:
    network = Net()
    network.subscribe(0, "below", "/a/b")
    network.rest()
    (old,) = [node for node in network.virtual() if node.lineage.tokens == ("a",)]
    host = network.world.nodes[old.host]
    assert isinstance(host, SonnetNode)
    network.subscribe(2, "above", "/a")
    while old.before_in_group is None:
        network.rest(5)
    (new,) = [node for node in network.virtual() if node.id == old.before_in_group]
    assert not new.is_linked  # the node before it on the ring does not know it yet
    for _ in range(10):
        network.world.do(host.id, host.on_timer(TIDY, network.world.now_ms))
    assert host.placeholders == {old.group: old.id}
    network.rest(20_000)
    assert not host.placeholders
    assert not network.flaws()


def upstream_distance_ms(settings: SonnetSettings) -> float:
    network = Net(hosts=20, seed=3, plane_ms=400, settings=settings)
    for number in range(40):
        network.subscribe(number, f"s{number}", f"/a{number % 3}")
    network.rest(40_000)
    distance = network.world.network.distance_ms
    pairs: list[tuple[Id, Id]] = [
        (node.host, node.upstream & ((1 << 48) - 1)) for node in network.virtual() if node.upstream is not None
    ]
    assert len(pairs) == 40
    return sum(distance(a, b) for a, b in pairs) / len(pairs)


def test_an_up_stream_that_is_chosen_is_nearer_than_one_that_is_taken_as_found() -> None:
    chosen = upstream_distance_ms(SonnetSettings(chooses=True))
    found = upstream_distance_ms(SonnetSettings(chooses=False))
    assert chosen < 0.7 * found


def test_a_crash_of_a_host_is_repaired_and_the_others_are_told_again() -> None:
    network = Net(hosts=6)
    for number, (name, text) in enumerate(QUERIES.items()):
        network.subscribe(number, name, text)
    network.rest()
    gone = network.hosts.pop(0)
    network.world.crash(gone.id)
    network.rest(20_000)
    assert not network.flaws()
    queries = {name: text for name, text in QUERIES.items() if name not in gone.own}
    network.publish(0, "feed", FEED)
    network.rest(2_000)
    assert network.told() == judged(queries, {"feed": FEED})


def test_a_member_that_is_not_sure_who_is_before_it_does_not_ask_itself_for_rows() -> None:
    network = Net()
    network.subscribe(0, "s", "/a")
    network.rest()
    (node,) = [node for node in network.virtual() if node.lineage.tokens == ("a",)]
    node.is_settled, node._notified_by = False, None
    assert node.on_message(node.id + 1, AskRows(node.id + 1), network.world.now_ms) == []


def test_nodes_that_join_side_by_side_are_on_the_ring_within_seconds() -> None:
    network = Net(hosts=8)
    for number in range(24):
        network.subscribe(number, f"s{number}", f"/a/b{number % 3}")
    network.rest(3_000)
    assert not laws.ring_flaws(network.world)
    network.rest(3_000)
    assert len(network.world.active) == 24


@pytest.mark.parametrize("seed", range(4))
def test_a_document_is_not_confirmed_by_a_part_of_a_ring_that_is_still_split(seed: int) -> None:
    network = Net(seed=seed)
    for number in range(6):
        network.subscribe(number, f"s{number}", "/a")
    network.rest()
    ids = [host.id for host in network.hosts]
    network.world.network.split(ids[:2], ids[2:])
    network.rest(1_500)
    network.world.network.heal()
    for number in range(6):
        network.publish(number, f"e{number}", "<a/>")
    network.rest(30_000)
    assert network.told() == sorted((f"s{number}", f"e{event}") for number in range(6) for event in range(6))
    assert not any(host.log.pending() for host in network.hosts)


def test_a_document_that_could_not_reach_everybody_is_sent_again_and_told_once() -> None:
    network = Net()
    network.subscribe(0, "s", "/a/b")
    network.subscribe(1, "other", "/a")
    network.rest()
    network.world.network.loss = 0.5
    for number in range(5):
        network.publish(number, f"e{number}", "<a><b/></a>")
    network.rest(5_000)
    network.world.network.loss = 0.0
    network.rest(30_000)
    assert network.told() == sorted((name, f"e{number}") for name in ("s", "other") for number in range(5))
    assert not any(host.log.pending() for host in network.hosts)
