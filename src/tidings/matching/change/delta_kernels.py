"""The loops of `delta`.

Heads are one array: HASHED places for equalities, one for what no place is narrow enough for, and CELLS
for the grid of each attribute. A link is four numbers: the next link, the entry with the attribute of its
second most selective row, and that row's bounds, which are tried first. `Texts`, `EntryRows` and `Places` of `delta`
come as plain tuples, which numba takes ten times as fast as named ones.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, assignment, type-var"

from __future__ import annotations

from typing import Any

import numpy as np

from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import PRIME, hash_bytes

HASH_BITS = 13
HASHED = 1 << HASH_BITS
CELLS = 64
CELL_SHIFT = 5  # from the cells of events to these
MAX_CELLS = 6  # that a range may touch to be filed under
_WIDE = HASHED
_MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel(inline="always")
def _is_text(number: Any, ends: Any, data: Any, other: Any, start: Any, end: Any) -> Any:
    """Whether a text that is numbered consists of these bytes of another array."""
    begin = ends[number - 1] if number > 0 else 0
    same = ends[number] - begin == end - start
    for i in range(end - start):
        if not same:
            break
        same = data[begin + i] == other[start + i]
    return same


@kernel
def number_texts(new_ends: Any, new_data: Any, texts: Any, numbers: Any) -> Any:
    """Number texts, those that are new after the others. Returns how many texts and bytes there are then.

    A text is in the table only when it can be read: others may look at the same time.
    """
    ends, data, table, count, size = texts
    mask = np.uint64(len(table) - 1)
    for new in range(len(new_ends)):
        start, end = np.int64(new_ends[new - 1] if new > 0 else 0), np.int64(new_ends[new])
        place = hash_bytes(new_data, start, end) & mask
        while table[place] >= 0:
            if table[place] < count and _is_text(table[place], ends, data, new_data, start, end):
                break
            place = (place + np.uint64(1)) & mask
        if table[place] < 0:
            data[size : size + end - start] = new_data[start:end]
            size += end - start
            ends[count] = size
            table[place] = count
            count += 1
        numbers[new] = table[place]
    return count, size


@kernel
def fill_table(texts: Any) -> None:
    """Put the texts that are numbered into an empty table."""
    ends, data, table, count, _ = texts
    mask = np.uint64(len(table) - 1)
    for number in range(count):
        place = hash_bytes(data, ends[number - 1] if number > 0 else 0, ends[number]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = number


@kernel
def text_codes(offsets: Any, column: Any, hashes: Any, texts: Any, codes: Any) -> None:
    """Write the number of each string of a column, -1 if it is none of the texts."""
    ends, data, table, count, _ = texts
    mask = np.uint64(len(table) - 1)
    for row in range(len(codes)):
        place = hashes[row] & mask
        codes[row] = -1
        while table[place] >= 0:
            number = np.int64(table[place])
            if number < count and _is_text(
                number, ends, data, column, np.int64(offsets[row]), np.int64(offsets[row + 1])
            ):
                codes[row] = number
                break
            place = (place + np.uint64(1)) & mask


@kernel(inline="always")
def _hashed(attribute: Any, code: Any) -> Any:
    value = (np.uint64(code) ^ (np.uint64(attribute + 1) * PRIME)) * _MIX
    return value >> np.uint64(64 - HASH_BITS)


@kernel(inline="always")
def _cell(edges: Any, attribute: Any, code: Any) -> Any:
    """How many edges are at or below a code, found without a branch to mispredict."""
    low = np.uint64(0)
    for half in (32, 16, 8, 4, 2, 1):
        low += np.uint64(half) * np.uint64(edges[attribute, low + np.uint64(half - 1)] <= code)
    return low


@kernel(inline="always")
def _share(row: Any, attributes: Any, lows: Any, highs: Any, samples: Any, edges: Any) -> Any:
    """Of events, those that look where a row would be filed; 1 for a range that is too wide for that."""
    attribute, low, high = attributes[row], lows[row], highs[row]
    if low == high:
        inside = np.searchsorted(samples[attribute], high, side="right") - np.searchsorted(
            samples[attribute], low, side="left"
        )
        return (inside + 0.25) / (samples.shape[1] + 1)
    touched = np.int64(_cell(edges, attribute, high)) - np.int64(_cell(edges, attribute, low)) + 1
    return touched / CELLS if touched <= MAX_CELLS else 1.0


@kernel
def link(first: Any, last: Any, elsewhere: Any, entries: Any, places: Any, heads: Any, links: Any, count: Any) -> Any:
    """File the entries from one to another, each under its most selective row. Returns how many links there are.

    Those that are filed elsewhere are passed over.
    """
    _, rows, attributes, lows, highs, _ = entries
    _, samples, edges = places
    for entry in range(first, last):
        if elsewhere[entry - first]:
            continue
        begin, end = (rows[entry - 1] if entry > 0 else 0), rows[entry]
        best, best_share = -1, 1.0
        for row in range(begin, end):
            share = _share(row, attributes, lows, highs, samples, edges)
            if share < best_share:
                best, best_share = row, share
        check, check_share = best, 2.0
        for row in range(begin, end):
            share = _share(row, attributes, lows, highs, samples, edges)
            if row != best and share < check_share:
                check, check_share = row, share
        head, until = _WIDE, _WIDE + 1
        if best >= 0:
            attribute = np.int64(attributes[best])
            if lows[best] == highs[best]:
                head = np.int64(_hashed(attribute, lows[best]))
                until = head + 1
            else:
                base = HASHED + 1 + CELLS * attribute
                head = base + np.int64(_cell(edges, attribute, lows[best]))
                until = base + np.int64(_cell(edges, attribute, highs[best])) + 1
        for place in range(head, until):
            links[count, 0] = heads[place]
            links[count, 1] = entry << 16
            links[count, 2], links[count, 3] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
            if check >= 0:
                links[count, 1] |= np.int64(attributes[check])
                links[count, 2], links[count, 3] = lows[check], highs[check]
            heads[place] = count
            count += 1
    return count


@kernel
def match(
    codes: Any, cells: Any, heads: Any, links: Any, entry_rows: Any, out_events: Any, out_entries: Any, count: Any,
    place: Any, event: Any, tried: Any,
) -> Any:  # fmt: skip
    """Fill the output from (place, event) on; stops before an event whose pairs it does not hold.

    Of each attribute there are two places to look in, the table of equalities and the grid, and one is for all.
    Indices are unsigned throughout: numba then leaves out the test for negative ones.
    """
    _, rows, attributes, lows, highs, _ = entry_rows
    one, room, events = np.uint64(1), np.uint64(len(out_events)), np.uint64(codes.shape[0])
    places = np.uint64(2 * codes.shape[1] + 1)
    while place < places:
        attribute, in_grid = place >> one, place & one
        base = np.uint64(HASHED + 1) + np.uint64(CELLS) * attribute
        if in_grid and (heads[base : base + np.uint64(CELLS)] < 0).all():
            event = events
        while event < events:
            if place == places - one:
                node = heads[np.uint64(_WIDE)]
            elif in_grid:
                node = heads[base + (np.uint64(cells[attribute, event]) >> np.uint64(CELL_SHIFT))]
            else:
                node = heads[_hashed(attribute, codes[event, attribute])]
            before = count
            while node >= 0:
                at = np.uint64(node)
                tried += one
                filed = np.uint64(links[at, 1])
                code = codes[event, filed & np.uint64(0xFFFF)]
                if (code >= links[at, 2]) & (code <= links[at, 3]):
                    entry = filed >> np.uint64(16)
                    inside = True
                    for row in range(
                        np.uint64(rows[entry - one]) if entry > 0 else np.uint64(0), np.uint64(rows[entry])
                    ):
                        code = codes[event, np.uint64(attributes[row])]
                        if code < lows[row] or code > highs[row]:
                            inside = False
                            break
                    if inside:
                        if count == room:
                            return before, place, event, tried
                        out_events[count] = event
                        out_entries[count] = entry
                        count += one
                node = links[at, 0]
            event += one
        event = np.uint64(0)
        place += one
    return count, place, event, tried
