"""Loads the matches of one micro-batch into mailboxes: as pages of groups, or as a row for each notification.

A load is a part of one transaction of `Notifications`. Each notification is kept once, however often it is loaded; one
that finds its mailbox full has overflowed.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.store.mailboxes.mailbox_grouping import LOG, Groups, Members, Positions, Row, encode

LOADS_KEPT = 256  # for which `woken` knows whose mailboxes they filled
MAX_WOKEN = 10_000  # subscriptions of one load that are noted one by one; if there are more, all are woken
# Bytes of a notification as a row of the file, as measured, and of a page of members beside its data: its row and the
# entry of the index. What is written on the way, whole pages of SQLite's tree for a row each, is far more for rows.
ROW_BYTES = 12
PAGE_BYTES = 48

_INSERT = "INSERT OR IGNORE INTO notifications VALUES (?, ?, ?)"


@dataclass(frozen=True, eq=False)
class LoadedMatches:
    """The matches of a load in columns: which subscription gets which position."""

    ids: Any  # an Arrow array
    positions: Positions
    sources: npt.NDArray[np.int64]  # numbers of `names`
    names: list[str]

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, chosen: npt.NDArray[Any] | None = None) -> list[Row]:
        """Returns rows by subscription, in the order of the file's tree.

        In any other order SQLite, whose cache is small, would write a page of the tree again for nearly every row.
        """
        columns: dict[str, Any] = {"id": self.ids, "source": self.sources, "position": self.positions}
        table = pa.table(columns) if chosen is None else pa.table(columns).filter(pa.array(chosen))
        table = table.sort_by([("id", "ascending"), ("source", "ascending"), ("position", "ascending")])
        ids, sources, positions = (np.asarray(table[name]).tolist() for name in ("id", "source", "position"))
        return list(zip(ids, [self.names[source] for source in sources], positions, strict=True))


def matches_of(matches: pa.Table) -> LoadedMatches:
    """Reads the columns `position`, `subscriptions` and, if positions are not the log's, `source`."""
    lists: Any = matches["subscriptions"].combine_chunks()
    parents = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)
    positions = np.asarray(matches["position"].combine_chunks()).astype(np.int64)[parents]
    if "source" not in matches.column_names:
        return LoadedMatches(pc.list_flatten(lists), positions, np.zeros(len(parents), np.int64), [LOG])
    encoded: Any = matches["source"].combine_chunks().dictionary_encode()
    numbers = np.asarray(encoded.indices).astype(np.int64)[parents]
    return LoadedMatches(pc.list_flatten(lists), positions, numbers, encoded.dictionary.to_pylist())


