"""The loops of `cells`: where an event looks, and what it finds there."""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg, assignment"

from __future__ import annotations

from typing import Any

import numpy as np

from tidings.kernels.decorator import kernel
from tidings.kernels.simd import LANES, lowest_bit, prefetch, ranges_holding
from tidings.matching.engines.event_codes import CELL_BITS

EXACT = 15  # the grid of equalities: a key is a code
# The other grids: a key is a cell's number shifted right by 0, 3, 6, 9 or 12 bits. More grids would have fewer
# ranges in a cell, and cost every event more cells to look in.
LEVEL_STEP, MAX_LEVEL = 3, 12
BYTE_SHIFT = CELL_BITS - 8  # from cells to bytes
STEP = 4  # of bytes: large groups know where the ranges begin that begin at every fourth
STEPS = 256 // STEP + 1
ANY = -1  # the attribute of a group whose entries are not compared as bytes
SURE = -2  # and of one whose entries match whoever looks there: the first of its cell
_LOOKED = 64  # events that look for their cells together
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@kernel(inline="always")
def _mix(value: Any) -> Any:
    """A permutation of the 64-bit numbers that leaves no pattern."""
    value = (value ^ (value >> np.uint64(32))) * _PRIME
    return value ^ (value >> np.uint64(29))


@kernel(inline="always")
def _cell_key(number: Any, level: Any, key: Any) -> Any:
    """A cell's key: of grids no two alike, so that an event that looks in two cells finds no entry twice."""
    if level == EXACT:
        return _mix(np.uint64(key) ^ ((np.uint64(number) + np.uint64(1)) * _PRIME))
    return _mix((np.uint64(number) << np.uint64(32)) | np.uint64(key))


