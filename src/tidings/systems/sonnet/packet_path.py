"""The way of one packet through Sonnet's ring: traced while a simulation runs, told as a tree, drawn as a picture.

The demonstration of Zhou et al. (section 4) shows how dissemination is shared among nodes; this is that, of any event
of any simulation. A virtual node is drawn where its digest lies among the others' on the ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import cos, pi, sin
from typing import Any, NamedTuple

from tidings.errors import TidingsError
from tidings.systems.overlay import ObservedWorld
from tidings.systems.protocols.effects import Id, Message
from tidings.systems.sonnet.messages import CastFromFirst, GroupCast, Packet, Virtual
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.paths import host_of
from tidings.systems.sonnet.virtual_node import VirtualNode

SIZE, MIDDLE, RADIUS = 1_000, 500, 300
COLOURS = {"ring": "#9aa0a6", "down": "#c1121f", "group": "#1d6996"}
MEANS = {"ring": "by way of the ring", "down": "down-stream", "group": "in the group"}


class Hop(NamedTuple):
    at_ms: int
    sender: Id
    to: Id
    how: str  # ring, down, group


class VirtualPlace(NamedTuple):
    """What a virtual node stands for."""

    path: str
    holder: str  # a subscription, or what else it is


class PacketPath:
    """Keeps the hops of one event, from the trace of a run."""

    def __init__(self, event: str, world: ObservedWorld) -> None:
        self.event = event
        self.hops: list[Hop] = []
        self.told: list[tuple[int, Id, str]] = []
        self.places: dict[Id, VirtualPlace] = {}
        self._world = world

    def message(self, now_ms: int, sender: Id, to: Id, message: Message) -> None:
        if not isinstance(message, Virtual):
            return
        how, inside = "down", message.payload
        while not isinstance(inside, Packet):
            how = "group" if isinstance(inside, GroupCast | CastFromFirst) else "ring"
            inside = getattr(inside, "payload", None)
            if inside is None:
                return
        if inside.event.id == self.event:
            self.hops.append(Hop(now_ms, message.sender, message.to, how))
            for id in (message.sender, message.to):
                self._place(id)

    def note(self, now_ms: int, what: str, *about: Any) -> None:
        if what == "deliver" and about[2] == self.event:
            self.told.append((now_ms, about[0], about[1]))

    def _place(self, id: Id) -> None:
        host = self._world.nodes.get(host_of(id))
        if id in self.places or not isinstance(host, SonnetNode) or id not in host.virtual:
            return
        self.places[id] = place_of(host, host.virtual[id])

    # As text

    def tree(self) -> Iterator[str]:
        """A line for each virtual node that was reached, below the one that it got the packet from first."""
        if not self.hops:
            raise TidingsError(f"event {self.event} was not published, or went nowhere; events are p0, p1, … and e0, …")
        first: dict[Id, Hop] = {}
        for hop in self.hops:
            first.setdefault(hop.to, hop)
        begun = self.hops[0]
        below: dict[Id, list[Hop]] = {}
        for hop in first.values():
            if hop.to != begun.sender:
                below.setdefault(hop.sender, []).append(hop)
        yield f"event {self.event}, published at {self._name(begun.sender)}"
        yield from self._branches(begun.sender, below, begun.at_ms, "")

    def _branches(self, id: Id, below: dict[Id, list[Hop]], from_ms: int, indent: str) -> Iterator[str]:
        hops = below.pop(id, [])
        for number, hop in enumerate(hops):
            last = number == len(hops) - 1
            took = f"{hop.at_ms - from_ms:>4} ms"
            yield f"{indent}{'└─' if last else '├─'} {took}  {self._name(hop.to)}  {MEANS[hop.how]}"
            yield from self._branches(hop.to, below, from_ms, indent + ("   " if last else "│  "))

    def _name(self, id: Id) -> str:
        place = self.places.get(id, VirtualPlace("?", "gone"))
        told = " ✓" if any(host == host_of(id) and name == place.holder for _, host, name in self.told) else ""
        return f"{place.path} ({place.holder}{told}) at {host_of(id)}"

    # As a picture

    def picture(self) -> str:
        """SVG: the ring of virtual nodes as they are now, and an arrow for each hop."""
        hosts = [host for host in self._world.nodes.values() if isinstance(host, SonnetNode)]
        nodes = {node.id: place_of(host, node) for host in hosts for node in host.virtual.values()} | self.places
        at = {id: _point(number, len(nodes)) for number, id in enumerate(sorted(nodes))}
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" font-family="sans-serif">',
            f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
            f'<circle cx="{MIDDLE}" cy="{MIDDLE}" r="{RADIUS}" fill="none" stroke="#dddddd"/>',
            "<defs>",
            *(
                f'<marker id="{how}" markerWidth="8" markerHeight="8" refX="9" refY="3" orient="auto">'
                f'<path d="M0,0 L7,3 L0,6 z" fill="{colour}"/></marker>'
                for how, colour in COLOURS.items()
            ),
            "</defs>",
            f'<text x="20" y="34" font-size="20" font-weight="bold">The way of event {escape(self.event)}</text>',
        ]
        for number, (how, colour) in enumerate(COLOURS.items()):
            parts.append(
                f'<text x="20" y="{SIZE - 60 + 20 * number}" fill="{colour}" font-size="14">→ {MEANS[how]}</text>'
            )
        for hop in self.hops:
            (x, y), (to_x, to_y) = at.get(hop.sender, (MIDDLE, MIDDLE)), at.get(hop.to, (MIDDLE, MIDDLE))
            dashed = ' stroke-dasharray="5,4"' if hop.how == "ring" else ""
            parts.append(
                f'<path d="M{x:.1f},{y:.1f} Q{MIDDLE},{MIDDLE} {to_x:.1f},{to_y:.1f}" fill="none" '
                f'stroke="{COLOURS[hop.how]}" stroke-width="1.6"{dashed} marker-end="url(#{hop.how})"/>'
            )
        told = {(host, name) for _, host, name in self.told}
        for number, id in enumerate(sorted(nodes)):
            parts += _dot(nodes[id], at[id], number, len(nodes), told=(host_of(id), nodes[id].holder) in told)
        return "\n".join([*parts, "</svg>", ""])


def place_of(host: SonnetNode, node: VirtualNode) -> VirtualPlace:
    name = next((name for name, own in host.own.items() if node.id in (own.node, own.moving)), None)
    path = "".join(f"/{token}" if token[0] != "=" else f'[. = "{token[1:]}"]' for token in node.lineage.tokens)
    more = " …" if node.digest.truncated else ""
    return VirtualPlace((path or "/") + more, name or ("0-node" if node.lineage.is_zero else "placeholder"))


def _point(number: int, count: int, radius: float = RADIUS) -> tuple[float, float]:
    turn = 2 * pi * number / count - pi / 2
    return MIDDLE + radius * cos(turn), MIDDLE + radius * sin(turn)


def _dot(place: VirtualPlace, point: tuple[float, float], number: int, count: int, *, told: bool) -> list[str]:
    subscribed = place.holder not in ("0-node", "placeholder")
    fill = "#38761d" if told else "#b8860b" if subscribed else "#cccccc"
    x, y = _point(number, count, RADIUS + 12)
    turn = 360 * number / count - 90
    flip = 90 < turn < 270
    label = place.path if place.holder in ("0-node", "placeholder") else f"{place.path} {place.holder}"
    if place.holder == "0-node":
        label = "0-node"
    shown = label if len(label) <= 34 else label[:33] + "…"
    return [
        f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="5" fill="{fill}"/>',
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="9" fill="#333333" text-anchor="{"end" if flip else "start"}" '
        f'transform="rotate({turn + 180 if flip else turn:.1f} {x:.1f} {y:.1f})">{escape(shown)}</text>',
    ]
