"""The walk over the nodes of documents that finds all paths at once.

Nodes come in the document's order. For each the states are found that it is in: by an edge from the states of
its parent, or by a descendant edge from a state of any node above; then by what the conditions of those states
say of the node. States whose edges lead on are kept while the walk is below the node.

Functions here take arrays one by one, however many: a tuple of arrays that is handed on costs a count of references
for each of them.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes

ANY, ANY_ATTRIBUTE, ANY_TEXT, FIRST_SYMBOL = 0, 1, 2, 3  # symbols
HAS_CHILDREN, HAS_DESCENDANTS, HAS_GROUPS, HAS_OUTPUTS = 1, 2, 4, 8  # of a state
HAS_EQUAL, HAS_NUMBERS, HAS_TEXTS, HAS_OTHERS = 1, 2, 4, 8  # of a group
GRAM_LENGTHS = np.array([1, 2, 3, 4, 8])

_LEVELS = 258  # of elements, the document above them, and one to spare
_EMPTY = np.int64(-1)
_MIX = np.uint64(0x9E3779B97F4A7C15)

Ints = npt.NDArray[np.int32]


class Arrays(NamedTuple):
    """The trie."""

    edge_keys: npt.NDArray[np.int64]  # a hash table: state, symbol and axis in one number
    edge_targets: Ints
    flags: npt.NDArray[np.uint8]  # of each state
    group_starts: Ints  # of each state, in `groups`
    groups: Ints
    output_starts: Ints  # of each state, in `outputs`
    outputs: Ints  # the paths that hold where a node is in the state
    several: npt.NDArray[np.bool_]  # paths with several alternatives; empty where none
    pattern_starts: Ints
    pattern_steps: Ints  # symbol and axis in one number
    group_pattern: Ints  # of each group
    group_exists: Ints  # the state of a node whose pattern leads anywhere, -1: nobody asks
    group_flags: npt.NDArray[np.uint8]
    equal_keys: npt.NDArray[np.int64]  # a hash table: group and literal in one number
    equal_targets: Ints
    literal_ends: Ints
    literal_data: npt.NDArray[np.uint8]
    literal_table: Ints  # a hash table of literals by their bytes
    number_starts: Ints  # of each group and comparison
    number_values: npt.NDArray[np.float64]  # ascending
    number_targets: Ints
    gram_keys: npt.NDArray[np.int64]  # a hash table
    gram_buckets: Ints
    gram_starts: Ints  # of each bucket
    gram_groups: Ints
    gram_at_start: npt.NDArray[np.bool_]
    gram_literals: Ints
    gram_targets: Ints
    gram_masks: npt.NDArray[np.uint8]  # of each group, the lengths of grams to look for: anywhere, at the start
    other_starts: Ints  # of each group
    other_kinds: npt.NDArray[np.uint8]
    other_negated: npt.NDArray[np.bool_]
    other_literals: Ints
    other_numbers: npt.NDArray[np.float64]
    other_targets: Ints


class NodeColumns(NamedTuple):
    """Documents."""

    names: Ints
    ends: Ints
    starts: Ints
    stops: Ints
    text: npt.NDArray[np.uint8]
    roots: Ints
    numbers: npt.NDArray[np.float64]
    symbols: npt.NDArray[np.int32]  # of each name, up to three


class Scratch(NamedTuple):
    """What a walk writes to, kept between batches: as long as the trie has states, but for the last ones."""

    stamps: npt.NDArray[np.int64]  # of each state, the last node that was in it
    found_in: npt.NDArray[np.int64]  # of each state, the last document that has a node in it
    kept: npt.NDArray[np.bool_]  # states that are in `above`
    above: Ints  # states with descendant edges that a node above is in
    pending: Ints
    found: Ints  # states with outputs that the document has a node in
    seen: npt.NDArray[np.int64]  # of each path with several alternatives, the last document that it holds in
    counts: npt.NDArray[np.int64]  # how many are pending; the stamp of the last node; the number of the last document
    active: Ints  # states with child edges, level by level
    literals: Ints  # of each node, the literal that its string-value is; -1: none, -2: not known yet
    first: Ints  # nodes that a pattern leads to
    second: Ints


_PENDING, _STAMP, _DOCUMENT = range(3)


def scratch_of(arrays: Arrays, paths: int) -> Scratch:
    states = len(arrays.flags)
    return Scratch(
        np.zeros(states, np.int64), np.zeros(states, np.int64), np.zeros(states, np.bool_), np.empty(states, np.int32),
        np.empty(states, np.int32), np.empty(states, np.int32),
        np.zeros(paths if len(arrays.several) else 0, np.int64), np.zeros(3, np.int64),
        np.empty(1024, np.int32), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32),
    )  # fmt: skip


# ---------------------------------------------------------------------- tables


def hash_table(keys: npt.NDArray[np.int64], values: Ints) -> tuple[npt.NDArray[np.int64], Ints]:
    """An open hash table, two places to a key at most."""
    places = 1 << max(1, int(np.ceil(np.log2(max(1, len(keys)) * 1.5))))
    table, table_values = np.full(places, _EMPTY), np.full(places, -1, np.int32)
    _fill(keys, values, table, table_values)
    return table, table_values


@kernel(inline="always")
def _mixed(key: Any) -> Any:
    value = np.uint64(key) * _MIX
    return value ^ (value >> np.uint64(32))


@kernel
def _fill(keys: Any, values: Any, table: Any, table_values: Any) -> None:
    mask = np.uint64(len(table) - 1)
    for i in range(len(keys)):
        place = _mixed(keys[i]) & mask
        while table[place] != _EMPTY:
            place = (place + np.uint64(1)) & mask
        table[place], table_values[place] = keys[i], values[i]


@kernel(inline="always")
def _look_up(key: Any, table: Any, values: Any) -> Any:
    mask = np.uint64(len(table) - 1)
    place = _mixed(key) & mask
    while table[place] != _EMPTY:
        if table[place] == key:
            return np.int64(values[place])
        place = (place + np.uint64(1)) & mask
    return np.int64(-1)


def literal_table(ends: Ints, data: npt.NDArray[np.uint8]) -> Ints:
    table = np.full(1 << max(1, int(np.ceil(np.log2(max(1, len(ends)) * 2)))), -1, np.int32)
    _fill_literals(ends, data, table)
    return table


@kernel
def _fill_literals(ends: Any, data: Any, table: Any) -> None:
    mask = np.uint64(len(table) - 1)
    for literal in range(len(ends)):
        place = hash_bytes(data, ends[literal - 1] if literal > 0 else 0, ends[literal]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = literal


@kernel
def _literal_of(text: Any, start: Any, stop: Any, ends: Any, data: Any, table: Any) -> Any:
    mask = np.uint64(len(table) - 1)
    place = hash_bytes(text, start, stop) & mask
    while table[place] >= 0:
        literal = table[place]
        begin = ends[literal - 1] if literal > 0 else 0
        if ends[literal] - begin == stop - start and _same(text, start, data, begin, stop - start):
            return literal
        place = (place + np.uint64(1)) & mask
    return np.int32(-1)


@kernel(inline="always")
def _same(one: Any, at: Any, other: Any, begin: Any, length: Any) -> Any:
    for i in range(length):  # noqa: SIM110
        if one[at + i] != other[begin + i]:
            return False
    return True


def gram_length(length: int) -> int:
    """The greatest length of grams that a text of this length has."""
    return int(GRAM_LENGTHS[length >= GRAM_LENGTHS].max())


@kernel
def gram_keys(groups: Any, at_start: Any, lengths: Any, grams: Any) -> Any:
    keys = np.empty(len(groups), np.uint64)
    for i in range(len(groups)):
        keys[i] = np.uint64(_gram_key(groups[i], at_start[i], lengths[i], grams[i]))
    return keys


@kernel(inline="always")
def _gram_key(group: Any, at_start: Any, length: Any, gram: Any) -> Any:
    """A hash, made positive so that it is never that of an empty place."""
    where = np.uint64(group) << np.uint64(5) | np.uint64(at_start) << np.uint64(4) | np.uint64(length)
    value = (np.uint64(gram) ^ (where * _MIX)) * _MIX
    return np.int64((value ^ (value >> np.uint64(29))) >> np.uint64(1))


# ---------------------------------------------------------------------- what conditions say


@kernel
def _nodes_of(
    step: Any, last_step: Any, node: Any, names: Any, ends: Any, symbols: Any, steps: Any, first: Any, second: Any
) -> Any:  # fmt: skip
    """The nodes that the steps of a pattern lead to from a node, into `first`, ascending. Returns how many."""
    first[0] = node
    count = 1
    while step < last_step and count > 0:
        symbol, descendant = steps[step] >> 1, steps[step] & 1
        step += 1
        found, covered, ordered = 0, 0, True
        for i in range(count):
            above = first[i]
            below, end = above + 1, ends[above]
            if descendant and below < covered:
                continue  # what is below it was found below one before
            while below < end:
                name = names[below]
                if symbols[name, 0] == symbol or symbols[name, 1] == symbol or symbols[name, 2] == symbol:
                    ordered = ordered and (found == 0 or second[found - 1] < below)
                    second[found] = below
                    found += 1
                below = below + 1 if descendant else ends[below]
            covered = max(covered, end)
        if not ordered:
            second[:found].sort()
        for i in range(found):
            first[i] = second[i]
        count = found
    return count


@kernel(inline="always")
def _arrive(state: Any, stamps: Any, pending: Any, counts: Any) -> None:
    """That the node is in a state, once."""
    if stamps[state] != counts[_STAMP]:
        stamps[state] = counts[_STAMP]
        pending[counts[_PENDING]] = state
        counts[_PENDING] += 1


@kernel
def _place(value: Any, values: Any, start: Any, end: Any, after: Any) -> Any:
    """Where a number belongs among those from `start` to `end`: before, or after, those that are equal."""
    while start < end:
        middle = (start + end) >> 1
        if values[middle] < value or (after and values[middle] == value):
            start = middle + 1
        else:
            end = middle
    return start


@kernel
def _try_numbers(
    group: Any, count: Any, first: Any, numbers: Any, starts: Any, values: Any, targets: Any, stamps: Any,
    pending: Any, counts: Any,
) -> None:  # fmt: skip
    """Ranges are satisfied from the least, or up to the greatest, of the nodes' numbers."""
    least, greatest = np.inf, -np.inf
    row = 5 * np.int64(group)
    start, end = np.int64(starts[row]), np.int64(starts[row + 1])
    some = False
    for i in range(count):
        number = numbers[first[i]]
        if np.isnan(number):
            continue
        some = True
        least, greatest = min(least, number), max(greatest, number)
        if start < end:
            place = _place(number, values, start, end, False)
            if place < end and values[place] == number:
                _arrive(targets[place], stamps, pending, counts)
    if not some:
        return
    for comparison in range(1, 5):
        low, high = np.int64(starts[row + comparison]), np.int64(starts[row + comparison + 1])
        if low == high:
            continue
        if comparison <= 2:  # least < value, least <= value
            low = _place(least, values, low, high, comparison == 1)
        else:  # greatest > value, greatest >= value
            high = _place(greatest, values, low, high, comparison == 4)
        for place in range(low, high):
            _arrive(targets[place], stamps, pending, counts)