@kernel
def cell_keys(kinds: Any, kind: Any, keys: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = _cell_key(kind[i], kinds[kind[i]] & 15, keys[i])


@kernel(inline="always")
def hash_byte(code: Any) -> Any:
    return np.uint8(_mix(np.uint64(code)) >> np.uint64(56))


@kernel
def hash_bytes_of(codes: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = hash_byte(codes[i])


@kernel
def fill(keys: Any, table_keys: Any, table_cells: Any) -> None:
    mask = np.uint64(len(table_keys) - 1)
    for cell in range(len(keys)):
        place = keys[cell] & mask
        while table_cells[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table_keys[place] = keys[cell]
        table_cells[place] = cell


@kernel
def event_bytes(codes: Any, cells: Any, values: Any) -> None:
    """Of each attribute the high bits of its cells, and its codes hashed."""
    for attribute in range(cells.shape[0]):
        for event in range(cells.shape[1]):
            values[2 * attribute, event] = np.uint8(cells[attribute, event] >> BYTE_SHIFT)
            values[2 * attribute + 1, event] = hash_byte(codes[event, attribute])


@kernel
def _verify(
    candidates: Any, candidate_events: Any, candidate_entries: Any, codes: Any, values: Any, checks: Any,
    offsets: Any, attributes: Any, bounds: Any, outputs: Any, out_events: Any, out_outputs: Any, count: Any,
    guests: Any, visit_events: Any, visit_guests: Any,
) -> Any:  # fmt: skip
    """Write the candidates that hold: first one check of each, without a branch to mispredict, then all in codes.

    Those that are guests are put aside; answers how many there are of both.
    """
    one_more, left, visits = np.uint64(1), np.uint64(0), np.uint64(0)
    offsets_base, outputs_base = np.uint64(offsets.ctypes.data), np.uint64(outputs.ctypes.data)
    attributes_base, bounds_base = np.uint64(attributes.ctypes.data), np.uint64(bounds.ctypes.data)
    for i in range(candidates):
        event, entry = np.uint64(candidate_events[i]), np.uint64(candidate_entries[i])
        check = checks[entry]
        value = values[np.uint64(check >> np.uint32(16)), event]
        candidate_events[left] = np.uint32(event)
        candidate_entries[left] = np.uint32(entry)
        left += np.uint64((value >= np.uint8(check)) & (value <= np.uint8(check >> np.uint32(8))))
    for i in range(left):  # what is read of them lies far apart: all wait for it together
        entry = np.uint64(candidate_entries[i])
        prefetch(offsets_base + entry * np.uint64(4))
        prefetch(outputs_base + entry * np.uint64(4))
    for i in range(left):
        row = np.uint64(offsets[np.uint64(candidate_entries[i])])
        prefetch(attributes_base + row * np.uint64(2))
        prefetch(bounds_base + row * np.uint64(16))
    for i in range(left):
        event, entry = np.uint64(candidate_events[i]), np.uint64(candidate_entries[i])
        row, end = np.uint64(offsets[entry]), np.uint64(offsets[entry + one_more])
        if row == end:  # no entry of the index itself comes here without a constraint
            if outputs[entry] < guests:
                visit_events[visits], visit_guests[visits] = np.uint32(event), np.uint32(outputs[entry])
                visits += one_more
            continue
        inside = True
        while row < end:
            code = codes[event, np.uint64(attributes[row])]
            if code < bounds[row, 0] or code > bounds[row, 1]:
                inside = False
                break
            row += one_more
        out_events[count] = event
        out_outputs[count] = outputs[entry]
        count += np.uint64(inside)
    return count, visits


@kernel
def _verify_guests(
    visits: Any, visit_events: Any, visit_guests: Any, codes: Any, offsets: Any, attributes: Any, bounds: Any,
    outputs: Any, out_events: Any, out_outputs: Any, count: Any,
) -> Any:  # fmt: skip
    """Write those of the guests whose every constraint holds."""
    one_more = np.uint64(1)
    offsets_base, outputs_base = np.uint64(offsets.ctypes.data), np.uint64(outputs.ctypes.data)
    attributes_base, bounds_base = np.uint64(attributes.ctypes.data), np.uint64(bounds.ctypes.data)
    for i in range(visits):
        guest = np.uint64(visit_guests[i])
        prefetch(offsets_base + guest * np.uint64(4))
        prefetch(outputs_base + guest * np.uint64(4))
    for i in range(visits):
        row = np.uint64(offsets[np.uint64(visit_guests[i])])
        prefetch(attributes_base + row * np.uint64(2))
        prefetch(bounds_base + row * np.uint64(16))
    for i in range(visits):
        event, guest = np.uint64(visit_events[i]), np.uint64(visit_guests[i])
        inside = True
        for row in range(np.uint64(offsets[guest]), np.uint64(offsets[guest + one_more])):
            code = codes[event, np.uint64(attributes[row])]
            if code < bounds[row, 0] or code > bounds[row, 1]:
                inside = False
                break
        out_events[count] = event
        out_outputs[count] = outputs[guest]
        count += np.uint64(inside)
    return count


@kernel
def _gather(
    event: Any, last_event: Any, first_event: Any, probes: Any, found: Any, cell_groups: Any, values: Any,
    group_attributes: Any, group_entries: Any, group_ends: Any, group_widths: Any, group_steps: Any, steps: Any,
    low_bytes: Any, high_bytes: Any, outputs: Any, checks: Any, longest: Any, candidate_events: Any,
    candidate_entries: Any, candidates: Any, run_events: Any, run_starts: Any, run_outputs: Any, run: Any,
    run_count: Any,
) -> Any:  # fmt: skip
    """What events may satisfy in the cells that were found for them, as far as bytes tell, and what they surely do.

    Stops before an event whose share might not fit; answers which, and how many candidates and runs there are then.
    """
    one, one_more, lanes = np.uint32(1), np.uint64(1), np.uint64(LANES)
    capacity, most_runs = np.uint64(len(candidate_events)), np.uint64(len(run_events))
    run_room = np.uint64(len(run_outputs))
    low_base, high_base = np.uint64(low_bytes.ctypes.data), np.uint64(high_bytes.ctypes.data)
    checks_base = np.uint64(checks.ctypes.data)
    while event < last_event:
        if candidates + probes * longest > capacity or run == most_runs or run_room - run_count < longest:
            break
        looked = (event - first_event) * probes
        for i in range(looked, looked + probes):
            if found[i] < 0:
                continue
            cell = np.uint64(found[i])
            first, last = np.uint64(cell_groups[cell]), np.uint64(cell_groups[cell + one_more])
            if group_attributes[first] == SURE:
                run_events[run], run_starts[run] = event, run_count
                run += one_more
                for entry in range(np.uint64(group_entries[first]), np.uint64(group_entries[first + one_more])):
                    run_outputs[run_count] = outputs[entry]
                    run_count += one_more
                first += one_more
            for group in range(first, last):
                entry, end = np.uint64(group_entries[group]), np.uint64(group_ends[group])
                attribute = group_attributes[group]
                if attribute == ANY:
                    while entry < end:
                        candidate_events[candidates] = np.uint32(event)
                        candidate_entries[candidates] = np.uint32(entry)
                        candidates += one_more
                        entry += one_more
                    continue
                value = values[np.uint64(attribute), event]
                last_end = own_end = end  # a large group's own entries end before what was added
                if group_steps[group] >= 0:  # only ranges that begin at the value, or less than the widest before it
                    least = np.uint64(value - min(value, group_widths[group]))
                    first_step = np.uint64(group_steps[group])
                    entry = np.uint64(steps[first_step + least // np.uint64(STEP)])
                    end = np.uint64(steps[first_step + np.uint64(value) // np.uint64(STEP) + one_more])
                    own_end = np.uint64(steps[first_step + np.uint64(STEPS)])
                while True:
                    while entry < end:
                        matched: Any = ranges_holding(low_base + entry, high_base + entry, value)
                        if end - entry < lanes:
                            matched = np.uint32(matched & ((one << np.uint32(end - entry)) - one))
                        while matched != 0:
                            candidate_events[candidates] = np.uint32(event)
                            candidate = entry + np.uint64(lowest_bit(matched))
                            candidate_entries[candidates] = np.uint32(candidate)
                            prefetch(checks_base + candidate * np.uint64(4))
                            candidates += one_more
                            matched = np.uint32(matched & (matched - one))
                        entry += lanes
                    if own_end == last_end:
                        break
                    entry, end, own_end = own_end, last_end, last_end
        event += one_more
    return event, candidates, run, run_count


@kernel
def _find(
    kind: Any, attribute: Any, level: Any, probes: Any, event: Any, last: Any, codes: Any, cells: Any,
    table_keys: Any, table_cells: Any, cell_kinds: Any, cell_groups: Any, group_entries: Any, group_ends: Any,
    low_bytes: Any, high_bytes: Any, keys: Any, found: Any,
) -> None:  # fmt: skip
    """The cells in which some events look, -1 for none: step by step for all, so that they wait for memory together."""
    one_more, mask = np.uint64(1), np.uint64(len(table_keys) - 1)
    keys_base, cells_base = np.uint64(table_keys.ctypes.data), np.uint64(table_cells.ctypes.data)
    kinds_base, groups_base = np.uint64(cell_kinds.ctypes.data), np.uint64(cell_groups.ctypes.data)
    entries_base, ends_base = np.uint64(group_entries.ctypes.data), np.uint64(group_ends.ctypes.data)
    low_base, high_base = np.uint64(low_bytes.ctypes.data), np.uint64(high_bytes.ctypes.data)
    looked = np.uint64(0)
    while event < last:
        for probe in range(probes):
            key = codes[event, attribute]
            if level != EXACT:
                key = (np.int64(cells[attribute, event]) >> level) - probe
            found[looked] = 0 if key >= 0 or level == EXACT else -1
            keys[looked] = _cell_key(kind, level, key)
            place = keys[looked] & mask
            prefetch(keys_base + place * np.uint64(8))
            prefetch(cells_base + place * np.uint64(4))
            looked += one_more
        event += one_more
    for i in range(looked):
        if found[i] < 0:
            continue
        place = keys[i] & mask
        while table_cells[place] >= 0 and table_keys[place] != keys[i]:
            place = (place + one_more) & mask
        found[i] = table_cells[place]
        if found[i] >= 0:
            prefetch(kinds_base + np.uint64(found[i]) * np.uint64(4))
            prefetch(groups_base + np.uint64(found[i]) * np.uint64(4))
    for i in range(looked):
        if found[i] < 0:
            continue
        if np.uint64(cell_kinds[np.uint64(found[i])]) != kind:  # another kind's cell has the same key
            found[i] = _next_of_kind(kind, keys[i], table_keys, table_cells, cell_kinds)
            if found[i] < 0:
                continue
        group = np.uint64(cell_groups[np.uint64(found[i])])
        prefetch(entries_base + group * np.uint64(4))
        prefetch(ends_base + group * np.uint64(4))
    for i in range(looked):
        if found[i] >= 0:
            entry = np.uint64(group_entries[np.uint64(cell_groups[np.uint64(found[i])])])
            prefetch(low_base + entry)
            prefetch(high_base + entry)


@kernel
def _next_of_kind(kind: Any, key: Any, table_keys: Any, table_cells: Any, cell_kinds: Any) -> Any:
    mask = np.uint64(len(table_keys) - 1)
    place = key & mask
    while table_cells[place] >= 0:
        if table_keys[place] == key and np.uint64(cell_kinds[np.uint64(table_cells[place])]) == kind:
            break
        place = (place + np.uint64(1)) & mask
    return table_cells[place]


@kernel
def cell_of(
    attribute: Any, level: Any, key: Any, kinds: Any, table_keys: Any, table_cells: Any, cell_kinds: Any
) -> Any:  # fmt: skip
    """The cell of a key in a grid of an attribute, -1 where there is none."""
    kind = np.searchsorted(kinds, attribute * 16 + level)
    if kind == len(kinds) or kinds[kind] != attribute * 16 + level:
        return np.int32(-1)
    return _next_of_kind(np.uint64(kind), _cell_key(kind, level, key), table_keys, table_cells, cell_kinds)


@kernel
def name_cell(
    cell: Any, attribute: Any, level: Any, key: Any, kinds: Any, table_keys: Any, table_cells: Any, cell_kinds: Any
) -> Any:  # fmt: skip
    """Have a cell for a key that has none; answers whether there is such a grid, and room in the table."""
    kind = np.searchsorted(kinds, attribute * 16 + level)
    if kind == len(kinds) or kinds[kind] != attribute * 16 + level:
        return False
    hashed, mask = _cell_key(kind, level, key), np.uint64(len(table_keys) - 1)
    place = hashed & mask
    while table_cells[place] >= 0:
        place = (place + np.uint64(1)) & mask
    cell_kinds[cell] = kind
    table_keys[place] = hashed
    table_cells[place] = cell  # last: from here on it is found
    return True


@kernel
def match(
    kinds: Any, codes: Any, cells: Any, values: Any, table_keys: Any, table_cells: Any, cell_kinds: Any,
    cell_groups: Any, group_attributes: Any, group_entries: Any, group_ends: Any, group_widths: Any, group_steps: Any,
    steps: Any, low_bytes: Any, high_bytes: Any, outputs: Any, checks: Any, offsets: Any, attributes: Any, bounds: Any,
    candidate_events: Any, candidate_entries: Any, longest: Any,
    out_events: Any, out_outputs: Any, count: Any, run_events: Any, run_starts: Any, run_outputs: Any, run: Any,
    run_count: Any, guests: Any, guest_offsets: Any, guest_attributes: Any, guest_bounds: Any,
    guest_outputs: Any, visit_events: Any, visit_guests: Any, found_events: Any, found_outputs: Any, found_count: Any,
    kind: Any, event: Any,
) -> Any:  # fmt: skip
    """Fills the outputs from (kind, event) on; stops where they might not hold the candidates that come next."""
    capacity, room = np.uint64(len(candidate_events)), np.uint64(len(out_events))
    visitable, found_room = np.uint64(len(visit_events)), np.uint64(len(found_events))
    most_runs, run_room = np.uint64(len(run_events)), np.uint64(len(run_outputs))
    events = np.uint64(codes.shape[0])
    candidates = tried = np.uint64(0)
    keys, found = np.empty(2 * _LOOKED, np.uint64), np.empty(2 * _LOOKED, np.int64)
    while kind < np.uint64(len(kinds)):
        attribute, level = np.uint64(kinds[kind] >> 4), kinds[kind] & 15
        # A range is filed under the cell it begins in: an event looks in its own cell, and in the one before.
        probes = np.uint64(1 if level == EXACT else 2)
        first_event = last_event = event
        while event < events:
            if event == last_event:
                first_event, last_event = event, min(events, event + np.uint64(_LOOKED))
                _find(
                    kind, attribute, level, probes, event, last_event, codes, cells, table_keys, table_cells,
                    cell_kinds, cell_groups, group_entries, group_ends, low_bytes, high_bytes, keys, found,
                )  # fmt: skip
            event, candidates, run, run_count = _gather(
                event, last_event, first_event, probes, found, cell_groups, values, group_attributes, group_entries,
                group_ends, group_widths, group_steps, steps, low_bytes, high_bytes, outputs, checks, longest,
                candidate_events, candidate_entries, candidates, run_events, run_starts, run_outputs, run, run_count,
            )  # fmt: skip
            if event == last_event:
                continue
            tried += candidates
            count, visits = _verify(
                candidates, candidate_events, candidate_entries, codes, values, checks, offsets, attributes,
                bounds, outputs, out_events, out_outputs, count, guests, visit_events, visit_guests,
            )  # fmt: skip
            found_count = _verify_guests(
                visits, visit_events, visit_guests, codes, guest_offsets, guest_attributes, guest_bounds,
                guest_outputs, found_events, found_outputs, found_count,
            )  # fmt: skip
            candidates = np.uint64(0)
            full = run == most_runs or run_room - run_count < longest
            if full or room - count < capacity or found_room - found_count < visitable:
                return count, run, run_count, found_count, kind, event, tried
        event = np.uint64(0)
        kind += np.uint64(1)
    tried += candidates
    count, visits = _verify(
        candidates, candidate_events, candidate_entries, codes, values, checks, offsets, attributes, bounds, outputs,
        out_events, out_outputs, count, guests, visit_events, visit_guests,
    )  # fmt: skip
    found_count = _verify_guests(
        visits, visit_events, visit_guests, codes, guest_offsets, guest_attributes, guest_bounds, guest_outputs,
        found_events, found_outputs, found_count,
    )  # fmt: skip
    return count, run, run_count, found_count, kind, event, tried
