"""The filter rows of one domain that concern events still to come, followed from the catalogue.

Every filter row that can still concern an event is held, under its number, whatever its validity: delivery checks
that. A row enters when it is committed, before it is promised to anybody, and leaves when the stream has passed its
end. A filter that cannot be compiled is left out with its reason, and stops no other.

At a start, what is held is compared with the catalogue row by row: this repairs what a crash left half done and what
was restored from a copy. From then on only changes are read. Subclasses define where rows are held: in an index of
files (`domain_index`), or in memory, for the versions of the shared stream (`MemberFilters`).
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Domain
from tidings.pipeline.streams.version_files import SharedMember
from tidings.service.data.data_directory import DomainFiles, SetAside
from tidings.store.catalogue import Catalogue, DomainRow, FilterRow

RETIRED_TOGETHER = 1_000  # ended rows from which a version is made only to remove them,
RETIRE_SECONDS = 20.0  # or this long after the last version
REASONS_KEPT, REASONS_SHOWN = 1_000, 100

_log = logging.getLogger("tidings.service")


def domain_of(row: DomainRow) -> Domain:
    """Returns a domain under its key, the name that the log and the index know it by."""
    defined = Domain.from_json(row.definition)
    return Domain(row.key, defined.attributes, defined.indices)


@dataclass
class KnownFilter:
    """What is known of a filter row that is, or was, held."""

    subscription: int  # the key of its subscription, which deliveries have
    valid_to: int | None


@dataclass
class FollowedFilters(ABC):
    """Follows the catalogue for one domain. For use by one thread."""

    files: DomainFiles
    catalogue: Catalogue
    known: dict[int, KnownFilter] = field(default_factory=dict)  # by the number of the row; those that have left too
    rejected: dict[int, str] = field(default_factory=dict)  # why a row is not held
    set_aside: SetAside = field(default_factory=SetAside)  # rows that broke the stream are left out
    covers: int = -1  # the revision of the domain that the current version has
    domain: Domain | None = None
    _failing: dict[int, str] = field(default_factory=dict)  # reasons, by row, that are not on the disk yet
    _reached: int = 0  # events before this position were matched when the rows were opened
    _ending: dict[int, int] = field(default_factory=dict)  # where rows that are held end
    _retired: set[int] = field(default_factory=set)  # rows that leave with the next version
    _left: list[int] = field(default_factory=list)  # rows that have left it
    _published: float = 0.0

    def open(self, row: DomainRow, reached: int) -> None:
        """Hold what the catalogue has, for events from a position on."""
        self._begin()
        self._reached = reached
        self.set_aside = SetAside.read(self.files.aside)
        failed = {one.number: one.reason for one in self.set_aside.filters.values()}
        self.domain = domain_of(row)
        rows = self.catalogue.changed_filters(row.tenant, row.name, -1)  # after `row` was read
        self.known = {one.number: KnownFilter(one.subscription_key, one.valid_to) for one in rows}
        self.rejected.clear()
        self._retired.clear()
        wanted = {one.number: one for one in rows if one.needed_from(reached) and one.number not in failed}
        self.rejected |= {number: reason for number, reason in failed.items() if number in self.known}
        self._ending = {number: one.valid_to for number, one in wanted.items() if one.valid_to is not None}
        there = self._there()
        if there is None:
            self._start_over(list(wanted.values()))
            there = self._numbers()
        missing = [one for number, one in wanted.items() if number not in there and number not in self.rejected]
        self._change(missing, there - wanted.keys())
        self._covered(row.revision)

    def follow(self, row: DomainRow) -> bool:
        """Take in what has changed up to the revision of a domain's row; returns whether anything may have changed.

        The domain itself has to be the one that was opened.
        """
        if row.revision <= self.covers:
            return False
        changed = self.catalogue.changed_filters(row.tenant, row.name, self.covers)
        new = []
        for one in changed:
            if one.number not in self.known:
                new.append(one)
            self.known[one.number] = KnownFilter(one.subscription_key, one.valid_to)
            if one.valid_to is not None and one.number not in self.rejected:
                self._ending[one.number] = one.valid_to
        if new:
            self._replace(new)
        self._covered(row.revision)
        return True

    def retire(self, reached: int) -> list[int]:
        """Remove rows whose end the stream has passed: with the next change, or at once if they are many.

        Returns the rows that have left since the last call.
        """
        for number in [number for number, end in self._ending.items() if end <= reached]:
            del self._ending[number]
            self._retired.add(number)
        waited = time.monotonic() - self._published
        if self._retired and (len(self._retired) >= RETIRED_TOGETHER or waited > RETIRE_SECONDS):
            self._replace([])
            self._covered(self.covers)
        left, self._left = self._left, []
        return left

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget rows whose subscription was deleted."""
        for number in numbers:
            self.known.pop(number, None)
            self.rejected.pop(number, None)

    def in_force(self) -> int:
        """Returns how many filters have not ended."""
        return sum(one.valid_to is None for one in list(self.known.values()))

    def numbers_of(self, subscriptions: Iterable[int]) -> dict[int, list[int]]:
        """Returns the numbers of the rows of subscriptions, by the keys of these."""
        wanted = set(subscriptions)
        found: dict[int, list[int]] = {}
        for number, one in self.known.items():
            if one.subscription in wanted:
                found.setdefault(one.subscription, []).append(number)
        return found

    def status(self) -> dict[str, Any]:
        """Returns what the driver's status file says of these filters."""
        status: dict[str, Any] = {
            "covers": self.covers,
            "set_aside": len(self.set_aside.filters) + len(self.set_aside.events),
        }
        if self.rejected:
            reasons = {str(number): reason for number, reason in list(self.rejected.items())[:REASONS_SHOWN]}
            status |= {"rejected": len(self.rejected), "rejects": reasons}
        return status

    # ------------------------------------------------------------------ where rows are held

    @abstractmethod
    def _begin(self) -> None:
        """Called before rows are compared with the catalogue."""

    @abstractmethod
    def _there(self) -> set[int] | None:
        """Returns the rows that are held since before; None if nothing can be used."""

    @abstractmethod
    def _numbers(self) -> set[int]:
        """Returns the rows that are held now."""

    @abstractmethod
    def _start_over(self, rows: Sequence[FilterRow]) -> None:
        """Hold nothing, or some of these rows; the caller adds the rest."""

    @abstractmethod
    def _apply(self, rows: Sequence[FilterRow], remove: set[int]) -> None:
        """Add rows and remove others, as one change or several."""

    @abstractmethod
    def _covered(self, revision: int) -> None:
        """Note that what is held covers the catalogue up to this revision."""

    # ------------------------------------------------------------------ changes

    def _change(self, rows: Sequence[FilterRow], remove: Iterable[int]) -> None:
        leaving = set(remove) & self._numbers() if remove else set[int]()
        sound = self._sound(rows)
        if sound or leaving:
            self._apply(sound, leaving)
        self._set_failing_aside()
        self._published = time.monotonic()

    def _replace(self, coming: Sequence[FilterRow]) -> None:
        """Remove retired rows, and add others."""
        self._change(coming, self._retired)
        self._left += self._retired
        self._retired = set()

    def _sound(self, rows: Sequence[FilterRow]) -> list[FilterRow]:
        """Returns the rows whose filters can be compiled; the others are rejected, each with its reason."""
        assert self.domain is not None
        if not rows:
            return []
        texts = pa.array([row.filter for row in rows], pa.string())
        failed = self.set_aside.filters
        good = np.array([row.number not in failed for row in rows])
        for row in rows:
            if row.number in failed:
                self._reject(row.number, failed[row.number].reason)
        for place, error in compile_filters(texts, self.domain, on_error="reject").rejects:
            good[place] = False
            self._reject(rows[place].number, str(error))
        return [row for row, is_good in zip(rows, good.tolist(), strict=True) if is_good]

    def _reject(self, number: int, reason: str) -> None:
        _log.warning("%s: filter %d is left out: %s", self.files.key, number, reason)
        self._ending.pop(number, None)
        self.rejected[number] = reason if len(self.rejected) < REASONS_KEPT else "see the driver's log"
        if number not in self.set_aside.filters:
            self._failing[number] = reason

    def _set_failing_aside(self) -> None:
        """Write down rows that cannot be held, so that the gateway tells their subscribers what they miss."""
        if self._failing:
            failing, self._failing = self._failing, {}
            self.set_aside = self.set_aside.with_culprits(failing, {}, self._reached)
            self.set_aside.write(self.files.aside)