@kernel
def _try_texts(
    group: Any, text: Any, start: Any, stop: Any, masks: Any, keys: Any, buckets: Any, bucket_starts: Any, groups: Any,
    at_start: Any, literals: Any, targets: Any, literal_ends: Any, literal_data: Any, stamps: Any, pending: Any,
    counts: Any,
) -> None:  # fmt: skip
    """Which of a group's texts a string-value contains, or starts with."""
    for where in range(2):
        mask = masks[where, group]
        for length_number in range(5):
            if not mask >> length_number & 1:
                continue
            length = GRAM_LENGTHS[length_number]
            last = min(start, stop - length) if where else stop - length
            for at in range(start, last + 1):
                gram = np.uint64(0)
                for i in range(length):
                    gram |= np.uint64(text[at + i]) << np.uint64(8 * i)
                bucket = _look_up(_gram_key(group, where, length, gram), keys, buckets)
                if bucket < 0:
                    continue
                for entry in range(bucket_starts[bucket], bucket_starts[bucket + 1]):
                    literal = literals[entry]
                    begin = literal_ends[literal - 1] if literal > 0 else 0
                    size = literal_ends[literal] - begin
                    if (
                        groups[entry] == group
                        and at_start[entry] == where
                        and at + size <= stop
                        and _same(text, at, literal_data, begin, size)
                    ):
                        _arrive(targets[entry], stamps, pending, counts)


