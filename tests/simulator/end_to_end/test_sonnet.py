"""Sonnet in the simulator: deliveries are lxml's after churn, and the way of a packet can be told and drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from lxml import etree
from typer.testing import CliRunner

from tidings import Matcher
from tidings.cli import app
from tidings.simulator.run import Run
from tidings.simulator.scenario import Scenario, conditions_of, timetable
from tidings.simulator.trace import Followed
from tidings.simulator.world import Network, World
from tidings.systems.overlay import Violation
from tidings.systems.sonnet.laws import FORGOTTEN_MS, MOVED_MS, laws
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.packet_path import PacketPath
from tidings.systems.sonnet.paths import Paths
from tidings.systems.sonnet.seating import seat_at_rest


@pytest.mark.parametrize("system", ["sonnet", "sonnet-hashes"])
def test_what_is_delivered_after_churn_is_what_the_matcher_finds(system: str) -> None:
    run = Run(Scenario(system, nodes=10, seed=11, churn=0.8, subscriptions=30, events=20))
    outcome = run.play()
    assert outcome.violation is None, outcome.plan.command
    queries = {
        name: known.text
        for name, known in run.judge.interested.items()
        if known.until_ms is None and known.node in run.world.nodes
    }
    probes = {id: json.loads(one.body) for id, one in run.judge.published.items() if one.is_probe}
    names = list(probes)
    pairs = Matcher(queries, dialect="xpath").match(list(probes.values())).pairs()
    matched = {(names[number], str(id)) for number, id in pairs}
    assert matched
    assert {(d.event, d.subscription) for d in run.world.deliveries if d.event in probes} == matched


def _lose_a_neighbour(host: SonnetNode) -> None:
    host.zero.predecessor = None


def _lose_a_row(host: SonnetNode) -> None:
    (placeholder,) = host.placeholders.values()
    host.virtual[placeholder].down.clear()


def _keep_a_row(host: SonnetNode) -> None:
    """Its subscription is given up, for those below that are not there any more."""
    node = host.virtual[host.own["s"].node]
    host.placeholders[node.group] = node.id
    node.seat_row(host.paths.lineage("/a/b/c").group, (), 1.0)


def _at_rest(world: World) -> None:
    for law in world.laws:
        law.at_rest(world)


@pytest.mark.parametrize(
    ("law", "harm", "within_ms"),
    [
        ("IdealRing", _lose_a_neighbour, MOVED_MS),
        ("Linked", _lose_a_row, MOVED_MS),
        ("Placeholders", _keep_a_row, FORGOTTEN_MS),
    ],
)
def test_what_is_not_mended_in_time_breaks_a_law_at_rest(
    law: str, harm: Callable[[SonnetNode], None], within_ms: int
) -> None:
    plan = Scenario("sonnet", splits=1)
    random = Random(1)
    world = World(random, Network(random), laws=laws(conditions_of(plan)))
    hosts = [SonnetNode(id, random, Paths()) for id in range(1, 5)]
    seat_at_rest(hosts, {"s": (hosts[0], "/a/b")}, random)
    world.nodes.update({host.id: host for host in hosts})
    _at_rest(world)
    harm(hosts[0])
    healed_ms = timetable(plan).calm_ms  # before, nothing has to be mended
    for world.now_ms in (0, healed_ms, healed_ms + within_ms):
        for law_ in world.laws:
            law_.after(world, hosts[0].id)
    _at_rest(world)
    world.now_ms += 1
    with pytest.raises(Violation, match=law):
        _at_rest(world)


def test_the_way_of_a_packet_ends_at_whoever_is_told_of_it() -> None:
    run = Run(Scenario("sonnet", churn=0.0, subscriptions=14))
    path = PacketPath("p1", run.world)
    run.world.trace = Followed(None, path)
    assert run.play().violation is None
    told = {name for _, _, name in path.told}
    assert told == {d.subscription for d in run.world.deliveries if d.event == "p1"} != set()
    reached = {path.places[hop.to].holder for hop in path.hops}
    assert told <= reached
    lines = list(path.tree())
    assert lines[0].startswith("event p1, published at / (0-node)")
    assert {name for name in told if any(f"({name} ✓)" in line for line in lines)} == told
    # Each virtual node has one line: it was reached once, whatever else came to it.
    assert len(lines) == 1 + len({hop.to for hop in path.hops} - {path.hops[0].sender})


def test_the_way_of_a_packet_is_drawn_from_the_command_line(tmp_path: Path) -> None:
    picture = tmp_path / "way.svg"
    arguments = ["simulate", "sonnet", "--churn", "0", "--events", "2", "--packet", "p0", "--draw", str(picture)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "event p0, published at" in done.output
    drawn = etree.parse(picture)
    assert drawn.getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}path")) > 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["sonnet", "--draw", "x.svg"], "--packet names an event"),
        (["chord", "--packet", "p0"], "--packet names an event"),
        (["sonnet", "--packet", "p0", "--seeds", "2"], "leave out --seeds"),
    ],
)
def test_a_packet_that_cannot_be_followed_is_refused(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *arguments])
    assert done.exit_code != 0
    assert complaint in " ".join(done.output.replace("│", " ").split())
