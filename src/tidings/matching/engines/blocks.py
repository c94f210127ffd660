"""The engine for wide ranges over shared attributes: blocks of similar entries, compared 64 at a time.

Entries that constrain the same attributes are ordered like the leaves of a k-d tree and cut into
blocks. A block whose bounding box does not hold an event is passed over, for 64 events at once;
else its entries are compared with the event, 64 at once, in bytes: the high bits of the cells. A
byte strictly between the ends of a range decides; at an end, the codes themselves are compared.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel
from tidings.kernels.simd import (
    COMPRESSES,
    WIDE,
    count_bits,
    lowest_bit,
    many_ranges_holding,
    ranges_touching,
    values_within,
    write_chosen,
)
from tidings.matching.engines.entries import Entries
from tidings.matching.engines.event_codes import CELL_BITS, Encoded, RowCells
from tidings.matching.engines.found_pairs import Runs

BLOCK = 256  # entries
_SHIFT = CELL_BITS - 8
_FULL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The entries of one class, all constraining the attributes `dimensions`."""

    dimensions: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int32]  # of the entries, in the order of the blocks, padded with -1
    low_bytes: Bytes  # dimensions × entries
    high_bytes: Bytes
    lows: npt.NDArray[np.int64]  # entries × dimensions
    highs: npt.NDArray[np.int64]
    box_lows: Bytes  # blocks × dimensions
    box_highs: Bytes

    @property
    def bytes(self) -> int:
        arrays = (self.outputs, self.low_bytes, self.high_bytes, self.lows, self.highs, self.box_lows, self.box_highs)
        return sum(array.nbytes for array in arrays)

    def match(self, events: Encoded, runs: Runs) -> None:
        """Add the outputs that match, a run for each event and block."""
        padded = -(-events.count // WIDE) * WIDE
        values = np.zeros((len(self.dimensions), padded), np.uint8)
        values[:, : events.count] = events.cells[self.dimensions] >> _SHIFT
        rows = np.ascontiguousarray(values.T)
        match = _kernel(len(self.dimensions))
        block, group = np.uint64(0), np.uint64(0)
        while block < len(self.box_lows):
            runs.reserve(WIDE, WIDE * BLOCK)
            count, found, block, group = match(
                values, rows, events.codes, self.dimensions, self.outputs, self.low_bytes, self.high_bytes, self.lows,
                self.highs, self.box_lows, self.box_highs, np.uint64(events.count), runs.events, runs.starts,
                runs.outputs, np.uint64(runs.runs), np.uint64(runs.count), np.uint64(block), np.uint64(group),
            )  # fmt: skip
            runs.runs, runs.count = int(count), int(found)


def blocks_of(
    chosen: npt.NDArray[np.int64], entries: Entries, cells: RowCells, outputs: npt.NDArray[np.int32]
) -> Blocks:
    """Build the blocks of some entries that all constrain the same attributes."""
    first = entries.offsets[chosen]
    width = int(entries.offsets[chosen[0] + 1] - first[0])
    rows = first[:, None] + np.arange(width)
    low_bytes, high_bytes = ((ends[rows] >> _SHIFT).astype(np.uint8) for ends in (cells.first, cells.last))
    order = np.arange(len(chosen))
    _order_like_a_tree(low_bytes.astype(np.int64) + high_bytes, order)
    rows, padding = rows[order], -len(order) % BLOCK
    low_bytes = np.vstack([low_bytes[order], np.full((padding, width), 255, np.uint8)])
    high_bytes = np.vstack([high_bytes[order], np.zeros((padding, width), np.uint8)])
    shape = (-1, BLOCK, width)
    return Blocks(
        dimensions=entries.attributes[rows[0]].astype(np.int64),
        outputs=np.concatenate([outputs[chosen[order]], np.full(padding, -1, np.int32)]),
        low_bytes=np.ascontiguousarray(low_bytes.T),
        high_bytes=np.ascontiguousarray(high_bytes.T),
        lows=entries.lows[rows],
        highs=entries.highs[rows],
        box_lows=low_bytes.reshape(shape).min(axis=1),
        box_highs=high_bytes.reshape(shape).max(axis=1),
    )


@kernel
def _order_like_a_tree(centres: Any, order: Any) -> None:
    """Bring entries near each other together: split at the median of the widest dimension, and each half again.

    Centres are sums of two bytes, so a part is put in order by counting.
    """
    starts, ends = [0], [len(order)]
    spare = np.empty_like(order)
    while len(starts) > 0:
        start, end = starts.pop(), ends.pop()
        size = end - start
        if size <= BLOCK:
            continue
        widest, most = 0, -1.0
        for d in range(centres.shape[1]):
            total, squares = 0, 0
            for i in range(start, end):
                centre = centres[order[i], d]
                total += centre
                squares += centre * centre
            variance = squares / size - (total / size) ** 2
            if variance > most:
                widest, most = d, variance
        places = np.zeros(512, np.int64)
        for i in range(start, end):
            places[centres[order[i], widest] + 1] += 1
        places = np.cumsum(places) + start
        for i in range(start, end):
            centre = centres[order[i], widest]
            spare[places[centre]] = order[i]
            places[centre] += 1
        order[start:end] = spare[start:end]
        middle = start + max(BLOCK, size // 2 // BLOCK * BLOCK)
        starts += [start, middle]
        ends += [middle, end]


@cache
def _kernel(width: int) -> Any:
    """The matching loop for a number of dimensions, which the compiler unrolls.

    Indices are unsigned throughout: numba then leaves out the test for negative ones, which costs half the time.
    """

    @kernel
    def match(
        values: Any, rows: Any, codes: Any, dimensions: Any, entries: Any, low_bytes: Any, high_bytes: Any, lows: Any,
        highs: Any, box_lows: Any, box_highs: Any, event_count: Any, run_events: Any, run_starts: Any,
        run_outputs: Any, runs: Any, count: Any, block: Any, group: Any,
    ) -> Any:  # fmt: skip
        """Fills the output from (block, group of events) on; stops where it might not hold the next group's runs."""
        one, lanes = np.uint64(1), np.uint64(WIDE)
        padded, stride = np.uint64(values.shape[1]), np.uint64(low_bytes.shape[1])
        value_base = np.uint64(values.ctypes.data)
        low_base, high_base = np.uint64(low_bytes.ctypes.data), np.uint64(high_bytes.ctypes.data)
        entry_base, output_base = np.uint64(entries.ctypes.data), np.uint64(run_outputs.ctypes.data)
        groups, blocks = padded // lanes, np.uint64(len(box_lows))
        room, run_room = np.uint64(len(run_outputs)), np.uint64(len(run_events))
        while block < blocks:
            while group < groups:
                held = _FULL
                for d in range(width):
                    address = value_base + np.uint64(d) * padded + group * lanes
                    held &= values_within(address, box_lows[block, d], box_highs[block, d])
                if held != 0 and (room - count < lanes * np.uint64(BLOCK) or run_room - runs < lanes):
                    return runs, count, block, group
                while held != 0:
                    event = group * lanes + np.uint64(lowest_bit(held))
                    held &= held - one
                    if event >= event_count:
                        break
                    lane = block * np.uint64(BLOCK)
                    run_events[runs] = event
                    run_starts[runs] = count
                    for _ in range(BLOCK // WIDE):
                        matched, touching = _FULL, np.uint64(0)
                        for d in range(width):
                            offset = np.uint64(d) * stride + lane
                            value = rows[event, np.uint64(d)]
                            matched &= many_ranges_holding(low_base + offset, high_base + offset, value)
                        if matched != 0:
                            for d in range(width):
                                offset = np.uint64(d) * stride + lane
                                at_end = ranges_touching(
                                    low_base + offset, high_base + offset, rows[event, np.uint64(d)]
                                )
                                touching |= at_end
                        unsure = matched & touching
                        while unsure != 0:
                            bit = lowest_bit(unsure)
                            unsure &= unsure - one
                            row, inside = lane + np.uint64(bit), True
                            for d in range(width):
                                code = codes[event, np.uint64(dimensions[d])]
                                inside = inside and lows[row, np.uint64(d)] <= code <= highs[row, np.uint64(d)]
                            matched &= ~(np.uint64(not inside) << np.uint64(bit))
                        if COMPRESSES:
                            if matched != 0:
                                write_chosen(
                                    entry_base + np.uint64(4) * lane, matched, output_base + np.uint64(4) * count
                                )
                                count += np.uint64(count_bits(matched))
                        else:
                            while matched != 0:
                                run_outputs[count] = entries[lane + np.uint64(lowest_bit(matched))]
                                count += one
                                matched &= matched - one
                        lane += lanes
                    runs += np.uint64(count > run_starts[runs])
                group += one
            group = np.uint64(0)
            block += one
        return runs, count, block, group

    return match
