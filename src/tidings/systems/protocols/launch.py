"""The systems as `tidings node` runs them: the node of a name, for a domain that all nodes have been given.

Nodes of one network must place alike, so their View comes from the domain alone: from declared ends, precisions
and values, in place of statistics. And so a network is named by system and declaration: who was given another one
is in another network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any, NamedTuple

from tidings.errors import DomainError, TidingsError, did_you_mean
from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain, dump_domains, path_text
from tidings.model.event_values import written
from tidings.model.types import DataType
from tidings.systems.bluedove.messages import BLUEDOVE_MESSAGES
from tidings.systems.bluedove.node import BlueDoveNode, BlueDoveSettings, PublicationLog
from tidings.systems.bluedove.segment_table import Dimensions
from tidings.systems.chord import placement as chord
from tidings.systems.clusters import placement as clusters
from tidings.systems.clusters.node import CLUSTER_MESSAGES, ClusterNode, ClusterSettings
from tidings.systems.clusters.space import Space
from tidings.systems.digests import placement as digests
from tidings.systems.digests.node import DIGEST_MESSAGES, DigestNode, DigestSettings
from tidings.systems.geometry.line_positions import has_places
from tidings.systems.geometry.node_ring import Ring
from tidings.systems.opchord import placement as opchord
from tidings.systems.opchord.lists import Lists
from tidings.systems.opchord.messages import OPCHORD_MESSAGES
from tidings.systems.opchord.node import OPChordNode, OPChordSettings
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Id, PubSubNode
from tidings.systems.protocols.many_domains import DomainsNode, InDomain
from tidings.systems.protocols.pastry import PastrySettings
from tidings.systems.protocols.placement_keys import Keys
from tidings.systems.protocols.ring import ChordSettings
from tidings.systems.protocols.ring_ids import hashed
from tidings.systems.protocols.scribe import ScribeSettings
from tidings.systems.sonnet.messages import SONNET_MESSAGES
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.path_digest import Variant
from tidings.systems.sonnet.paths import HOST_BITS, RING_BITS, Paths, host_of
from tidings.systems.sonnet.settings import SonnetSettings
from tidings.systems.statistics import Statistics, statistics_of

BITS = HOST_BITS
BOUNDS = 15  # at which an attribute's line is taken to be cut, between its declared ends


class Launch(NamedTuple):
    """How a system's nodes are made, and what they say to each other."""

    make: Callable[[Id, Content, Random, PublicationLog], PubSubNode]
    messages: tuple[type, ...]
    host_of: Callable[[Id], Id] = lambda id: id  # the node that an id in a message lies with
    bits: int = BITS  # of the ids in a message
    queued: Callable[[Id, Content, Random, PublicationLog], PubSubNode] | None = None  # keeps what it would deliver


def launch_of(system: str) -> Launch:
    known = LAUNCHES | DOCUMENT_LAUNCHES
    if system not in known:
        raise TidingsError(f"there is no system '{system}' to run a node of; {did_you_mean(system, known)}")
    return known[system]


def node_of(
    system: str,
    id: Id,
    domains: Iterable[Domain],
    random: Random,
    log: Callable[[Domain], PublicationLog],
    *,
    queued: bool = False,
) -> DomainsNode:
    """A node of a system that serves these domains, with a log of what it publishes in each."""
    launch, given = launch_of(system), {domain.name: domain for domain in domains}
    make = launch.queued if queued else launch.make
    if make is None:
        able = ", ".join(name for name, one in LAUNCHES.items() if one.queued)
        raise TidingsError(f"{system}: its nodes deliver at once; only {able} keeps notifications until it is asked")
    nodes = {name: make(id, Content(domain), random, log(domain)) for name, domain in given.items()}
    named = {name: hashed(f"{system} {dump_domains([domain])}", 32) for name, domain in given.items()}
    return DomainsNode(nodes, {name: f"{name}-{digest:08x}" for name, digest in named.items()})


def messages_of(system: str) -> tuple[type, ...]:
    return (InDomain, *launch_of(system).messages)


