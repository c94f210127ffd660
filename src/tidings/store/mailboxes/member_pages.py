"""A page of notifications to the members of one group: its events, each with the members that it is for.

    kind (1 byte: raw or deflated), then, as narrow as they fit, each width a byte:
    first position, number of events, number of notifications
    of each event    how far its position is from the one before
                     for how many members it is
    of each of them  the member

An event that is for many members is written once, and a member takes a byte in a group of up to 256.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Members = npt.NDArray[np.int64]

_HEADER = struct.Struct("<BqIIBBB")
_RAW, _DEFLATED = range(2)
_WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)
_LEVEL = 1  # more takes longer than it spares


def encode(positions: Positions, members: Members) -> bytes:
    """A page of notifications: ascending by position, then by member, none twice."""
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
    """The position and the member of every notification, in their order."""
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