@kernel
def _holds(
    kind: Any, literal: Any, wanted: Any, count: Any, first: Any, numbers: Any, text: Any, starts: Any, stops: Any,
    literal_ends: Any, literal_data: Any,
) -> Any:  # fmt: skip
    """Whether a condition that is tried by itself is true of the nodes found."""
    if kind == 0:
        return count > 0
    begin = literal_ends[literal - 1] if literal > 0 else 0
    size = literal_ends[literal] - begin if literal >= 0 else 0
    if kind >= 7:  # of the first node alone; an empty text is in no trie
        if count == 0:
            return False
        node = first[0]
        last = stops[node] - size if kind == 7 else min(starts[node], stops[node] - size)
        for at in range(starts[node], last + 1):  # noqa: SIM110
            if _same(text, at, literal_data, begin, size):
                return True
        return False
    for i in range(count):
        node = first[i]
        if literal >= 0:
            same = stops[node] - starts[node] == size and _same(text, starts[node], literal_data, begin, size)
            if same == (kind == 1):
                return True
            continue
        number = numbers[node]
        if (
            (kind == 1 and number == wanted)
            or (kind == 2 and number != wanted)
            or (kind == 3 and number < wanted)
            or (kind == 4 and number <= wanted)
            or (kind == 5 and number > wanted)
            or (kind == 6 and number >= wanted)
        ):
            return True
    return False


