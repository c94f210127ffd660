"""What an operator wants the log to keep, as it is written on the command line."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidings.errors import TidingsError

FOREVER = "forever"
_LIMIT = re.compile(r"([0-9]{1,9}) *([a-z]+)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_BYTES = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


class RetentionError(TidingsError):
    """A limit that cannot be read."""


@dataclass(frozen=True)
class Limits:
    """What the operator wants to be kept; without either, everything."""

    max_age: dt.timedelta | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class HeldLimits:
    """How long beyond that it is kept for those who need it; how much of it is in each tenant's quota."""

    max_age: dt.timedelta = dt.timedelta(days=30)
    grace_seconds: float = 3600.0  # that everybody has after the gateway was started, or a stream was last seen to run


HELD_BY_DEFAULT = HeldLimits()
KEPT_BY_DEFAULT = Limits(max_age=dt.timedelta(days=7))


def read_limits(texts: Iterable[str]) -> Limits:
    """Limits as they are written: 7d, 12h, 50gb, forever; of several the strictest counts.

    >>> read_limits(["7d", "50gb"])
    Limits(max_age=datetime.timedelta(days=7), max_bytes=53687091200)
    """
    ages: list[dt.timedelta] = []
    sizes: list[int] = []
    for text in texts:
        if text.strip().lower() == FOREVER:
            continue
        found = _LIMIT.fullmatch(text.strip().lower())
        if found and found[2] in _SECONDS:
            ages.append(dt.timedelta(seconds=int(found[1]) * _SECONDS[found[2]]))
        elif found and found[2] in _BYTES:
            sizes.append(int(found[1]) * _BYTES[found[2]])
        else:
            raise RetentionError(
                f"retain: {text[:40]!r} is no limit; give an age such as 12h or 7d, a size such as 50gb, or {FOREVER}"
            )
    return Limits(min(ages, default=None), min(sizes, default=None))
