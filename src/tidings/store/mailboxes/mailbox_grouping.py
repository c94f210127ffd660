"""Notifications by groups of subscriptions: a page a group for each load, in place of a row a notification.

Subscriptions that ask for similar things match the same events. If they form a *group*, a load writes one page for all
of its members, provided that this takes fewer bytes than their rows would. To a reader a mailbox is the same: its rows,
and what the pages of its groups have for it.

- A page only has positions after all that were loaded before from its source, and after all that was acknowledged: so
  no notification of it can be there already, and the pages of a group are in order. Other loads, such as a batch that
  is run again, become rows, without what pages have.
- What a subscriber has acknowledged stays in the page, hidden: a page is rewritten when half of it is hidden, and
  removed when all of it is.
- New groups replace all former ones. A subscription in none of them gets rows from then on; pages of the former groups
  are read until all of them is acknowledged. A row of `groupings` without members is the border between the two.
- Mailboxes stay bounded: each group has an upper bound of how many notifications wait for one member. Near the limit
  they are counted; at the limit the group is dissolved into rows, for which the limit is kept one by one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

LOG = ""  # the source of positions in the log

Positions = npt.NDArray[np.int64]
Members = npt.NDArray[np.int64]

TABLES = """
    CREATE TABLE groupings (
        number INTEGER PRIMARY KEY AUTOINCREMENT, size INTEGER NOT NULL, most INTEGER NOT NULL) STRICT;
    CREATE TABLE members (
        subscription ANY NOT NULL, grouping INTEGER NOT NULL, member INTEGER NOT NULL,
        PRIMARY KEY (subscription, grouping)) STRICT, WITHOUT ROWID;
    CREATE INDEX members_of ON members (grouping);
    CREATE TABLE pages (
        number INTEGER PRIMARY KEY, grouping INTEGER NOT NULL, source TEXT NOT NULL, first INTEGER NOT NULL,
        last INTEGER NOT NULL, notifications INTEGER NOT NULL, data BLOB NOT NULL) STRICT;
    CREATE INDEX pages_of ON pages (grouping, source, first, last);
    CREATE TABLE highest (source TEXT PRIMARY KEY NOT NULL, position INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE marks (pruned INTEGER NOT NULL, grouped INTEGER NOT NULL) STRICT;
    INSERT INTO marks VALUES (-1, 0);
"""

_BORDER = "SELECT coalesce(max(number), 0) FROM groupings WHERE size = 0"  # groups before it are not written to
_LAST = (1 << 63) - 1
_DEAD = 0.5  # of a page: then it is rewritten

_HEADER = struct.Struct("<BqIIBBB")
_RAW, _DEFLATED = range(2)
_WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)
_LEVEL = 1  # more costs more time than it saves

Row = tuple[Any, str, int]  # subscription, source, position


class _Known:
    """Looks up, for many subscriptions at once, which group they are written to, and as which member."""

    def __init__(self, rows: list[tuple[Any, int, int]]) -> None:
        numbers = sorted(row for row in rows if isinstance(row[0], int))
        texts = [row for row in rows if isinstance(row[0], str)]
        self._numbers = np.array(numbers, np.int64).reshape(-1, 3)
        self._texts = pa.array([row[0] for row in texts], pa.string())
        self._text_places = np.array([row[1:] for row in texts], np.int64).reshape(-1, 2)

    def find(self, ids: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the group and member of each id; group −1 for none."""
        places = np.full((len(ids), 2), -1, np.int64)
        if pa.types.is_integer(ids.type) and len(self._numbers):
            wanted = np.asarray(ids).astype(np.int64)
            at = np.minimum(np.searchsorted(self._numbers[:, 0], wanted), len(self._numbers) - 1)
            known = self._numbers[at, 0] == wanted
            places[known] = self._numbers[at[known], 1:]
        elif len(self._texts) and not pa.types.is_integer(ids.type):
            at = np.asarray(pc.index_in(ids.cast(pa.string()), value_set=self._texts).fill_null(-1))
            places[at >= 0] = self._text_places[at[at >= 0]]
        return places[:, 0], places[:, 1]


class Groups:
    """The groups of a file of notifications. To write, the caller has a transaction under way."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._cached: tuple[int, _Known] | None = None

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        return list(self._connection.execute(sql, values))

    # ------------------------------------------------------------------ groups

    def make(self, groups: Iterable[Sequence[str | int]]) -> int:
        """Write to these groups from now on, and to no others; pages of former groups stay until they are read.

        Returns the number of groups.
        """
        made = 0
        self._ask("DELETE FROM groupings WHERE size = 0")
        self._ask("INSERT INTO groupings (size, most) VALUES (0, 0)")
        for subscriptions in groups:
            most = self._most_among(subscriptions)
            self._ask("INSERT INTO groupings (size, most) VALUES (?, ?)", len(subscriptions), most)
            number = self._connection.last_insert_rowid()
            rows = [(subscription, number, member) for member, subscription in enumerate(subscriptions)]
            self._connection.executemany("INSERT INTO members VALUES (?, ?, ?)", rows)
            made += 1
        self._ask("UPDATE marks SET grouped = grouped + 1")
        self._forget_empty()
        return made

    def _most_among(self, subscriptions: Sequence[str | int]) -> int:
        """Returns an upper bound of how many wait for one of these."""
        most = 0
        for subscription in subscriptions:
            waiting = self._ask("SELECT waiting FROM mailboxes WHERE subscription = ?", subscription)
            most = max(most, (waiting[0][0] if waiting else 0) + self.waiting_at_most(subscription))
        return most

    def _forget_empty(self) -> None:
        """Remove former groups that have no page left."""
        gone = f"number < ({_BORDER}) AND number NOT IN (SELECT grouping FROM pages)"
        self._ask(f"DELETE FROM members WHERE grouping IN (SELECT number FROM groupings WHERE {gone})")
        self._ask(f"DELETE FROM groupings WHERE {gone}")

    @property
    def known(self) -> _Known:
        ((generation,),) = self._ask("SELECT grouped FROM marks")
        if self._cached is None or self._cached[0] != generation:
            # With max(), SQLite takes the other columns from the row that has the greatest.
            current = f"SELECT * FROM members WHERE grouping > ({_BORDER})"
            sql = f"SELECT subscription, max(grouping), member FROM ({current}) GROUP BY subscription"
            self._cached = generation, _Known(self._ask(sql))
        return self._cached[1]

    @property
    def count(self) -> int:
        """How many groups are written to."""
        return int(self._ask(f"SELECT count(*) FROM groupings WHERE number > ({_BORDER})")[0][0])

    @property
    def has_any(self) -> bool:
        """Whether there are any members, of former groups too."""
        return bool(self._ask("SELECT 1 FROM members LIMIT 1"))

    def memberships(self, subscription: str | int) -> list[tuple[int, int]]:
        return self._ask("SELECT grouping, member FROM members WHERE subscription = ?", subscription)

    # ------------------------------------------------------------------ reading

    def positions_of(self, subscription: str | int, source: str, after: int, before: int, limit: int) -> list[int]:
        """Returns the positions that pages have for a subscription and that it has not acknowledged, in order."""
        memberships = self.memberships(subscription)
        if memberships and source == LOG:
            after = max(after, self._pruned(subscription))
        found: list[int] = []
        for grouping, member in memberships:
            mine: list[int] = []
            for data in self._pages(grouping, source, after, before):
                positions, members = decode(data)
                kept = (members == member) & (positions > after) & (positions < before)
                mine += positions[kept].tolist()
                if 0 <= limit <= len(mine):
                    break
            found += mine
        return sorted(found)

    def waiting(self, subscription: str | int) -> int:
        sources = [source for (source,) in self._ask("SELECT source FROM highest")]
        return sum(len(self.positions_of(subscription, source, -1, _LAST, -1)) for source in sources)

    def pairs(self) -> Iterator[tuple[int, Any]]:
        for grouping, source, data in self._ask("SELECT grouping, source, data FROM pages ORDER BY number"):
            subscriptions, pruned = self._members(grouping)
            positions, members = decode(data)
            alive = _alive(positions, pruned[members], source)
            for position, member in zip(positions[alive].tolist(), members[alive].tolist(), strict=True):
                yield position, subscriptions[member]

    def among(self, sources: Sequence[str], positions: Positions) -> set[Row]:
        """Returns what pages have at or between these positions, acknowledged or not."""
        found: set[Row] = set()
        first, last = int(positions.min()), int(positions.max())
        sql = "SELECT grouping, data FROM pages WHERE source = ? AND last >= ? AND first <= ?"
        for source in sources:
            for grouping, data in self._ask(sql, source, first, last):
                subscriptions, _ = self._members(grouping)
                at, members = decode(data)
                near = (at >= first) & (at <= last)
                pairs = zip(at[near].tolist(), members[near].tolist(), strict=True)
                found |= {
                    (subscriptions[member], source, position) for position, member in pairs if member in subscriptions
                }
        return found

    def _pages(self, grouping: int, source: str, after: int, before: int) -> Iterator[bytes]:
        sql = "SELECT data FROM pages WHERE grouping = ? AND source = ? AND last > ? AND first < ? ORDER BY first"
        return (data for (data,) in self._connection.execute(sql, (grouping, source, after, before)))

    def _pruned(self, subscription: str | int) -> int:
        found = self._ask("SELECT pruned FROM mailboxes WHERE subscription = ?", subscription)
        return int(found[0][0]) if found else -1

    def _members(self, grouping: int) -> tuple[dict[int, Any], npt.NDArray[np.int64]]:
        """Returns the subscriptions of a group by member, and how far each has acknowledged; deleted ones, all."""
        rows = self._ask(
            "SELECT member, subscription, coalesce(pruned, -1) FROM members LEFT JOIN mailboxes USING (subscription) "
            "WHERE grouping = ?",
            grouping,
        )
        ((size,),) = self._ask("SELECT size FROM groupings WHERE number = ?", grouping)
        pruned = np.full(size, _LAST)
        for member, _, position in rows:
            pruned[member] = position
        return {member: subscription for member, subscription, _ in rows}, pruned

    # ------------------------------------------------------------------ forgetting

    def prune(self, acknowledged: Mapping[Any, tuple[int, int]]) -> int:
        """Hide what subscriptions have acknowledged, each after one position and up to another; returns how many."""
        by_group: dict[int, dict[int, tuple[int, int]]] = {}
        for subscription, marks in acknowledged.items():
            for grouping, member in self.memberships(subscription):
                by_group.setdefault(grouping, {})[member] = marks
        removed = 0
        for grouping, marks_of in by_group.items():
            size = 1 + max(marks_of)
            old, new = np.full(size, _LAST), np.full(size, -1)
            for member, (before, after) in marks_of.items():
                old[member], new[member] = before, after
            for positions, members in self._swept(grouping, int(old.min()), int(new.max())):
                mine = members < size
                positions, members = positions[mine], members[mine]
                removed += int(((positions > old[members]) & (positions <= new[members])).sum())
        if acknowledged:
            self._ask("UPDATE marks SET pruned = max(pruned, ?)", max(after for _, after in acknowledged.values()))
        return removed

    def forget(self, subscriptions: Iterable[Any]) -> None:
        groupings = set()
        for subscription in subscriptions:
            groupings |= {grouping for grouping, _ in self.memberships(subscription)}
            self._ask("DELETE FROM members WHERE subscription = ?", subscription)
        for grouping in sorted(groupings):
            for _ in self._swept(grouping, -1, _LAST):
                pass

    def _swept(self, grouping: int, after: int, upto: int) -> Iterator[tuple[Positions, Members]]:
        """Yields the pages with positions of the log in a range; rewrites or removes those with little left in them."""
        _, pruned = self._members(grouping)
        sql = "SELECT number, data FROM pages WHERE grouping = ? AND source = ? AND last > ? AND first <= ? ORDER BY 1"
        for number, data in self._ask(sql, grouping, LOG, after, upto):
            positions, members = decode(data)
            yield positions, members
            alive = positions > pruned[members]
            left = int(alive.sum())
            if not left:
                self._ask("DELETE FROM pages WHERE number = ?", number)
            elif left <= _DEAD * len(alive):
                positions, members = positions[alive], members[alive]
                rewrite = "UPDATE pages SET first = ?, last = ?, notifications = ?, data = ? WHERE number = ?"
                self._ask(rewrite, int(positions[0]), int(positions[-1]), left, encode(positions, members), number)

    def dissolve(self, grouping: int) -> None:
        """Turn what waits in a group's pages into rows, and remove the group."""
        subscriptions, pruned = self._members(grouping)
        counts: dict[int, int] = {}
        for source, data in self._ask("SELECT source, data FROM pages WHERE grouping = ?", grouping):
            positions, members = decode(data)
            alive = _alive(positions, pruned[members], source)
            rows = [
                (subscriptions[member], source, position)
                for position, member in zip(positions[alive].tolist(), members[alive].tolist(), strict=True)
            ]
            self._connection.executemany("INSERT OR IGNORE INTO notifications VALUES (?, ?, ?)", rows)
            for member, count in enumerate(np.bincount(members[alive]).tolist()):
                if count:
                    counts[member] = counts.get(member, 0) + count
        self._connection.executemany(
            "INSERT INTO mailboxes VALUES (?, ?, 0, -1) ON CONFLICT DO UPDATE SET waiting = waiting + excluded.waiting",
            [(subscriptions[member], count) for member, count in counts.items()],
        )
        for table, column in (("pages", "grouping"), ("members", "grouping"), ("groupings", "number")):
            self._ask(f"DELETE FROM {table} WHERE {column} = ?", grouping)
        self._ask("UPDATE marks SET grouped = grouped + 1")

    def waiting_at_most(self, subscription: Any) -> int:
        """Returns an upper bound of how many wait in pages, without reading them."""
        sql = "SELECT sum(most) FROM groupings WHERE number IN (SELECT grouping FROM members WHERE subscription = ?)"
        return int(self._ask(sql, subscription)[0][0] or 0)

    def more_waiting(self, subscription: Any, count: int) -> None:
        """Note that rows were added for a subscription that may be a member."""
        sql = (
            "UPDATE groupings SET most = most + ? WHERE number IN (SELECT grouping FROM members WHERE subscription = ?)"
        )
        self._ask(sql, count, subscription)

    def told(self) -> set[int]:
        """Returns the subscriptions with a number for which something waits in a page."""
        return {subscription for _, subscription in self.pairs() if isinstance(subscription, int)}

    def most_waiting(self, grouping: int) -> int:
        """Counts how many wait for the member with the most."""
        subscriptions, _ = self._members(grouping)
        most = 0
        for subscription in subscriptions.values():
            rows = self._ask("SELECT waiting FROM mailboxes WHERE subscription = ?", subscription)
            most = max(most, (rows[0][0] if rows else 0) + self.waiting(subscription))
        return most

    def bound(self) -> None:
        """Count what waits in every group: the file has mailboxes from now on."""
        for (number,) in self._ask("SELECT number FROM groupings"):
            self._ask("UPDATE groupings SET most = ? WHERE number = ?", self.most_waiting(number), number)


def _alive(positions: Positions, pruned: npt.NDArray[np.int64], source: str) -> npt.NDArray[np.bool_]:
    """Which notifications wait: only positions of the log are acknowledged, and nothing waits for deleted ones."""
    return np.asarray(positions > (pruned if source == LOG else np.where(pruned == _LAST, _LAST, -1)))


# ---------------------------------------------------------------------- pages
#
#   kind (1 byte: raw or deflated), then, as narrow as they fit, each width a byte:
#   first position, number of events, number of notifications
#   of each event    how far its position is from the one before
#                    for how many members it is
#   of each of them  the member
#
# An event that is for many members is written once, and a member takes a byte in a group of up to 256.


def encode(positions: Positions, members: Members) -> bytes:
    """Returns a page of notifications, which ascend by position, then by member, without duplicates."""
    starts = np.flatnonzero(np.diff(positions, prepend=positions[0] - 1))
    counts = np.diff(starts, append=len(positions))
    steps = np.diff(positions[starts], prepend=positions[0])
    columns = [_narrow(column) for column in (steps, counts, members)]
    body = b"".join(column.tobytes() for column in columns)
    deflated = zlib.compress(body, _LEVEL)
    kind, body = (_DEFLATED, deflated) if len(deflated) < len(body) else (_RAW, body)
    widths = [_WIDTHS.index(column.dtype.type) for column in columns]
    return _HEADER.pack(kind, int(positions[0]), len(starts), len(positions), *widths) + body


def decode(page: bytes) -> tuple[Positions, Members]:
    """Returns the position and the member of every notification, in order."""
    kind, first, events, count, *widths = _HEADER.unpack_from(page)
    body = page[_HEADER.size :] if kind == _RAW else zlib.decompress(page[_HEADER.size :])
    columns, at = [], 0
    for width, length in zip(widths, (events, events, count), strict=True):
        column = np.frombuffer(body, _WIDTHS[width], length, at)
        columns.append(column.astype(np.int64))
        at += column.nbytes
    steps, counts, members = columns
    return np.repeat(first + np.cumsum(steps), counts), members


def _narrow(column: npt.NDArray[np.int64]) -> npt.NDArray[np.unsignedinteger]:
    greatest = int(column.max(initial=0))
    return column.astype(next(width for width in _WIDTHS if greatest <= np.iinfo(width).max))
