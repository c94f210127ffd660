"""Sonnet's path digests (Zhou et al., "Sonnet: an efficient distributed content-based dissemination broker", SIGMOD
2007) for filters that ask for paths over XML.

A subscription is held at one *group* of paths that begin alike (`path_groups`): of those that its own path asks for,
the one that the fewest documents offer. That is mostly the longest beginning; for `//` it is the rarest token that the
path requires. A document visits every group that it offers. Whatever else a subscription asks for, and what its path
asks beyond the group, is for the exact check.

The groups are those of the View, each with an owner. A subscription that asks for none of them is held everywhere: so
are filters without a path over XML, with alternatives whose groups differ, and paths that only the next View knows.

Groups that the same documents offer are in the same *class* where that can be, so that a document needs few of them:
the greedy rule of Stanton and Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012. There are
so few classes that a document visits `visits_max` on average, and each is held by as many partitions as its share of
the work is of all: a document goes to one of them, by its hash, as a packet goes to any 0-node (section 3.3.1). With a
partition for each class it would visit nearly all where most subscriptions match it, and no other division could help:
a document that matches half of the subscriptions needs half of the partitions, if each subscription is held once.

channels   one for the groups, and the catch-all's. A document has many keys in the first, a subscription one in each
           partition that holds its class
positions  a group's number, and a partition
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.tree import And, Expression, Literal, Reference, XPathBoolean, operands_of
from tidings.matching.batch_columns import DocumentColumn
from tidings.model.domain import path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.geometry.line_positions import event_hashes
from tidings.systems.interface import (
    EVERYWHERE,
    Floats,
    Numbers,
    Placed,
    Routed,
    alike_keys,
    channels_of,
    keys_at,
    placed_of,
    positions_of,
)
from tidings.systems.sonnet.path_digest import Ordering
from tidings.systems.sonnet.path_groups import Offers, PathGroup, groups_asked
from tidings.systems.statistics import Statistics
from tidings.xml.path_parser import parse_path

GROUPS_MAX = 4096
SUPPORT = 3  # subscriptions of a sample that ask for a group, for it to stand for those that were not sampled
EVENTS_MAX = 2_000  # of the sample, that are read
CLASSES_EVENTS_MAX = 512  # of these, that classes are made by
VISITS_MAX = 3.0  # partitions that a document of the sample visits on average

_GROUPS, _CATCH_ALL = 0, 1  # channels

Owned: TypeAlias = tuple[Path, PathGroup]  # a group is one attribute's


@dataclass(frozen=True, eq=False)
class View:
    """The groups that subscriptions are held at, the share of the documents that offer each, and who holds it."""

    placement: ClassVar[str] = "sonnet"

    groups: tuple[Owned, ...]
    rates: Floats
    classes: Numbers  # of each group
    holders: tuple[tuple[int, ...], ...]  # the partitions that hold each class; a partition holds one
    partitions: int
    largest: float = 0.0  # the share of the subscriptions that the fullest partition holds, of those at groups, …
    largest_of_tokens: float = 0.0  # … and of those at tokens
    epoch: int = 0
    ordering: Ordering = "ranks"  # how digests, and so groups, keep the order of tokens

    @property
    def channels(self) -> int:
        return 2

    @property
    def visits(self) -> int:
        return len(self.holders) if self.groups else 0

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(path for path, _ in self.groups))

    @cached_property
    def numbers(self) -> dict[Owned, int]:
        return {group: number for number, group in enumerate(self.groups)}

    @cached_property
    def offers(self) -> dict[Path, Offers]:
        of_path: dict[Path, dict[PathGroup, int]] = {path: {} for path in self.paths}
        for number, (path, group) in enumerate(self.groups):
            of_path[path][group] = number
        return {path: Offers(numbers, self.ordering) for path, numbers in of_path.items()}

    def owners(self, keys: Numbers) -> Numbers:
        return np.where(channels_of(keys) == _CATCH_ALL, EVERYWHERE, positions_of(keys) % max(1, self.partitions))

    def held_at(self, groups: Numbers) -> tuple[Numbers, Numbers]:
        """Returns (place among the groups, key) for every copy of what is held at each of them."""
        counts = np.array([len(of_class) for of_class in self.holders], np.int64)[self.classes[groups]]
        rows = np.repeat(np.arange(len(groups)), counts)
        own = [self.holders[class_] for class_ in self.classes[groups].tolist()]
        partitions = np.array([one for of_class in own for one in of_class], np.int64)
        return rows, keys_at(_GROUPS, groups[rows] * self.partitions + partitions)

    def visited_at(self, groups: Numbers, hashes: npt.NDArray[np.uint64]) -> Numbers:
        """Returns the key at which an event with this hash meets what is held at each group."""
        sizes = np.array([len(of_class) for of_class in self.holders], np.int64)
        starts = np.cumsum(sizes) - sizes
        everyone = np.array([one for of_class in self.holders for one in of_class], np.int64)
        classes = self.classes[groups]
        turns = (hashes % sizes[classes].astype(np.uint64)).astype(np.int64)
        return keys_at(_GROUPS, groups * self.partitions + everyone[starts[classes] + turns])

    def described(self) -> str:
        """Returns what it divides by, and how evenly."""
        if not self.groups:
            return "no path over XML"
        tokens = sum(not group.length for _, group in self.groups)
        said = f"{len(self.groups) - tokens:,} beginnings of paths and {tokens:,} token{'s' * (tokens != 1)} in "
        said += f"{', '.join(map(path_text, self.paths))}; the largest partition has {self.largest:.0%}"
        said += f", and {self.largest_of_tokens:.0%} of those by token" if tokens else ""
        classes = len(self.holders)
        return said + (f"; in {classes} class{'es' * (classes != 1)}" if classes < self.partitions else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": [[list(path), *group] for path, group in self.groups],
            "rates": self.rates.tolist(),
            "classes": self.classes.tolist(),
            "holders": [list(one) for one in self.holders],
            "partitions": self.partitions,
            "largest": self.largest,
            "largest_of_tokens": self.largest_of_tokens,
            "epoch": self.epoch,
            "ordering": self.ordering,
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        groups = tuple((tuple(path), PathGroup(*group)) for path, *group in form["groups"])
        arrays = np.array(form["rates"], np.float64), np.array(form["classes"], np.int64)
        holders = tuple(tuple(one) for one in form["holders"])
        names = ("partitions", "largest", "largest_of_tokens", "epoch", "ordering")
        return View(groups, *arrays, holders, **{name: form[name] for name in names})


# ---------------------------------------------------------------------- the law


def place(filters: FilterTable, view: View) -> Placed:
    chosen = _chosen(filters, [_least(one, view.numbers, view.rates) for one in _asked(filters, view.ordering)])
    held, alone = np.flatnonzero(chosen >= 0), np.flatnonzero(chosen == EVERYWHERE)
    everywhere = alike_keys(_CATCH_ALL, len(alone))
    copies, keys = view.held_at(chosen[held])
    return placed_of([(held[copies], keys), (alone, everywhere)])


def route(events: EventBatch, view: View) -> Routed:
    rows, groups = _offered(events, view.offers)
    events_of = np.concatenate([rows, np.arange(events.count)])
    everywhere = alike_keys(_CATCH_ALL, events.count)
    own = view.visited_at(groups, event_hashes(events, view.paths)[rows])
    keys = np.concatenate([own, everywhere])
    order = np.argsort(events_of, kind="stable")
    return Routed(events_of[order], keys[order])


def _offered(events: EventBatch, offers: Mapping[Path, Offers]) -> tuple[Numbers, Numbers]:
    """(event, group) for every group that an event's documents offer."""
    rows, groups = [], []
    for path, own in offers.items():
        for first, documents, start, end in DocumentColumn(events.columns[path]).parts(0, events.count):
            for document in range(start, end):
                found = sorted(own.of(documents, document))
                rows += [first + document] * len(found)
                groups += found
    return np.array(rows, np.int64), np.array(groups, np.int64)


