"""Sonnet in the simulator: deliveries are lxml's after churn, and the way of a packet can be told and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lxml import etree
from typer.testing import CliRunner

from tidings import Matcher
from tidings.cli import app
from tidings.simulator.packet_path import PacketPath
from tidings.simulator.run import Run
from tidings.simulator.scenario import Plan


@pytest.mark.parametrize("system", ["sonnet", "sonnet-hashes"])
def test_what_is_delivered_after_churn_is_what_the_matcher_finds(system: str) -> None:
    run = Run(Plan(system, nodes=10, seed=11, churn=0.8, subscriptions=30, events=20))
    outcome = run.play()
    assert outcome.violation is None, outcome.plan.command
    queries = {
        name: known.text
        for name, known in run.interested.items()
        if known.until_ms is None and known.node in run.world.nodes
    }
    probes = {id: json.loads(body) for id, (_, body, probe, _) in run.published.items() if probe}
    names = list(probes)
    pairs = Matcher(queries, dialect="xpath").match(list(probes.values())).pairs()
    matched = {(names[number], str(id)) for number, id in pairs}
    assert matched
    assert {(d.event, d.subscription) for d in run.world.deliveries if d.event in probes} == matched


def test_the_way_of_a_packet_ends_at_whoever_is_told_of_it() -> None:
    path = PacketPath("p1")
    run = Run(Plan("sonnet", churn=0.0, subscriptions=14), trace=path)
    path.follow(run)
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
