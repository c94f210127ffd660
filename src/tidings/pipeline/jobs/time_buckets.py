"""Stretches of time to count events by, and counts that stay few however long the time.

Times are microseconds since 1970, in UTC. Buckets begin where a calendar would have them begin: hours at
the full hour, weeks on Monday, months on the first.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

_SECOND = 1_000_000
_WIDTHS = {"s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND, "d": 86400 * _SECOND, "w": 604800 * _SECOND}
_MONTHS = {"mo": 1, "y": 12}
_FIRST_MONDAY = 4 * _WIDTHS["d"]  # 1970 began on a Thursday
_NAMES = {
    "s": ("s", "sec", "second"),
    "m": ("m", "min", "minute"),
    "h": ("h", "hour"),
    "d": ("d", "day"),
    "w": ("w", "week"),
    "mo": ("mo", "month"),
    "y": ("y", "year"),
}
_UNITS = {name: unit for unit, names in _NAMES.items() for name in names}
_LONGEST_YEARS = 1000

BUCKETS_MAX = 10_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def moment(time: int) -> dt.datetime:
    """A time in UTC, or the nearest one that a datetime can say: a bucket may begin before the year 1."""
    try:
        return _EPOCH + dt.timedelta(microseconds=time)
    except OverflowError:
        return (dt.datetime.min if time < 0 else dt.datetime.max).replace(tzinfo=dt.UTC)


def microseconds(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class Bucket:
    """So many units of time: `Bucket.parse("15m")`."""

    count: int
    unit: str  # s, m, h, d, w, mo or y

    @staticmethod
    def parse(text: str) -> Bucket:
        found = re.fullmatch(r"\s*(\d{0,9})\s*([a-z]+?)s?\s*|\s*(\d{0,9})\s*(s)\s*", text.lower())
        number, name = (found[1] or found[3], found[2] or found[4]) if found else ("", "")
        unit, count = _UNITS.get(name), int(number or 1)
        if unit is None or not count:
            raise ValueError(f"a bucket is a number and a unit, such as 30s, 15m, 1h, 1d, 1w, 1mo or 1y, not {text!r}")
        days = 365 * count * _MONTHS[unit] / 12 if unit in _MONTHS else count * _WIDTHS[unit] / _WIDTHS["d"]
        if days > _LONGEST_YEARS * 366:
            raise ValueError(f"a bucket of {text!r} is too long: {_LONGEST_YEARS:,} years are the most")
        return Bucket(count, unit)

    def __str__(self) -> str:
        return f"{self.count}{self.unit}"

    def numbers(self, times: Times) -> Times:
        """The number of the bucket that each time is in; the next bucket has the next number."""
        if self.unit in _MONTHS:
            months = times.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
            return months // (self.count * _MONTHS[self.unit])
        return (times - self._offset) // (self.count * _WIDTHS[self.unit])

    def starts(self, numbers: Times) -> Times:
        """When buckets begin."""
        if self.unit in _MONTHS:
            months = (numbers * (self.count * _MONTHS[self.unit])).astype("datetime64[M]")
            return months.astype("datetime64[us]").astype(np.int64)
        return numbers * (self.count * _WIDTHS[self.unit]) + self._offset

    def after(self, time: dt.datetime) -> int:
        """When the bucket that a time is in ends."""
        return int(self.starts(self.numbers(np.array([microseconds(time)])) + 1)[0])

    def span(self, first: int, last: int) -> int:
        """How many buckets there are from one time to another, with those that the two are in."""
        before, after = self.numbers(np.array([first, last]))
        return int(after - before + 1)

    def holds(self, other: Bucket) -> bool:
        """Whether each of the others lies in one of these."""
        if other.unit in _MONTHS:
            months = self.count * _MONTHS.get(self.unit, 0)
            return months > 0 and months % (other.count * _MONTHS[other.unit]) == 0
        width = other.count * _WIDTHS[other.unit]
        if self.unit in _MONTHS:
            return _WIDTHS["d"] % width == 0
        return self.count * _WIDTHS[self.unit] % width == 0 and (self._offset - other._offset) % width == 0

    @property
    def _offset(self) -> int:
        return _FIRST_MONDAY if self.unit == "w" else 0


# Each of these holds the one before, so that counts can be taken together.
_KEPT = SECOND, _, _, DAY, _, _ = tuple(map(Bucket.parse, ("1s", "1m", "1h", "1d", "1mo", "1y")))
_READABLE = tuple(map(Bucket.parse, ("1s 5s 15s 1m 5m 15m 1h 3h 6h 12h 1d 1w 1mo 1y").split()))
SHOWN_MAX = 200


def readable(of: Bucket, first: int, last: int, most: int) -> Bucket | None:
    """The finest bucket of whole ones `of` that divides a time into no more than `most`, if there is one."""
    return next((one for one in (of, *_READABLE) if one.holds(of) and one.span(first, last) <= most), None)


class Timeline:
    """How many events of each kind there are in each bucket.

    Without a bucket of the caller's, buckets are as fine as the time between the first and the last
    event allows; what is counted so does not depend on the order of the events, nor on how they are
    divided among timelines that are merged.
    """

    def __init__(self, kinds: int, bucket: Bucket | None = None, *, finest: Bucket = SECOND) -> None:
        self._ladder = _KEPT[_KEPT.index(finest) :] if bucket is None else (bucket,)
        self._level = 0
        self._numbers = np.empty(0, np.int64)
        self._counts = np.empty((0, kinds), np.int64)
        self.first: int | None = None
        self.last: int | None = None
        self.overflows = False  # more than BUCKETS_MAX of the caller's bucket: nothing is counted any more

    @property
    def _bucket(self) -> Bucket:
        return self._ladder[self._level]

    def add(self, times: Times, kinds: Times) -> None:
        """Count events, each of a kind from 0."""
        if not len(times):
            return
        width = self._counts.shape[1]
        numbers, places = np.unique(self._bucket.numbers(times), return_inverse=True)
        counts = np.bincount(places * width + kinds, minlength=len(numbers) * width).reshape(-1, width)
        self._take(numbers, counts, int(times.min()), int(times.max()))

    def merge(self, other: Timeline) -> None:
        if other.first is None or other.last is None:
            return
        self.overflows |= other.overflows
        while self._level < other._level:
            self._coarsen()
        numbers = self._bucket.numbers(other._bucket.starts(other._numbers))
        self._take(numbers, other._counts, other.first, other.last)

    def _take(self, numbers: Times, counts: Times, first: int, last: int) -> None:
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        self._add(np.concatenate([self._numbers, numbers]), np.concatenate([self._counts, counts]))
        while not self.overflows and self._bucket.span(self.first, self.last) > BUCKETS_MAX:
            self._coarsen()
        if self.overflows:
            self._add(self._numbers[:0], self._counts[:0])

    def _add(self, numbers: Times, counts: Times) -> None:
        self._numbers, places = np.unique(numbers, return_inverse=True)
        self._counts = np.zeros((len(self._numbers), counts.shape[1]), np.int64)
        np.add.at(self._counts, places, counts)

    def _coarsen(self) -> None:
        if self._level + 1 == len(self._ladder):
            self.overflows = True
            return
        starts = self._bucket.starts(self._numbers)
        self._level += 1
        self._add(self._bucket.numbers(starts), self._counts)

    def shown(self) -> tuple[Bucket, Times, Times]:
        """The bucket for a reader, and start and counts of every bucket from the first event to the last."""
        if self.first is None or self.last is None:
            return self._bucket, np.empty(0, np.int64), self._counts
        bucket = self._bucket
        if len(self._ladder) > 1:
            bucket = readable(bucket, self.first, self.last, SHOWN_MAX) or _READABLE[-1]
        first, last = bucket.numbers(np.array([self.first, self.last]))
        counts = np.zeros((last - first + 1, self._counts.shape[1]), np.int64)
        np.add.at(counts, bucket.numbers(self._bucket.starts(self._numbers)) - first, self._counts)
        return bucket, bucket.starts(np.arange(first, last + 1)), counts

    @property
    def needed(self) -> int:
        """How many buckets the caller's bucket would have made."""
        assert self.first is not None
        assert self.last is not None
        return self._bucket.span(self.first, self.last)