class MemberFilters(FollowedFilters):
    """Holds the rows of a small domain in memory; `take_changed` says when the shared stream needs a new version."""

    def __init__(self, files: DomainFiles, catalogue: Catalogue) -> None:
        super().__init__(files, catalogue)
        self._rows: dict[int, str] = {}
        self._is_changed = True

    def member(self) -> SharedMember:
        assert self.domain is not None
        return SharedMember(self.domain, self._rows)

    def close(self) -> None:
        """Have the rows opened again, as if they had never been."""
        self.domain, self.covers = None, -1

    def take_changed(self) -> bool:
        """Whether rows have changed since the last call."""
        changed, self._is_changed = self._is_changed, False
        return changed

    def _begin(self) -> None:
        self._rows = {}
        self._is_changed = True

    def _there(self) -> set[int]:
        return set()

    def _numbers(self) -> set[int]:
        return set(self._rows)

    def _start_over(self, rows: Sequence[FilterRow]) -> None:
        """Nothing is held yet."""

    def _apply(self, rows: Sequence[FilterRow], remove: set[int]) -> None:
        self._rows |= {row.number: row.filter for row in rows}
        for number in remove:
            del self._rows[number]
        self._is_changed = True

    def _covered(self, revision: int) -> None:
        self.covers = revision