class PageFilling:
    """Divides one load: what goes to pages, and what is left for rows."""

    def __init__(self, groups: Groups, connection: apsw.Connection, room: int | None) -> None:
        self._groups = groups
        self._connection = connection
        self._room = room
        self._known = groups.known
        self._has_any = groups.has_any
        self._highest: dict[str, int] = dict(connection.execute("SELECT source, position FROM highest"))
        ((self._pruned,),) = list(connection.execute("SELECT pruned FROM marks"))
        self._reached: dict[str, int] = {}
        self._parts: list[tuple[LoadedMatches, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self.added = 0
        self.told: set[int] = set()  # numbers of the subscriptions that got something in a page

    def rows_of(self, batch: LoadedMatches) -> list[Row]:
        """Returns what goes to rows at once; keeps what may go to pages until `finish`."""
        if not len(batch):
            return []
        last = np.full(len(batch.names), -1)
        np.maximum.at(last, batch.sources, batch.positions)
        for name, position in zip(batch.names, last.tolist(), strict=True):
            self._reached[name] = max(position, self._reached.get(name, -1))
        if not self._has_any:
            return batch.rows()
        grouping, member = self._known.find(batch.ids)
        before = np.array(
            [max(self._highest.get(name, -1), self._pruned if name == LOG else -1) for name in batch.names], np.int64
        )
        fresh = batch.positions > before[batch.sources]
        paged = fresh & (grouping >= 0)
        if paged.any():
            chosen = np.flatnonzero(paged)
            ids = batch.ids.take(pa.array(chosen))
            part = LoadedMatches(ids, batch.positions[chosen], batch.sources[chosen], batch.names)
            self._parts.append((part, grouping[chosen], member[chosen]))
        rows = batch.rows(~paged)
        if not fresh.all():  # loaded again: they may be in pages
            known = self._groups.among(batch.names, batch.positions[~fresh])
            rows = [row for row in rows if row not in known]
        return rows

    def finish(self) -> list[Row]:
        """Write the pages; returns what is better kept in rows."""
        rows = self._write_pages() if self._parts else []
        self._connection.executemany(
            "INSERT INTO highest VALUES (?, ?) ON CONFLICT DO UPDATE SET position = max(position, excluded.position)",
            list(self._reached.items()),
        )
        return rows

    def _write_pages(self) -> list[Row]:
        names = sorted({name for batch, _, _ in self._parts for name in batch.names})
        number = {name: at for at, name in enumerate(names)}
        ids = pa.concat_arrays([batch.ids for batch, _, _ in self._parts])
        sources = np.concatenate(
            [np.array([number[name] for name in batch.names])[batch.sources] for batch, _, _ in self._parts]
        )
        positions = np.concatenate([batch.positions for batch, _, _ in self._parts])
        grouping = np.concatenate([grouping for _, grouping, _ in self._parts])
        member = np.concatenate([member for _, _, member in self._parts])
        order = np.lexsort((member, positions, grouping, sources))
        sources, positions, grouping, member = (column[order] for column in (sources, positions, grouping, member))
        same = (np.diff(sources) == 0) & (np.diff(grouping) == 0)
        again = np.r_[False, same & (np.diff(positions) == 0) & (np.diff(member) == 0)]
        if again.any():
            order, sources, positions, grouping, member = (
                column[~again] for column in (order, sources, positions, grouping, member)
            )
            same = (np.diff(sources) == 0) & (np.diff(grouping) == 0)
        bounds = np.r_[0, np.flatnonzero(~same) + 1, len(positions)]
        in_rows, crowded = np.zeros(len(positions), bool), dict[int, int]()
        sql = "INSERT INTO pages (grouping, source, first, last, notifications, data) VALUES (?, ?, ?, ?, ?, ?)"
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            group = int(grouping[start])
            part = slice(start, end)
            if self._room is not None and not self._has_room(group, member[part], crowded):
                in_rows[part] = True
                continue
            data = encode(positions[part], member[part])
            if PAGE_BYTES + len(data) >= ROW_BYTES * (end - start):
                in_rows[part] = True
                continue
            first, last = int(positions[start]), int(positions[end - 1])
            page = group, names[int(sources[start])], first, last, end - start, data
            self._connection.execute(sql, page)  # at once: the next may count or dissolve the group
        self._connection.executemany(
            "UPDATE groupings SET most = ? WHERE number = ?", [(most, group) for group, most in crowded.items()]
        )
        self.added += int((~in_rows).sum())
        if pa.types.is_integer(ids.type):
            self.told.update(np.unique(np.asarray(ids)[order[~in_rows]]).tolist())
        chosen = np.flatnonzero(in_rows)
        return LoadedMatches(ids.take(pa.array(order[chosen])), positions[chosen], sources[chosen], names).rows()

    def _has_room(self, group: int, members: Members, crowded: dict[int, int]) -> bool:
        """Whether no member's mailbox can overflow; if one can, the group is dissolved."""
        assert self._room is not None
        more = int(np.bincount(members).max())
        if group not in crowded:
            found = list(self._connection.execute("SELECT most FROM groupings WHERE number = ?", (group,)))
            if not found:  # dissolved a moment ago
                return False
            crowded[group] = int(found[0][0])
        if crowded[group] + more > self._room:
            crowded[group] = self._groups.most_waiting(group)
        if crowded[group] + more > self._room:
            self._groups.dissolve(group)
            del crowded[group]
            return False
        crowded[group] += more
        return True


class UnboundedRows:
    """Adds notifications to a file without mailboxes, each once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._added = 0

    def add(self, rows: list[Row]) -> None:
        before = self._connection.total_changes()
        self._connection.executemany(_INSERT, rows)
        self._added += self._connection.total_changes() - before

    def write_down(self) -> None:
        """Nothing is counted."""

    def finish(self, told: set[int]) -> int:
        return self._added


@dataclass
class _Mailbox:
    """What is known of one mailbox while a batch is loaded."""

    waiting: int = 0
    overflowed: int = 0
    pruned: int = -1
    changed: bool = False
    paged: int = 0  # in pages of its groups: at most so many, until they are counted
    is_counted: bool = False


class MailboxRows:
    """Fills mailboxes within one transaction, up to their bound, with each notification once."""

    def __init__(self, connection: apsw.Connection, room: int, groups: Groups) -> None:
        self._connection = connection
        self._room = room
        self._groups = groups
        self._mailboxes: dict[Any, _Mailbox] = {}
        self._grouped = groups.has_any
        self._woken: set[int] = set()
        self._added = 0

    def add(self, rows: list[Row]) -> None:
        mailboxes, scarce = self._mailboxes, set()
        for subscription, count in Counter(row[0] for row in rows).items():
            mailbox = mailboxes.get(subscription) or self._read(subscription)
            if mailbox.overflowed or mailbox.waiting + mailbox.paged + count > self._room:
                scarce.add(subscription)
        ample = [row for row in rows if row[0] not in scarce] if scarce else rows
        self._add_to_ample([row for row in ample if row[2] > mailboxes[row[0]].pruned or row[1] != LOG])
        if scarce:
            for row in sorted((row for row in rows if row[0] in scarce), key=lambda row: (row[1], row[2])):
                self._add_to_scarce(row)

    def _add_to_ample(self, rows: list[Row]) -> None:
        """Add rows whose mailboxes have room for all."""
        before = self._connection.total_changes()
        self._connection.executemany(_INSERT, rows)
        added = self._connection.total_changes() - before
        self._added += added
        for subscription, count in Counter(row[0] for row in rows).items():
            mailbox = self._mailboxes[subscription]
            if added == len(rows):
                mailbox.waiting += count
                mailbox.changed = True
            elif added and self._recount(subscription, mailbox):  # some were there before: a query has begun again
                mailbox.changed = True

    def _recount(self, subscription: Any, mailbox: _Mailbox) -> bool:
        sql = "SELECT count(*) FROM notifications WHERE subscription = ?"
        before = mailbox.waiting
        ((mailbox.waiting,),) = self._connection.execute(sql, (subscription,))
        return mailbox.waiting != before

    def _add_to_scarce(self, row: Row) -> None:
        """Add a row whose mailbox may be full: the first rows enter it, the others overflow."""
        mailbox = self._mailboxes[row[0]]
        if (row[1] == LOG and row[2] <= mailbox.pruned) or self._is_known(row):
            return
        mailbox.changed = True
        if self._grouped and not mailbox.is_counted:
            mailbox.paged, mailbox.is_counted = self._groups.waiting(row[0]), True
        if mailbox.waiting + mailbox.paged < self._room:
            self._connection.execute("INSERT INTO notifications VALUES (?, ?, ?)", row)
            mailbox.waiting += 1
            self._added += 1
        else:
            self._connection.execute("INSERT INTO overflowed VALUES (?, ?, ?, ?)", (*row, time.time_ns() // 1000))
            mailbox.overflowed += 1

    def _is_known(self, row: Row) -> bool:
        return any(
            self._connection.execute(
                f"SELECT 1 FROM {table} WHERE subscription = ? AND source = ? AND position = ?", row
            ).fetchone()
            for table in ("notifications", "overflowed")
        )

    def _read(self, subscription: Any) -> _Mailbox:
        sql = "SELECT waiting, overflowed, pruned FROM mailboxes WHERE subscription = ?"
        found = self._connection.execute(sql, (subscription,)).fetchone()
        mailbox = self._mailboxes[subscription] = _Mailbox() if found is None else _Mailbox(*found)
        if self._grouped:
            mailbox.paged = self._groups.waiting_at_most(subscription)
        return mailbox

    def write_down(self) -> None:
        """Write down how full mailboxes are; what is added later is counted from there."""
        changed = [(subscription, mailbox) for subscription, mailbox in self._mailboxes.items() if mailbox.changed]
        if self._grouped:
            for subscription, mailbox in changed:
                before = self._connection.execute(
                    "SELECT waiting FROM mailboxes WHERE subscription = ?", (subscription,)
                ).fetchone()
                self._groups.more_waiting(subscription, mailbox.waiting - (before[0] if before else 0))
        self._connection.executemany(
            "INSERT INTO mailboxes VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET waiting = excluded.waiting, overflowed = excluded.overflowed",
            [(subscription, box.waiting, box.overflowed, box.pruned) for subscription, box in changed],
        )
        self._woken |= {subscription for subscription, _ in changed if isinstance(subscription, int)}
        self._mailboxes.clear()

    def finish(self, told: set[int]) -> int:
        """Note whose mailboxes were filled, in pages too; returns how many notifications were new."""
        self.write_down()
        numbers = sorted(self._woken | told)
        if numbers:
            blob = array("q", numbers).tobytes() if len(numbers) <= MAX_WOKEN else None
            self._connection.execute("INSERT INTO loads (subscriptions) VALUES (?)", (blob,))
            self._connection.execute("DELETE FROM loads WHERE number <= last_insert_rowid() - ?", (LOADS_KEPT,))
        return self._added
