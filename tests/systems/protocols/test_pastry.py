"""Pastry, Scribe and digests among nodes that come and go."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.simulator.world import Network, World
from tidings.systems.digests import placement as digests
from tidings.systems.digests.interval_views import IntervalViews
from tidings.systems.digests.node import DigestNode, DigestSettings, Matching
from tidings.systems.overlay import Violation
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Effects, Event
from tidings.systems.protocols.pastry import PastryRoute, PastrySettings, shared_digits
from tidings.systems.protocols.pastry_laws import Trees, leaf_sets_at_rest, trees_at_rest
from tidings.systems.protocols.ring_ids import ring_distance
from tidings.systems.protocols.scribe import ScribeNode, ScribeSettings
from tidings.systems.statistics import statistics_of

BITS = 32
PASTRY = PastrySettings(bits=BITS, leaves=8)


class Receiving(ScribeNode):
    def __init__(self, id: int, random: Random, settings: ScribeSettings = ScribeSettings(PASTRY)) -> None:  # noqa: B008
        super().__init__(id, random, settings)
        self.got: list[str] = []
        self.reached: list[tuple[int, int]] = []  # key, hops

    def arrived(self, message: PastryRoute, now_ms: int) -> Effects:
        if isinstance(message.payload, Event):
            self.reached.append((message.key, message.hops))
            return []
        return super().arrived(message, now_ms)

    def received(self, group: int, event: Event, now_ms: int) -> Effects:
        self.got.append(event.id)
        return []


def network(count: int, seed: int = 1, *, plane_ms: int = 0, leaves: int = 8) -> tuple[World, list[Receiving]]:
    random = Random(seed)
    world = World(random, Network(random, plane_ms=plane_ms))
    settings = ScribeSettings(PASTRY._replace(leaves=leaves))
    nodes = [Receiving(random.getrandbits(BITS), random, settings) for _ in range(count)]
    for node in nodes:
        node.seat(sorted(other.id for other in nodes))
        world.add(node)
    return world, nodes


def closest(world: World, key: int) -> int:
    return min(world.nodes, key=lambda id: (ring_distance(id, key, BITS), id))


@pytest.mark.parametrize("count", [1, 2, 9, 60])
def test_a_message_reaches_the_numerically_closest_node(count: int) -> None:
    world, nodes = network(count)
    random = Random(9)
    for _ in range(20):
        key, start = random.getrandbits(BITS), random.choice(nodes)
        world.do(start.id, start.route(key, Event("x", ""), 0))
        world.run(world.now_ms + 800)
        node = world.nodes[closest(world, key)]
        assert isinstance(node, Receiving)
        assert node.reached[-1][0] == key


@pytest.mark.parametrize(("count", "digits"), [(160, 2), (320, 3)])
def test_a_route_has_at_most_as_many_hops_as_the_network_has_digits(count: int, digits: int) -> None:
    world, nodes = network(count, leaves=16)
    random = Random(3)
    for _ in range(300):
        start = random.choice(nodes)
        world.do(start.id, start.route(random.getrandbits(BITS), Event("x", ""), 0))
    world.run(900)
    hops = [hops for node in nodes for _, hops in node.reached]
    assert len(hops) == 300
    assert mean(hops) <= digits  # ⌈log16 N⌉


def test_of_several_that_fit_the_table_keeps_one_that_answers_soon() -> None:
    near, far = network(40, plane_ms=400), network(40)
    near[0].run(30_000)
    distance = near[0].network.distance_ms

    def mean_distance(nodes: list[Receiving]) -> float:
        return mean(distance(node.id, other) for node in nodes for (row, _), other in node.table.items() if row == 0)

    assert mean_distance(near[1]) < mean_distance(far[1])


def test_nodes_that_join_one_by_one_know_their_neighbours() -> None:
    random = Random(4)
    world = World(random, Network(random))
    ids = random.sample(range(1 << BITS), 14)
    world.add(Receiving(ids[0], random))
    for number, id in enumerate(ids[1:], 1):
        world.at(300 * number, lambda id=id: world.add(Receiving(id, random), ids[0]))  # type: ignore[misc]
    world.run(30_000)
    assert len(world.ready) == 14
    leaf_sets_at_rest(world)


def test_leaf_sets_mend_after_crashes() -> None:
    world, nodes = network(16)
    world.run(3_000)
    for node in nodes[:5]:
        world.crash(node.id)
    world.run(30_000)
    assert world.nodes.keys() == {node.id for node in nodes[5:]}
    leaf_sets_at_rest(world)


def test_nodes_that_come_back_at_once_do_not_keep_each_other_out() -> None:
    world, nodes = network(7)
    world.run(3_000)
    back = [nodes[1].id, nodes[4].id]
    for id in back:
        world.crash(id)
    for id, contact in zip(back, (nodes[0].id, nodes[2].id), strict=True):
        world.add(Receiving(id, world.random), contact)  # each is still in the tables that lead to the other
    world.run(4_500)
    assert set(world.ready) == {node.id for node in nodes}
    world.run(6_500)
    leaf_sets_at_rest(world)


def test_a_multicast_reaches_every_member_once_and_nobody_else() -> None:
    world, nodes = network(30)
    group = 12345678
    for node in nodes[:12]:
        world.do(node.id, node.join(group, world.now_ms))
    world.run(4_000)
    trees_at_rest(world)
    world.do(nodes[20].id, nodes[20].multicast(group, Event("e", "{}"), world.now_ms))
    world.run(6_000)
    assert [node.got for node in nodes] == [["e"]] * 12 + [[]] * 18


def test_a_tree_is_mended_when_its_root_dies_and_when_a_closer_node_joins() -> None:
    world, nodes = network(12)
    group = 0x12345678
    for node in nodes:
        world.do(node.id, node.join(group, world.now_ms))
    world.run(4_000)
    world.crash(closest(world, group))
    world.run(20_000)
    trees_at_rest(world)
    newcomer = Receiving(group + 1, world.random)
    world.add(newcomer, next(iter(world.ready)))
    world.run(32_000)
    trees_at_rest(world)
    assert newcomer.groups[group].rooted
    alive = [node for node in nodes if node.id in world.nodes]
    world.do(alive[0].id, alive[0].multicast(group, Event("e", "{}"), world.now_ms))
    world.run(34_000)
    assert all(node.got == ["e"] for node in alive)


def changing_parents() -> tuple[World, Receiving, Receiving]:
    """A member whose graft to a parent outside the tree is under way, and the parent that it has until then."""
    world, nodes = network(12)
    group = 0x12345678
    member = max(nodes, key=lambda node: ring_distance(node.id, group, BITS))  # anybody may be its parent
    world.do(member.id, member.join(group, world.now_ms))
    world.run(3_000)
    known = member.groups[group]
    before = next(node for node in nodes if node.id == known.parent)
    known.previous = known.parent
    known.parent = next(node.id for node in nodes if group not in node.groups)
    return world, member, before


def test_who_changes_its_parent_is_in_the_tree_through_the_one_before() -> None:
    world, member, before = changing_parents()
    trees_at_rest(world)
    before.groups[0x12345678].children.pop(member.id)
    with pytest.raises(Violation, match=f"{before.id} does not know its child {member.id}"):
        trees_at_rest(world)


def test_a_parent_before_is_not_kept_for_ever() -> None:
    world, member, before = changing_parents()
    trees = Trees(8_000)
    trees.after(world, member.id)
    world.now_ms += 8_000
    trees.after(world, member.id)
    world.now_ms += 1
    with pytest.raises(Violation, match=f"{member.id} still has the parent {before.id}"):
        trees.after(world, member.id)


def test_leaving_a_group_leaves_no_tree_behind() -> None:
    world, nodes = network(12)
    for node in nodes[:5]:
        world.do(node.id, node.join(99, world.now_ms))
    world.run(3_000)
    for node in nodes[:5]:
        world.do(node.id, node.leave_group(99, world.now_ms))
    world.run(12_000)
    assert not any(node.groups for node in nodes)


def test_a_group_can_be_created_before_anybody_joins() -> None:
    world, nodes = network(8)
    world.do(nodes[0].id, nodes[0].create(77, 0))
    world.run(400)
    assert [node.id for node in nodes if 77 in node.groups] == [closest(world, 77)]


@pytest.mark.parametrize(("a", "b", "shared"), [(0x1234, 0x1235, 3), (0x1234, 0x1234, 4), (0x1234, 0x9234, 0)])
def test_ids_share_digits(a: int, b: int, shared: int) -> None:
    assert shared_digits(a, b, 16, 4) == shared


# Tam, Azimi and Jacobsen's Table 1: the domain of computers

COMPUTERS = Domain(
    "computers",
    [
        Attribute("price", "int", min=0, max=3000, precision=1),
        Attribute("cpu", "string"),
        Attribute("clock", "int", min=0, max=4000, precision=1),
        Attribute("ram", "int", min=0, max=2048, precision=1),
        Attribute("hdd", "int", min=0, max=500, precision=1),
    ],
    indices=[("cpu", "ram"), ("cpu", "clock"), ("price",)],
)
OFFERS = [
    {"price": 500 + 100 * n, "cpu": ("PIII", "PIV")[n % 2], "clock": 800 + 100 * n, "ram": 128 << n % 4, "hdd": 20 * n}
    for n in range(24)
]
WISHES = {
    "equal": "cpu = 'PIV' AND ram = 256",
    "range": "cpu = 'PIV' AND clock > 1500 AND price < 2000",
    "cheap": "price <= 700",
    "either": "cpu = 'PIII' AND ram >= 512 OR price > 2500",
    "unindexed": "hdd > 300",
    "missing": "price IS NULL",
}


@pytest.mark.parametrize("matching", ["leaf", "tree", "home"])
def test_the_computers_domain_is_delivered_exactly_wherever_it_is_matched(matching: Matching) -> None:
    content = Content(COMPUTERS)
    known = statistics_of(compile_filters(list(WISHES.values()), COMPUTERS), read_events(OFFERS, COMPUTERS))
    views = IntervalViews(digests.adapt(known, partitions=1), content, BITS)
    random = Random(2)
    world = World(random, Network(random))
    settings = DigestSettings(ScribeSettings(PASTRY), matching)
    nodes = [DigestNode(random.getrandbits(BITS), random, views, settings) for _ in range(10)]
    for node in nodes:
        node.seat(sorted(other.id for other in nodes))
        world.add(node)
    for node, (name, text) in zip(nodes, WISHES.items(), strict=False):
        world.do(node.id, node.subscribe(name, text, world.now_ms))
    world.run(4_000)
    assert set(world.active) == set(WISHES)
    events = [Event(f"e{n}", str(offer).replace("'", '"')) for n, offer in enumerate(OFFERS)]
    events.append(Event("none", '{"cpu": "PIV", "ram": 256, "hdd": 400}'))
    for event in events:
        publisher = random.choice(nodes)
        world.do(publisher.id, publisher.publish(event, world.now_ms))
    world.run(8_000)
    wanted = {
        (name, event.id)
        for name, text in WISHES.items()
        for event in events
        if content.interest(text).holds(content.record(event))
    }
    assert sorted((d.subscription, d.event) for d in world.deliveries) == sorted(wanted)


def test_matching_in_the_tree_sends_fewer_messages_than_matching_at_the_leaves() -> None:
    sent = {}
    for matching in ("leaf", "tree"):
        content = Content(COMPUTERS)
        texts = [f"cpu = 'PIV' AND hdd = {n}" for n in range(8)]
        known = statistics_of(compile_filters(texts, COMPUTERS), read_events(OFFERS, COMPUTERS))
        views = IntervalViews(digests.adapt(known, partitions=1), content, BITS)
        random = Random(5)
        world = World(random, Network(random))
        world.count_kinds = True
        settings = DigestSettings(ScribeSettings(PASTRY), matching)  # type: ignore[arg-type]
        nodes = [DigestNode(random.getrandbits(BITS), random, views, settings) for _ in range(16)]
        for node in nodes:
            node.seat(sorted(other.id for other in nodes))
            world.add(node)
        for number, text in enumerate(texts):
            world.do(nodes[number].id, nodes[number].subscribe(f"s{number}", text, 0))
        world.run(6_000)
        for number in range(10):
            event = Event(f"e{number}", '{"cpu": "PIV", "hdd": 3, "price": 1, "ram": 1, "clock": 1}')
            world.do(nodes[15].id, nodes[15].publish(event, world.now_ms))
        world.run(9_000)
        assert len(world.deliveries) == 10
        sent[matching] = world.kinds["Spread"]
    assert sent["tree"] < sent["leaf"]