def _chosen(filters: FilterTable, of_residual: list[int]) -> Numbers:
    """Of each filter the group that all of its conjunctions have; EVERYWHERE where there is none, less for never."""
    of_box = np.array([*of_residual, EVERYWHERE], np.int64)[filters.residual_of]  # the last is of -1, of no residual
    lowest, highest = np.full(filters.count, np.iinfo(np.int64).max), np.full(filters.count, EVERYWHERE - 1)
    np.minimum.at(lowest, filters.box_filter, of_box)
    np.maximum.at(highest, filters.box_filter, of_box)
    return np.where((lowest == highest) | (highest < EVERYWHERE), highest, EVERYWHERE)


def _least(asked: frozenset[Owned], numbers: Mapping[Owned, int], rates: Floats) -> int:
    """The group that the fewest documents offer, the longest of equals; EVERYWHERE where the View has none."""
    known = [(rates[numbers[one]], -one[1].length, numbers[one]) for one in asked if one in numbers]
    return min(known)[2] if known else EVERYWHERE


def _asked(filters: FilterTable, ordering: Ordering) -> Iterator[frozenset[Owned]]:
    """The groups that each residual asks for."""
    asking = [list(_conjuncts(template.tree)) for template in filters.residuals.templates]
    for template, row in zip(filters.residuals.template_of.tolist(), filters.residuals.row_of.tolist(), strict=True):
        columns = filters.residuals.templates[template].literals
        yield frozenset(
            (path, group)
            for path, column in asking[template]
            for group in _groups_of_text(columns[column][row], ordering)
        )