# ---------------------------------------------------------------------- the walk


@kernel
def match(nodes: Any, trie: Any, scratch: Any, first_document: Any, offsets: Any, paths: Any) -> Any:
    """The paths that hold in some documents, after those that there are. Returns up to which document.

    It stops before a document for which there is no room, among the paths or, answering a negative number, among the
    active states.
    """
    names, node_ends, starts, stops, text, roots, numbers, symbols = nodes
    edge_keys, edge_targets, flags = trie.edge_keys, trie.edge_targets, trie.flags
    group_starts, groups, group_pattern = trie.group_starts, trie.groups, trie.group_pattern
    group_exists, group_flags = trie.group_exists, trie.group_flags
    pattern_starts, pattern_steps = trie.pattern_starts, trie.pattern_steps
    equal_keys, equal_targets = trie.equal_keys, trie.equal_targets
    literal_ends, literal_data, literal_table = trie.literal_ends, trie.literal_data, trie.literal_table
    number_starts, number_values, number_targets = trie.number_starts, trie.number_values, trie.number_targets
    gram_keys, gram_buckets, gram_starts, gram_groups = (
        trie.gram_keys, trie.gram_buckets, trie.gram_starts, trie.gram_groups
    )  # fmt: skip
    gram_at_start, gram_literals, gram_targets, gram_masks = (
        trie.gram_at_start, trie.gram_literals, trie.gram_targets, trie.gram_masks
    )  # fmt: skip
    other_starts, other_kinds, other_negated = trie.other_starts, trie.other_kinds, trie.other_negated
    other_literals, other_numbers, other_targets = trie.other_literals, trie.other_numbers, trie.other_targets
    stamps, found_in, kept, above, pending, found, seen, counts, active, literals, first, second = scratch
    level_ends = np.zeros(_LEVELS, np.int64)
    active_ends, above_ends = np.zeros(_LEVELS, np.int64), np.zeros(_LEVELS, np.int64)
    root_flags = flags[0]
    for document in range(first_document, len(roots) - 1):
        counts[_DOCUMENT] += 1
        founds, actives, aboves = 0, 0, 0
        if root_flags & HAS_CHILDREN:
            active[0] = 0
            actives = 1
        if root_flags & HAS_DESCENDANTS:
            above[0] = 0
            aboves = 1
        level = 0
        level_ends[0], active_ends[0], above_ends[0] = roots[document + 1], actives, aboves
        for node in range(roots[document], roots[document + 1]):
            while node >= level_ends[level]:
                level -= 1
            actives = active_ends[level]
            while aboves > above_ends[level]:
                aboves -= 1
                kept[above[aboves]] = False
            counts[_STAMP] += 1
            name = names[node]
            for kind in range(3):
                symbol = np.int64(symbols[name, kind])
                if symbol < 0:
                    continue
                for i in range(active_ends[level - 1] if level > 0 else 0, active_ends[level]):
                    state = _look_up(np.int64(active[i]) << 32 | symbol << 1, edge_keys, edge_targets)
                    if state >= 0:
                        _arrive(state, stamps, pending, counts)
                for i in range(above_ends[level]):
                    state = _look_up(np.int64(above[i]) << 32 | symbol << 1 | 1, edge_keys, edge_targets)
                    if state >= 0:
                        _arrive(state, stamps, pending, counts)
            while counts[_PENDING] > 0:
                counts[_PENDING] -= 1
                state = np.int64(pending[counts[_PENDING]])
                flag = flags[state]
                if flag & HAS_OUTPUTS and found_in[state] != counts[_DOCUMENT]:
                    found_in[state] = counts[_DOCUMENT]
                    found[founds] = state
                    founds += 1
                if flag & HAS_CHILDREN:
                    if actives < len(active):
                        active[actives] = state
                    actives += 1  # past the end: there is no room
                if flag & HAS_DESCENDANTS and not kept[state]:
                    kept[state] = True
                    above[aboves] = state
                    aboves += 1
                if not flag & HAS_GROUPS:
                    continue
                for place in range(group_starts[state], group_starts[state + 1]):
                    group = groups[place]
                    pattern = group_pattern[group]
                    count = _nodes_of(
                        pattern_starts[pattern], pattern_starts[pattern + 1], node, names, node_ends, symbols,
                        pattern_steps, first, second,
                    )  # fmt: skip
                    group_flag = group_flags[group]
                    if count > 0:
                        if group_exists[group] >= 0:
                            _arrive(group_exists[group], stamps, pending, counts)
                        if group_flag & HAS_EQUAL:
                            for i in range(count):
                                literal = literals[first[i]]
                                if literal == -2:
                                    literal = _literal_of(
                                        text, starts[first[i]], stops[first[i]], literal_ends, literal_data,
                                        literal_table,
                                    )  # fmt: skip
                                    literals[first[i]] = literal
                                if literal >= 0:
                                    key = np.int64(group) << 32 | np.int64(literal)
                                    target = _look_up(key, equal_keys, equal_targets)
                                    if target >= 0:
                                        _arrive(target, stamps, pending, counts)
                        if group_flag & HAS_NUMBERS:
                            _try_numbers(
                                group, count, first, numbers, number_starts, number_values, number_targets, stamps,
                                pending, counts,
                            )  # fmt: skip
                        if group_flag & HAS_TEXTS:
                            _try_texts(
                                group, text, starts[first[0]], stops[first[0]], gram_masks, gram_keys, gram_buckets,
                                gram_starts, gram_groups, gram_at_start, gram_literals, gram_targets, literal_ends,
                                literal_data, stamps, pending, counts,
                            )  # fmt: skip
                    if group_flag & HAS_OTHERS:
                        for other in range(other_starts[group], other_starts[group + 1]):
                            true = _holds(
                                other_kinds[other], other_literals[other], other_numbers[other], count, first, numbers,
                                text, starts, stops, literal_ends, literal_data,
                            )  # fmt: skip
                            if true != other_negated[other]:
                                _arrive(other_targets[other], stamps, pending, counts)
            if actives > len(active):
                break
            if node_ends[node] > node + 1:
                level += 1
                level_ends[level], active_ends[level], above_ends[level] = node_ends[node], actives, aboves
        while aboves > 0:
            aboves -= 1
            kept[above[aboves]] = False
        if actives > len(active):
            return np.int64(-1) - document
        if not _write(
            document, founds, found, trie.output_starts, trie.outputs, trie.several, seen, counts, offsets, paths
        ):
            return np.int64(document)
    return np.int64(len(roots) - 1)


@kernel
def _write(
    document: Any, founds: Any, found: Any, output_starts: Any, outputs: Any, several: Any, seen: Any, counts: Any,
    offsets: Any, paths: Any,
) -> Any:  # fmt: skip
    """Write the paths of the states that were found. Returns whether there was room for them."""
    count = offsets[document]
    room = np.int64(0)
    for i in range(founds):
        room += output_starts[found[i] + 1] - output_starts[found[i]]
    if count + room > len(paths):
        return False
    for i in range(founds):
        for output in range(output_starts[found[i]], output_starts[found[i] + 1]):
            path = outputs[output]
            if len(several) > 0 and several[path]:
                if seen[path] == counts[_DOCUMENT]:
                    continue
                seen[path] = counts[_DOCUMENT]
            paths[count] = path
            count += 1
    offsets[document + 1] = count
    return True
