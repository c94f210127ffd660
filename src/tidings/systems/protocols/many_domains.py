"""Several domains in one node: each is a network of its own, among the nodes that were given it.

A node has one id in all of them, and one address; messages and timers say which domain they belong to. So domains share
processes but neither lists nor trees nor segments, and a node can serve some of them and not others: subsets of
the matchers for an application, which BlueDove leaves to the future.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from tidings.errors import DomainError, SubscriptionError, TidingsError, did_you_mean
from tidings.model.domain import Domain, dump_domains
from tidings.model.event import EventBatch
from tidings.systems.interface import View, view_to_dict
from tidings.systems.overlay import NamedOverlay, PublicationLog, Start, overlays
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import (
    Effects,
    Event,
    Id,
    Message,
    Name,
    Polled,
    PubSubNode,
    Ready,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.link import split_address
from tidings.systems.protocols.message_codec import Codec, MessageError, parts_of
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed
from tidings.systems.statistics import sampled_statistics
from tidings.systems.view_notes import ViewNotes, notes_of


@runtime_checkable
class HasView(Protocol):
    """The ground of a system whose nodes place by a View."""

    view: View


class InDomain(NamedTuple):
    """A message, or the tag of a timer, of one domain."""

    network: Name  # its name for all who place by the same system and declaration
    content: Message


class DomainsNode:
    """A node for each domain, driven as one. It is ready when all of them are."""

    def __init__(
        self, nodes: Mapping[str, PubSubNode], networks: Mapping[str, str], notes: Iterable[ViewNotes] = ()
    ) -> None:
        assert nodes.keys() == networks.keys(), "a domain is a network"
        assert len({node.id for node in nodes.values()}) == 1, "a node has one id"
        self._nodes = dict(nodes)
        self.networks = dict(networks)
        self.notes = tuple(notes)  # on the Views that the nodes place by
        self._domains = {network: domain for domain, network in networks.items()}
        self._waiting = set(nodes)
        self._domain_of: dict[str, str] = {}  # subscription → domain

    @property
    def id(self) -> Id:
        return next(iter(self._nodes.values())).id

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        return self._all((name, node.start(contact, now_ms)) for name, node in self._nodes.items())

    def leave(self, now_ms: int) -> Effects:
        return self._all((name, node.leave(now_ms)) for name, node in self._nodes.items())

    def check(self, message: Message, now_ms: int) -> None:
        """Raise an error where a message from the wire makes no sense to the domain that it is for."""
        if not isinstance(message, InDomain):
            raise MessageError(f"message: {type(message).__name__} is for no domain")
        name = self._domains.get(message.network)
        if name is None:
            return
        for part in parts_of(message.content):
            if isinstance(part, InDomain):
                raise MessageError("message: a domain's message is in another's")
            self._nodes[name].check(part, now_ms)

    def on_message(self, sender: Id, message: InDomain, now_ms: int) -> Effects:
        name = self._domains.get(message.network)
        if name is None:  # it was not given to this node: who sent it finds out by not being answered
            return []
        return self._of(name, self._nodes[name].on_message(sender, message.content, now_ms))

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        name = self._domains[tag.network]
        return self._of(name, self._nodes[name].on_timer(tag.content, now_ms))

    def on_undelivered(self, to: Id, message: InDomain, now_ms: int) -> Effects:
        name = self._domains[message.network]
        return self._of(name, self._nodes[name].on_undelivered(to, message.content, now_ms))

    # Subscribers and publishers

    def subscribe(self, subscription: str, text: str, now_ms: int, domain: str | None = None) -> Effects:
        """In a domain; where there is only one it need not be named."""
        name = self._named(domain)
        effects = self._of(name, self._nodes[name].subscribe(subscription, text, now_ms))
        before = self._domain_of.get(subscription, name)
        self._domain_of[subscription] = name
        if before != name:  # it is another domain's now
            effects += self._of(before, self._nodes[before].unsubscribe(subscription, now_ms))
        return effects

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        name = self._domain_of.pop(subscription, None)
        if name is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        return self._of(name, self._nodes[name].unsubscribe(subscription, now_ms))

    def publish(self, event: Event, now_ms: int, domain: str | None = None) -> Effects:
        name = self._named(domain)
        return self._of(name, self._nodes[name].publish(event, now_ms))

    def poll(self, subscription: str, limit: int) -> Effects:
        """What waits for a subscription; only some systems let it wait."""
        name = self._domain_of.get(subscription)
        if name is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        node = self._nodes[name]
        if not isinstance(node, Polled):
            raise SubscriptionError("nothing waits to be polled: nodes of this system deliver at once")
        return self._of(name, node.poll(subscription, limit))

    def _named(self, domain: str | None) -> str:
        if domain is None and len(self._nodes) == 1:
            return next(iter(self._nodes))
        if domain is None:
            raise DomainError(f'this node has the domains {", ".join(self._nodes)}; say which: "domain": "…"')
        if domain not in self._nodes:
            raise DomainError(f"this node has no domain '{domain}'; {did_you_mean(domain, self._nodes)}")
        return domain

    # Effects, with the domain that they belong to

    def _all(self, several: Iterable[tuple[str, Effects]]) -> Effects:
        return [effect for name, effects in several for effect in self._of(name, effects)]

    def _of(self, domain: str, effects: Effects) -> Effects:
        found: Effects = []
        network = self.networks[domain]
        for effect in effects:
            match effect:
                case Send(to, message):
                    found.append(Send(to, InDomain(network, message)))
                case SetTimer(after_ms, tag):
                    found.append(SetTimer(after_ms, InDomain(network, tag)))
                case Ready():
                    self._waiting.discard(domain)
                    found += [] if self._waiting else [effect]
                case _:
                    found.append(effect)
        return found


def node_of(
    named: NamedOverlay,
    id: Id,
    domains: Iterable[Domain],
    random: Random,
    log: Callable[[Domain], PublicationLog],
    *,
    queued: bool = False,
    clock: Callable[[], float] | None = None,
    samples: Mapping[str, EventBatch] | None = None,
) -> DomainsNode:
    """Returns a node of a system that serves these domains, with a log of what it publishes in each.

    It places by what the domains declare, or by samples of their events, by the domain's name.

    Nodes of one network must place alike: so a network is named by its system, the settings that all nodes share, the
    declaration, and the View, and a node that was given others is in another network.
    """
    if queued and "queue" not in named.system.abilities:
        able = ", ".join(name for name, one in overlays().items() if "queue" in one.system.abilities)
        raise TidingsError(
            f"{named.name}: its nodes deliver at once; only {able} keeps notifications until they are polled"
        )
    overlay = named.overlay
    settings = named.settings(node_id=_id_at, **({"queued": True} if queued else {}))
    shared = "".join(f" {one.name}={one.written(settings)}" for one in named.system.settings if one.shared)
    nodes, networks, notes = {}, {}, []
    for domain in domains:
        sample = (samples or {}).get(domain.name)
        content = Content(domain, None if sample is None else sampled_statistics(sample))
        ground = overlay.ground(content, settings)
        placed = ""
        # Documents are placed by their paths, of which nothing is declared.
        if named.system.needs == "records" and isinstance(ground, HasView):
            notes.append(notes_of(ground.view, content.statistics))
            placed = json.dumps(view_to_dict(ground.view))
        nodes[domain.name] = overlay.make(overlay.node, Start(id, random, ground, settings, log(domain), clock))
        digest = hashed(f"{named.system.name}{shared} {dump_domains([domain])} {placed}", 32)
        networks[domain.name] = f"{domain.name}-{digest:08x}"
    return DomainsNode(nodes, networks, notes)


def _id_at(address: str) -> Id:
    split_address(address)
    return hashed(address, ADDRESS_BITS)


def codec_of(named: NamedOverlay) -> Codec:
    """Returns the codec for the messages of a system's nodes."""
    return Codec((InDomain, *named.overlay.messages), named.overlay.wire_bits)