@lru_cache(maxsize=1 << 14)
def _groups_of_text(text: str, ordering: Ordering) -> frozenset[PathGroup]:
    return groups_asked(parse_path(text), ordering)


def _conjuncts(tree: Expression) -> Iterator[tuple[Path, int]]:
    """Paths over XML that have to hold for a template's tree to: the attribute, and the column that has the path."""
    column = 0
    for operand in tree.operands if isinstance(tree, And) else (tree,):
        match operand:
            case XPathBoolean(Reference(path), Literal(str())):
                yield path, column
        column += _literals(operand)


def _literals(tree: Expression) -> int:
    if isinstance(tree, Literal):
        return tree.value is not None
    return sum(map(_literals, operands_of(tree)))


# ---------------------------------------------------------------------- adapting


def adapt(
    statistics: Statistics,
    *,
    partitions: int,
    epoch: int = 0,
    groups_max: int = GROUPS_MAX,
    visits_max: float = VISITS_MAX,
    ordering: Ordering = "ranks",
) -> View:
    """The groups that most subscriptions ask for, and of these the ones where they meet the fewest documents."""
    filters, partitions = statistics.filters, max(1, partitions)
    asked = list(_asked(filters, ordering))
    weights = np.bincount(filters.residual_of[filters.residual_of >= 0], minlength=len(asked))
    counts: Counter[Owned] = Counter()
    for own, weight in zip(asked, weights.tolist(), strict=True):
        counts.update(dict.fromkeys(own, weight))
    support = SUPPORT if statistics.scale > 1 else 1
    often = sorted((one for one in counts if counts[one] >= support), key=lambda one: (-counts[one], one))
    tried = tuple(often[:groups_max])
    rates, rows, offered = _rates(statistics, tried, counts, ordering)
    numbers = {group: number for number, group in enumerate(tried)}
    chosen = _chosen(filters, [_least(own, numbers, rates) for own in asked])
    held = np.bincount(chosen[chosen >= 0], minlength=len(tried)).astype(np.float64)
    kept = np.flatnonzero(held)
    places = np.full(len(tried), -1)
    places[kept] = np.arange(len(kept))
    seen = (places[offered] >= 0) & (rows < CLASSES_EVENTS_MAX)
    offers = _Offers(rows[seen], places[offered[seen]])
    work = held[kept] * (rates[kept] + 1e-3)
    classes = _few_classes(np.stack([held[kept], work], axis=1), offers, partitions, visits_max)
    groups = tuple(tried[number] for number in kept.tolist())
    of_token = np.array([not group.length for _, group in groups], bool)
    shares = (_largest(held[kept], classes), _largest(held[kept][of_token], classes[of_token]))
    holders = _holders(work, classes, partitions)
    return View(groups, rates[kept], classes, holders, partitions, *shares, epoch, ordering)


