"""How near is the matcher to what the machine can do?

Whatever finds the matches of an event must at least write their numbers: that limit is measured by copying
as many. Between the two lie the comparisons that find them, which are counted here, on a sample of events,
from the index itself: boxes of blocks passed over or entered, entries compared in those, cells looked up,
entries compared as bytes there, and candidates verified in codes. Bytes are those that comparing reads.
Before any of that, the values of an event become codes, which has a cost of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.options import Options
from tidings.filter.compile.compiler import compile_filters
from tidings.matching.batch_columns import Columns
from tidings.matching.engines import cell_kernels
from tidings.matching.engines.blocks import BLOCK, Blocks
from tidings.matching.engines.cell_kernels import EXACT
from tidings.matching.engines.cells import Cells
from tidings.matching.engines.event_codes import CELL_BITS, Encoded, encode
from tidings.matching.index import build_index
from tidings.model.event import read_events
from tidings.testing import workloads

EVENTS = 8_192
SAMPLE = 100  # events whose comparisons are counted
REPEATS = 7
SHOWN = (
    "workload", "subscriptions", "us_per_event", "encode_us_per_event", "comparisons_per_event", "verified_per_event",
    "matches_per_event", "percent_of_write_limit",
)  # fmt: skip
_SHIFT = CELL_BITS - 8
_BOUNDS = 16  # bytes of the two ends of a range of codes


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row for each workload and size."""
    for name in options.workloads:
        if name == "mixed":
            continue  # its residuals are evaluated, not compared
        for size in options.sizes:
            yield _row(name, size)


def _row(name: str, size: int) -> dict[str, Any]:
    workload = workloads.WORKLOADS[name](subscriptions=size, events=EVENTS)
    columns = Columns(read_events(workload.events, workload.domain))
    index = build_index(compile_filters(workload.filters, workload.domain), columns)
    found = index.match(columns, workload.filters)
    cost = _seconds(lambda: index.match(Columns(read_events(workload.events, workload.domain)), workload.filters))
    encoded = _seconds(lambda: encode(Columns(read_events(workload.events, workload.domain)), index.coders))
    to = np.empty_like(found.slots)
    written = _seconds(lambda: np.copyto(to, found.slots))
    counts = np.zeros(2)
    events = encode(columns, index.coders).part(0, SAMPLE)
    for blocks in index.blocks:
        counts += _of_blocks(blocks, events)
    if index.cells is not None:
        counts += _of_cells(index.cells, events)
    compared, read = counts / SAMPLE
    verified = found.tried / EVENTS if index.cells is not None else 0.0
    return {
        "workload": name,
        "subscriptions": size,
        "us_per_event": round(cost / EVENTS * 1e6, 2),
        "encode_us_per_event": round(encoded / EVENTS * 1e6, 2),
        "matches_per_event": round(len(found.slots) / EVENTS, 1),
        "comparisons_per_event": round(compared),
        "comparisons_per_match": round(compared / (len(found.slots) / EVENTS), 1),
        "verified_per_event": round(verified, 1),
        "bytes_read_per_event": round(read + verified * _BOUNDS),
        "ns_per_comparison": round(cost / EVENTS * 1e9 / compared, 3),
        "write_limit_us_per_event": round(written / EVENTS * 1e6, 3),
        "percent_of_write_limit": round(100 * written / cost, 1),
        "seeds": f"{workloads.SUBSCRIPTION_SEED}, {workloads.EVENT_SEED}",
    }


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def _of_blocks(blocks: Blocks, events: Encoded) -> Any:
    """Comparisons of a value with a range, and bytes that they read, for all events."""
    values = (events.cells[blocks.dimensions] >> _SHIFT).T[:, None]
    inside = ((blocks.box_lows <= values) & (values <= blocks.box_highs)).all(axis=2)
    boxes, entered, width = inside.size, int(inside.sum()), len(blocks.dimensions)
    compared = width * (boxes + entered * BLOCK)
    return np.array([compared, 2 * compared])


def _of_cells(cells: Cells, events: Encoded) -> Any:
    places = {
        (int(cells.cell_kinds[cell]), int(key)): int(cell)
        for key, cell in zip(cells.table_keys, cells.table_cells, strict=True)
        if cell >= 0
    }
    compared = read = 0
    for event in range(events.count):
        for number, kind in enumerate(cells.kinds):
            attribute, level = int(kind >> 4), int(kind & 15)
            own = int(events.codes[event, attribute] if level == EXACT else events.cells[attribute, event] >> level)
            for key in (own,) if level == EXACT else (own, own - 1):
                hashed = int(cell_kernels._cell_key(np.int64(number), np.int64(level), np.int64(key)))
                compared, read = compared + 1, read + 12
                cell = places.get((number, hashed))
                if cell is not None:
                    for group in range(cells.cell_groups[cell], cells.cell_groups[cell + 1]):
                        entries = _compared_in(cells, group, events, event)
                        compared, read = compared + entries, read + 2 * entries
    return np.array([compared, read])


def _compared_in(cells: Cells, group: int, events: Encoded, event: int) -> int:
    """How many entries of a group are compared as bytes: of a large one, those that may hold the value."""
    attribute = int(cells.group_attributes[group])
    if attribute < 0:
        return 0
    size = int(cells.group_entries[group + 1] - cells.group_entries[group])
    if cells.group_steps[group] < 0:
        return size
    values = np.empty((2 * events.cells.shape[0], events.count), np.uint8)
    cell_kernels.event_bytes(events.codes, events.cells, values)
    value, width = int(values[attribute, event]), int(cells.group_widths[group])
    steps = cells.steps[cells.group_steps[group] :]
    least = value - min(value, width)
    return int(steps[value // cell_kernels.STEP + 1] - steps[least // cell_kernels.STEP])
