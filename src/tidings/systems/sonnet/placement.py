"""Sonnet's path digests (Zhou et al., "Sonnet: an efficient distributed content-based dissemination broker", SIGMOD
2007) for filters that ask for paths over XML.

A subscription is held at one *group* of paths that begin alike (`path_groups`): of those that its own path asks for,
the one that the fewest documents offer. That is mostly the longest beginning; for `//` it is the rarest token that the
path requires. A document visits every group that it offers. Whatever else a subscription asks for, and what its path
asks beyond the group, is for the exact check.

The groups are those of the View, each with an owner. A subscription that asks for none of them is held everywhere: so
are filters without a path over XML, with alternatives whose groups differ, and paths that only the next View knows.

Groups that the same documents offer have the same owner where that can be, so that a document goes to few of them:
the greedy rule of Stanton and Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012.

channels   one for the groups, and the catch-all's. A document has many keys in the first, a subscription one in all
positions  the numbers of groups
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.tree import And, Expression, Literal, Reference, XPathBoolean, operands_of
from tidings.matching.batch_columns import DocumentColumn
from tidings.model.domain import path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
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
from tidings.systems.sonnet.path_digest import Offers, PathGroup, groups_asked
from tidings.systems.statistics import Statistics
from tidings.xml.path_parser import parse_path

GROUPS_MAX = 4096
SUPPORT = 3  # subscriptions of a sample that ask for a group, for it to stand for those that were not sampled
EVENTS_MAX = 2_000  # of the sample, that are read
OWNERS_EVENTS_MAX = 512  # of these, that owners are chosen by

_GROUPS, _CATCH_ALL = 0, 1  # channels

Owned: TypeAlias = tuple[Path, PathGroup]  # a group is one attribute's


@dataclass(frozen=True, eq=False)
class View:
    """The groups that subscriptions are held at, the share of the documents that offer each, and who owns it."""

    placement: ClassVar[str] = "sonnet"

    groups: tuple[Owned, ...]
    rates: Floats
    assignment: Numbers  # the partition of each group
    partitions: int
    largest: float = 0.0  # the share of the subscriptions that the fullest partition holds, of those at groups, …
    largest_of_tokens: float = 0.0  # … and of those at tokens
    epoch: int = 0

    @property
    def channels(self) -> int:
        return 2

    @property
    def visits(self) -> int:
        return len(np.unique(self.assignment))

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
        return {path: Offers(numbers) for path, numbers in of_path.items()}

    def owners(self, keys: Numbers) -> Numbers:
        if not len(self.assignment):
            return np.full(len(keys), EVERYWHERE, np.int64)
        everywhere = channels_of(keys) == _CATCH_ALL
        return np.where(everywhere, EVERYWHERE, self.assignment[np.where(everywhere, 0, positions_of(keys))])

    def described(self) -> str:
        """Returns what it divides by, and how evenly."""
        if not self.groups:
            return "no path over XML"
        tokens = sum(not group.length for _, group in self.groups)
        said = f"{len(self.groups) - tokens:,} beginnings of paths and {tokens:,} token{'s' * (tokens != 1)} in "
        said += f"{', '.join(map(path_text, self.paths))}; the largest partition has {self.largest:.0%}"
        return said + (f", and {self.largest_of_tokens:.0%} of those by token" if tokens else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": [[list(path), *group] for path, group in self.groups],
            "rates": self.rates.tolist(),
            "assignment": self.assignment.tolist(),
            "partitions": self.partitions,
            "largest": self.largest,
            "largest_of_tokens": self.largest_of_tokens,
            "epoch": self.epoch,
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        groups = tuple((tuple(path), PathGroup(*group)) for path, *group in form["groups"])
        arrays = np.array(form["rates"], np.float64), np.array(form["assignment"], np.int64)
        names = ("partitions", "largest", "largest_of_tokens", "epoch")
        return View(groups, *arrays, **{name: form[name] for name in names})


# ---------------------------------------------------------------------- the law


def place(filters: FilterTable, view: View) -> Placed:
    chosen = _chosen(filters, [_least(asked, view.numbers, view.rates) for asked in _asked(filters)])
    held, alone = np.flatnonzero(chosen >= 0), np.flatnonzero(chosen == EVERYWHERE)
    everywhere = alike_keys(_CATCH_ALL, len(alone))
    return placed_of([(held, keys_at(_GROUPS, chosen[held])), (alone, everywhere)])


def route(events: EventBatch, view: View) -> Routed:
    rows, groups = _offered(events, view.offers)
    events_of = np.concatenate([rows, np.arange(events.count)])
    everywhere = alike_keys(_CATCH_ALL, events.count)
    keys = np.concatenate([keys_at(_GROUPS, groups), everywhere])
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


def _asked(filters: FilterTable) -> Iterator[frozenset[Owned]]:
    """The groups that each residual asks for."""
    asking = [list(_conjuncts(template.tree)) for template in filters.residuals.templates]
    for template, row in zip(filters.residuals.template_of.tolist(), filters.residuals.row_of.tolist(), strict=True):
        columns = filters.residuals.templates[template].literals
        yield frozenset(
            (path, group) for path, column in asking[template] for group in _groups_of_text(columns[column][row])
        )


@lru_cache(maxsize=1 << 14)
def _groups_of_text(text: str) -> frozenset[PathGroup]:
    return groups_asked(parse_path(text))


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


def adapt(statistics: Statistics, *, partitions: int, epoch: int = 0, groups_max: int = GROUPS_MAX) -> View:
    """The groups that most subscriptions ask for, and of these the ones where they meet the fewest documents."""
    filters, partitions = statistics.filters, max(1, partitions)
    asked = list(_asked(filters))
    weights = np.bincount(filters.residual_of[filters.residual_of >= 0], minlength=len(asked))
    counts: Counter[Owned] = Counter()
    for own, weight in zip(asked, weights.tolist(), strict=True):
        counts.update(dict.fromkeys(own, weight))
    support = SUPPORT if statistics.scale > 1 else 1
    often = sorted((one for one in counts if counts[one] >= support), key=lambda one: (-counts[one], one))
    tried = tuple(often[:groups_max])
    rates, rows, offered = _rates(statistics, tried, counts)
    numbers = {group: number for number, group in enumerate(tried)}
    chosen = _chosen(filters, [_least(own, numbers, rates) for own in asked])
    held = np.bincount(chosen[chosen >= 0], minlength=len(tried)).astype(np.float64)
    kept = np.flatnonzero(held)
    places = np.full(len(tried), -1)
    places[kept] = np.arange(len(kept))
    seen = (places[offered] >= 0) & (rows < OWNERS_EVENTS_MAX)
    owners = _owners(held[kept] * (rates[kept] + 1e-3), rows[seen], places[offered[seen]], partitions)
    groups = tuple(tried[number] for number in kept.tolist())
    of_token = np.array([not group.length for _, group in groups], bool)
    shares = (_largest(held[kept], owners), _largest(held[kept][of_token], owners[of_token]))
    return View(groups, rates[kept], owners, partitions, *shares, epoch)


def _rates(
    statistics: Statistics, groups: tuple[Owned, ...], counts: Mapping[Owned, int]
) -> tuple[Floats, Numbers, Numbers]:
    """The share of the events that offer each group, and (event, group) for each; without events, by the filters'."""
    nothing = np.empty(0, np.int64)
    if statistics.events is None or not statistics.events.count:
        asking = np.array([counts[group] for group in groups], np.float64)
        return asking / max(1, statistics.filters.count), nothing, nothing
    even = np.zeros(len(groups))
    events = statistics.events.part(0, min(EVENTS_MAX, statistics.events.count))
    rows, offered = _offered(events, View(groups, even, even.astype(np.int64), 1).offers)
    return np.bincount(offered, minlength=len(groups)) / events.count, rows, offered


def _owners(work: Floats, rows: Numbers, groups: Numbers, partitions: int) -> Numbers:
    """An owner for each group, the one with work first: where most of its events go anyway, if there is room."""
    events = int(rows.max(initial=-1)) + 1
    offers = np.zeros((len(work), events), np.float32)
    offers[groups, rows] = 1
    going = np.zeros((partitions, events), np.float32)  # 1 where an event goes to a partition
    loads = np.zeros(partitions)
    room = max(work.max(initial=0), 1.1 * work.sum() / partitions, 1e-9)
    owners = np.zeros(len(work), np.int64)
    for group in np.argsort(-work, kind="stable").tolist():
        common = going @ offers[group]
        gains = np.where(loads + work[group] <= room, (common + 1e-3) * (1 - loads / room), -1 - loads)
        owner = owners[group] = int(np.argmax(gains))
        loads[owner] += work[group]
        np.maximum(going[owner], offers[group], out=going[owner])
    return owners


def _largest(held: Floats, owners: Numbers) -> float:
    """The share of the partition that holds most."""
    return float(np.bincount(owners, held).max() / held.sum()) if held.any() else 0.0