def expected(domain: Domain) -> Statistics:
    """What filters of a domain are taken to look like, where nothing is known but its declaration."""
    texts = [text for attribute in domain.attributes for text in _typical(path_text(attribute.path), attribute)]
    if not texts:
        raise DomainError(
            f"domain '{domain.name}': no attribute has declared ends or allowed values, which nodes place by; "
            "give one a min and a max"
        )
    return statistics_of(compile_filters(texts, domain))


def _typical(name: str, attribute: Any) -> list[str]:
    type_: DataType = attribute.type
    if attribute.allowed:
        return [f"{name} = {_literal(value, type_)}" for value in attribute.allowed]
    if attribute.min is None or attribute.max is None or not has_places(type_):
        return []
    if not isinstance(attribute.min, int | float | Decimal) or type_.is_datetime:
        return [f"{name} >= {_literal(end, type_)}" for end in (attribute.min, attribute.max)]
    low, high = Decimal(str(attribute.min)), Decimal(str(attribute.max))
    steps = [low + (high - low) * step / (BOUNDS + 1) for step in range(1, BOUNDS + 1)]
    whole = type_.is_integral
    return [f"{name} >= {round(step) if whole else round(step, 6)}" for step in steps]


def _literal(value: Any, type_: DataType) -> str:
    plain = written(value, type_)
    if isinstance(plain, str):
        quoted = plain.replace("\\", "\\\\").replace("'", "\\'")
        return f"CAST('{quoted}' AS {type_})" if type_.name != "string" else f"'{quoted}'"
    return str(plain).upper() if isinstance(plain, bool) else str(plain)


def _ring(module: Any) -> Launch:
    def make(id: Id, content: Content, random: Random, log: PublicationLog) -> PubSubNode:
        view = module.adapt(expected(content.domain), partitions=1, ring=Ring(BITS, (0,)))
        return OPChordNode(id, Lists(view, content), OPChordSettings(ChordSettings(bits=BITS)))

    return Launch(make, OPCHORD_MESSAGES)


_SCRIBE = ScribeSettings(PastrySettings(bits=BITS))


def _digests(id: Id, content: Content, random: Random, log: PublicationLog) -> PubSubNode:
    view = digests.adapt(expected(content.domain), partitions=1)
    return DigestNode(id, random, Keys(view, content, BITS), DigestSettings(_SCRIBE))


def _clusters(id: Id, content: Content, random: Random, log: PublicationLog) -> PubSubNode:
    axes = clusters.adapt(expected(content.domain), partitions=1, cells=BOUNDS + 1)
    return ClusterNode(id, random, Space(axes, content), ClusterSettings(_SCRIBE))


def _bluedove(id: Id, content: Content, random: Random, log: PublicationLog, *, queued: bool = False) -> PubSubNode:
    paths = tuple(path for path, type_ in content.domain.leaves.items() if has_places(type_) and type_.name != "string")
    if not paths:
        raise DomainError(f"domain '{content.domain.name}': BlueDove needs an attribute of numbers or times")
    return BlueDoveNode(id, random, Dimensions(paths[:4], content), BlueDoveSettings(queued=queued), log=log)


def _sonnet(variant: Variant) -> Launch:
    def make(id: Id, content: Content, random: Random, log: PublicationLog) -> PubSubNode:
        return SonnetNode(id, random, Paths(variant), SonnetSettings(), log=log)

    return Launch(make, SONNET_MESSAGES, host_of, RING_BITS)


LAUNCHES: dict[str, Launch] = {
    "chord": _ring(chord),
    "opchord": _ring(opchord),
    "digests": Launch(_digests, DIGEST_MESSAGES),
    "clusters": Launch(_clusters, CLUSTER_MESSAGES),
    "bluedove": Launch(_bluedove, BLUEDOVE_MESSAGES, queued=partial(_bluedove, queued=True)),
}
# Of these the events are XML documents, and filters are paths over them.
DOCUMENT_LAUNCHES: dict[str, Launch] = {"sonnet": _sonnet("ranks"), "sonnet-hashes": _sonnet("hashes")}
DOCUMENTS = Domain("documents", [Attribute("document", "string")])