def network_view(ordering: Ordering = "ranks") -> View:
    """The View of a network of nodes: a group's place on the ring is its digest, so that none is listed beforehand."""
    return View((), np.empty(0), np.empty(0, np.int64), ((0,),), 1, ordering=ordering)


def _rates(
    statistics: Statistics, groups: tuple[Owned, ...], counts: Mapping[Owned, int], ordering: Ordering
) -> tuple[Floats, Numbers, Numbers]:
    """The share of the events that offer each group, and (event, group) for each; without events, by the filters'."""
    nothing = np.empty(0, np.int64)
    if statistics.events is None or not statistics.events.count:
        asking = np.array([counts[group] for group in groups], np.float64)
        return asking / max(1, statistics.filters.count), nothing, nothing
    none = np.zeros(len(groups))
    events = statistics.events.part(0, min(EVENTS_MAX, statistics.events.count))
    tried = View(groups, none, none.astype(np.int64), ((0,),), 1, ordering=ordering)
    rows, offered = _offered(events, tried.offers)
    return np.bincount(offered, minlength=len(groups)) / events.count, rows, offered


class _Offers(NamedTuple):
    """Which events of the sample offer which groups."""

    events: Numbers
    groups: Numbers

    def visits(self, classes: Numbers) -> float:
        """Returns how many classes an event needs on average; where no event is known, all of them."""
        if not len(self.events):
            return float(classes.max(initial=-1) + 1)
        events, _ = distinct_pairs(self.events, classes[self.groups])
        return len(events) / (int(self.events.max()) + 1)


def _few_classes(sizes: Floats, offers: _Offers, partitions: int, visits_max: float) -> Numbers:
    """A class for each group: as many classes as events do not need more than so many of on average."""
    count, fewest = partitions, max(1, int(visits_max))
    while True:
        classes = _classes(sizes, offers, count)
        if count <= fewest or offers.visits(classes) <= visits_max:
            return classes
        count = max(fewest, count * 3 // 4)


def _classes(sizes: Floats, offers: _Offers, count: int) -> Numbers:
    """A class for each group, the largest first: where most of its events go anyway, if there is room.

    `sizes` are groups × (subscriptions held there, work): room is for a tenth more than an even share of either.
    """
    events = int(offers.events.max(initial=-1)) + 1
    offered = np.zeros((len(sizes), events), np.float32)
    offered[offers.groups, offers.events] = 1
    going = np.zeros((count, events), np.float32)  # 1 where an event needs a class
    shares = sizes / np.maximum(sizes.sum(axis=0), 1e-9)
    room = np.maximum(shares.max(axis=0, initial=0), 1.1 / count)
    filled = np.zeros((count, 2))  # of the room
    classes = np.zeros(len(sizes), np.int64)
    for group in np.argsort(-shares.max(axis=1), kind="stable").tolist():
        full = (filled + shares[group] / room).max(axis=1)
        gains = np.where(full <= 1, (going @ offered[group] + 1e-3) * (1 - filled.max(axis=1)), -full)
        chosen = classes[group] = int(np.argmax(gains))
        filled[chosen] += shares[group] / room
        np.maximum(going[chosen], offered[group], out=going[chosen])
    return classes


def _holders(work: Floats, classes: Numbers, partitions: int) -> tuple[tuple[int, ...], ...]:
    """The partitions of each class: one, and more where there is more work."""
    count = int(classes.max(initial=0)) + 1
    loads, sizes = np.bincount(classes, work, count), np.ones(count, np.int64)
    for _ in range(partitions - count):
        sizes[np.argmax(loads / sizes)] += 1
    ends = np.cumsum(sizes)
    return tuple(tuple(range(end - size, end)) for size, end in zip(sizes.tolist(), ends.tolist(), strict=True))


def _largest(held: Floats, classes: Numbers) -> float:
    """The share of the class that most is held in."""
    return float(np.bincount(classes, held).max() / held.sum()) if held.any() else 0.0
