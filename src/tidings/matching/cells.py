"""The engine for selective subscriptions: each entry lies in one cell, found by hashing.

An entry is filed under one or two of its constraints, those that the fewest events satisfy: an
equality by its code, a range by a cell of a grid so coarse that the range touches two cells at
most, the one it begins in and the next. Entries filed under the same kinds of keys (attribute
and grid) share a *signature* with a hash table of its own, small enough for the processor's
cache, through which a whole batch of events goes before the next signature's turn.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from tidings.matching.encode import Encoded
from tidings.matching.entries import Entries
from tidings.matching.pairs import Pairs

EXACT = 15  # the grid of equalities: a key is a code
LEVELS = np.arange(13)  # the other grids: a key is a cell's number shifted right by this
NO_KEY = -1
_CANDIDATES = 1 << 13  # gathered before they are verified together
_M1, _M2, _M3 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D)


@dataclass(frozen=True, slots=True)
class Cells:
    """Hash tables by signature, laid end to end; entries are in the order of signatures and buckets."""

    kinds: npt.NDArray[np.int32]  # kinds of keys: attribute × 16 + grid
    first_kind: npt.NDArray[np.int32]  # of each signature, by number among the kinds
    second_kind: npt.NDArray[np.int32]  # NO_KEY where entries are filed under one key
    filter_starts: npt.NDArray[np.int64]  # of each signature's bits in `bits`, in words
    filter_masks: npt.NDArray[np.uint32]
    bits: npt.NDArray[np.uint64]
    bucket_starts: npt.NDArray[np.int64]  # of each signature's buckets in `buckets`
    bucket_shifts: npt.NDArray[np.uint32]
    buckets: npt.NDArray[np.int32]  # where in the entries each bucket begins
    hashes: npt.NDArray[np.uint32]
    outputs: npt.NDArray[np.int32]
    # Of each entry the constraint that is checked first, and where its others are.
    check_attributes: npt.NDArray[np.int16]
    check_lows: npt.NDArray[np.int64]
    check_highs: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int32]
    attributes: npt.NDArray[np.int16]
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]

    longest: int  # bucket

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for name in self.__slots__ if isinstance(array := getattr(self, name), np.ndarray))

    def match(self, events: Encoded, pairs: Pairs) -> int:
        """Add the (event, output) pairs that match; answers how many candidates were verified."""
        keys = np.zeros((len(self.kinds) + 1, events.count), np.uint32)
        _keys(self.kinds, events.codes, events.cells, keys)
        places, hits = np.empty(events.count, np.uint32), np.empty(events.count + 1, np.uint32)
        candidate_events, candidate_entries = (np.empty(self.longest + _CANDIDATES, np.uint32) for _ in range(2))
        signature, probe, start, tried = np.uint64(0), 0, np.uint64(0), 0
        while signature < len(self.first_kind):
            count, signature, probe, start, more = _match(
                keys, events.codes, self.kinds, self.first_kind, self.second_kind, self.filter_starts,
                self.filter_masks, self.bits, self.bucket_starts, self.bucket_shifts, self.buckets, self.hashes,
                self.outputs, self.check_attributes, self.check_lows, self.check_highs, self.offsets, self.attributes,
                self.lows, self.highs, places, hits, candidate_events, candidate_entries, pairs.events, pairs.outputs,
                np.uint64(pairs.count), np.uint64(signature), probe, np.uint64(start),
            )  # fmt: skip
            tried += int(more)
            pairs.count = int(count)
            if signature < len(self.first_kind):
                pairs.reserve(2 * len(pairs.events) - pairs.count)
        return tried


def cells_index(
    chosen: npt.NDArray[np.int64],
    first_rows: npt.NDArray[np.int64],
    second_rows: npt.NDArray[np.int64],
    row_kinds: npt.NDArray[np.int32],
    row_keys: npt.NDArray[np.int64],
    order_of_rows: npt.NDArray[np.int64],
    entries: Entries,
    outputs: npt.NDArray[np.int32],
) -> Cells:
    """File entries under one row or two (`second_rows` is -1 for none) of their constraints."""
    paired = second_rows >= 0
    kinds, kind_of_row = np.unique(row_kinds, return_inverse=True)
    first = kind_of_row[first_rows].astype(np.int64)
    second = np.where(paired, kind_of_row[np.maximum(second_rows, 0)], NO_KEY).astype(np.int64)
    signatures, signature = np.unique((first << 32) | (second & 0xFFFF_FFFF), return_inverse=True)
    second_kind = (signatures & 0xFFFF_FFFF).astype(np.uint32).astype(np.int32)
    first_kind = (signatures >> 32).astype(np.int32)
    hashes = np.empty(len(chosen), np.uint32)
    exact = kinds % 16 == EXACT
    _hash_entries(
        row_keys[first_rows], exact[first], row_keys[np.maximum(second_rows, 0)], exact[np.maximum(second, 0)],
        paired, signature.astype(np.uint32), hashes,
    )  # fmt: skip
    sizes = np.bincount(signature, minlength=len(signatures))
    bucket_bits = np.maximum(1, np.floor(np.log2(np.maximum(2, sizes)))).astype(np.int64)
    order = np.lexsort((hashes, signature))
    chosen, hashes, signature = chosen[order], hashes[order], signature[order]
    bucket_starts = np.concatenate([[0], np.cumsum((1 << bucket_bits) + 1)])[:-1]
    word_bits = np.maximum(0, bucket_bits - 1)  # 16 to 32 bits an entry, two of them set: a false hit in a hundred
    filter_starts = np.concatenate([[0], np.cumsum(1 << word_bits)])
    buckets = np.empty(int(((1 << bucket_bits) + 1).sum()), np.int32)
    bits = np.zeros(int(filter_starts[-1]), np.uint64)
    shifts = (32 - bucket_bits).astype(np.uint32)
    masks = ((1 << word_bits) - 1).astype(np.uint32)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    _fill(starts, hashes, bucket_starts, shifts, buckets, filter_starts[:-1], masks, bits)
    counts = entries.offsets[chosen + 1] - entries.offsets[chosen]
    rows = order_of_rows[
        np.repeat(entries.offsets[chosen] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    ]
    firsts = np.cumsum(counts) - counts
    others = np.delete(rows, firsts)
    return Cells(
        kinds=kinds.astype(np.int32),
        first_kind=first_kind,
        second_kind=second_kind,
        filter_starts=filter_starts[:-1],
        filter_masks=masks,
        bits=bits,
        bucket_starts=bucket_starts,
        bucket_shifts=shifts,
        buckets=buckets,
        hashes=hashes,
        outputs=outputs[chosen],
        check_attributes=entries.attributes[rows[firsts]],
        check_lows=entries.lows[rows[firsts]],
        check_highs=entries.highs[rows[firsts]],
        offsets=np.concatenate([[0], np.cumsum(counts - 1)]).astype(np.int32),
        attributes=entries.attributes[others],
        lows=entries.lows[others],
        highs=entries.highs[others],
        longest=int(np.diff(buckets).max()),
    )


@numba.njit(cache=True, nogil=True, inline="always")
def _scramble(key: Any) -> Any:
    """A 64-bit code as 32 well-mixed bits."""
    mixed = (np.uint64(key) ^ (np.uint64(key) >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.uint32(mixed >> np.uint64(32))


@numba.njit(cache=True, nogil=True, inline="always")
def _hash(first: Any, second: Any, seed: Any) -> Any:
    """Two keys as one: cells, of at most 13 bits, never hash alike where the other key is the same or a cell too.

    So an event that looks in several cells finds no entry twice. (numba computes with 32-bit numbers in 64 bits:
    every step is cut back.)
    """
    mixed = np.uint32((first << np.uint32(13)) | (np.uint32(first) >> np.uint32(19))) ^ second ^ seed
    mixed = np.uint32(np.uint32(mixed ^ (mixed >> np.uint32(16))) * _M1)
    mixed = np.uint32(np.uint32(mixed ^ (mixed >> np.uint32(15))) * _M2)
    return np.uint32(mixed ^ (mixed >> np.uint32(16)))


@numba.njit(cache=True, nogil=True, inline="always")
def _seed(signature: Any) -> Any:
    return np.uint32((np.uint32(signature) + np.uint32(1)) * _M3)


@numba.njit(cache=True, nogil=True, inline="always")
def _two_bits(place: Any) -> Any:
    """The bits of a filter's word that stand for a hash."""
    low, high = np.uint64(place & np.uint32(63)), np.uint64((place >> np.uint32(6)) & np.uint32(63))
    return (np.uint64(1) << low) | (np.uint64(1) << high)


@numba.njit(cache=True, nogil=True)
def _hash_entries(
    first: Any, first_exact: Any, second: Any, second_exact: Any, paired: Any, signature: Any, out: Any
) -> None:
    for i in range(len(out)):
        one = _scramble(first[i]) if first_exact[i] else np.uint32(first[i])
        other = np.uint32(0)
        if paired[i]:
            other = _scramble(second[i]) if second_exact[i] else np.uint32(second[i])
        out[i] = _hash(one, other, _seed(signature[i]))


@numba.njit(cache=True, nogil=True)
def _fill(
    starts: Any, hashes: Any, bucket_starts: Any, shifts: Any, buckets: Any, filter_starts: Any, masks: Any, bits: Any
) -> None:
    for s in range(len(bucket_starts)):
        entry, base = starts[s], bucket_starts[s]
        for bucket in range(1 << (32 - shifts[s])):
            while entry < starts[s + 1] and (hashes[entry] >> shifts[s]) < bucket:
                entry += 1
            buckets[base + bucket] = entry
        buckets[base + (1 << (32 - shifts[s]))] = starts[s + 1]
        for i in range(starts[s], starts[s + 1]):
            bits[filter_starts[s] + np.int64((hashes[i] >> np.uint32(12)) & masks[s])] |= _two_bits(hashes[i])


@numba.njit(cache=True, nogil=True)
def _keys(kinds: Any, codes: Any, cells: Any, keys: Any) -> None:
    for k in range(len(kinds)):
        attribute, level = kinds[k] >> 4, np.uint32(kinds[k] & 15)
        if level == EXACT:
            for event in range(keys.shape[1]):
                keys[k, event] = _scramble(codes[event, attribute])
        else:
            for event in range(keys.shape[1]):
                keys[k, event] = np.uint32(cells[attribute, event]) >> level


@numba.njit(cache=True, nogil=True)
def _look(
    first: Any, first_less: Any, second: Any, second_less: Any, seed: Any, mask: Any, bits: Any, filter_start: Any,
    places: Any, hits: Any,
) -> Any:  # fmt: skip
    """The events whose keys may have a cell in the table, and their hashes."""
    events = np.uint64(len(first))
    cell = np.uint32(0x1FFF)
    for event in range(events):
        one = first[event] if first_less == 0 else np.uint32((first[event] - np.uint32(1)) & cell)
        two = second[event] if second_less == 0 else np.uint32((second[event] - np.uint32(1)) & cell)
        places[event] = _hash(one, two, seed)
    found = np.uint64(0)
    for event in range(events):
        place = places[event]
        wanted = _two_bits(place)
        hits[found] = np.uint32(event)
        found += np.uint64((bits[filter_start + np.uint64((place >> np.uint32(12)) & mask)] & wanted) == wanted)
    return found


@numba.njit(cache=True, nogil=True)
def _verify(
    candidates: Any, candidate_events: Any, candidate_entries: Any, codes: Any, check_attributes: Any, check_lows: Any,
    check_highs: Any, offsets: Any, attributes: Any, lows: Any, highs: Any, outputs: Any, out_events: Any,
    out_outputs: Any, count: Any,
) -> Any:  # fmt: skip
    """Write the candidates that hold: first one check of each, without a branch to mispredict, then what is left."""
    one_more = np.uint64(1)
    left = np.uint64(0)
    for i in range(candidates):
        event, entry = np.uint64(candidate_events[i]), np.uint64(candidate_entries[i])
        code = codes[event, np.uint64(check_attributes[entry])]
        candidate_events[left] = np.uint32(event)
        candidate_entries[left] = np.uint32(entry)
        left += np.uint64((code >= check_lows[entry]) & (code <= check_highs[entry]))
    for i in range(left):
        event, entry = np.uint64(candidate_events[i]), np.uint64(candidate_entries[i])
        inside = True
        for row in range(np.uint64(offsets[entry]), np.uint64(offsets[entry + one_more])):
            code = codes[event, np.uint64(attributes[row])]
            if code < lows[row] or code > highs[row]:
                inside = False
                break
        out_events[count] = event
        out_outputs[count] = outputs[entry]
        count += np.uint64(inside)
    return count


@numba.njit(cache=True, nogil=True)
def _match(
    keys: Any, codes: Any, kinds: Any, first_kind: Any, second_kind: Any, filter_starts: Any, filter_masks: Any,
    bits: Any, bucket_starts: Any, bucket_shifts: Any, buckets: Any, hashes: Any, outputs: Any, check_attributes: Any,
    check_lows: Any, check_highs: Any, offsets: Any, attributes: Any, lows: Any, highs: Any, places: Any, hits: Any,
    candidate_events: Any, candidate_entries: Any, out_events: Any, out_outputs: Any, count: Any, signature: Any,
    probe: Any, start: Any,
) -> Any:  # fmt: skip
    """Fills the output from (signature, probe, hit) on; stops where it might not hold the next candidates' pairs."""
    tried = np.uint64(0)
    room, capacity, one_more = np.uint64(len(out_events)), np.uint64(len(candidate_events)), np.uint64(1)
    while signature < np.uint64(len(first_kind)):
        one, two = first_kind[signature], second_kind[signature]
        # A range is filed under the cell it begins in: an event looks in its own cell, and in the one before.
        first_probes = 1 if kinds[one] & 15 == EXACT else 2
        second_probes = 1 if two == NO_KEY or kinds[two] & 15 == EXACT else 2
        second = keys[len(kinds)] if two == NO_KEY else keys[two]  # the last row is all zeros
        shift, bucket_start = bucket_shifts[signature], np.uint64(bucket_starts[signature])
        while probe < first_probes * second_probes:
            found = _look(
                keys[one], probe // second_probes, second, probe % second_probes, _seed(signature),
                filter_masks[signature], bits, np.uint64(filter_starts[signature]), places, hits,
            )  # fmt: skip
            while start < found:
                hit, candidates = start, np.uint64(0)
                while hit < found:
                    event = hits[hit]
                    place = places[np.uint64(event)]
                    bucket = bucket_start + np.uint64(place >> shift)
                    begin, end = np.uint64(buckets[bucket]), np.uint64(buckets[bucket + one_more])
                    if candidates + (end - begin) >= capacity:
                        break
                    for entry in range(begin, end):
                        candidate_events[candidates] = event
                        candidate_entries[candidates] = np.uint32(entry)
                        candidates += np.uint64(hashes[entry] == place)
                    hit += one_more
                if room - count <= candidates:
                    return count, signature, probe, start, tried
                tried += candidates
                count = _verify(
                    candidates, candidate_events, candidate_entries, codes, check_attributes, check_lows, check_highs,
                    offsets, attributes, lows, highs, outputs, out_events, out_outputs, count,
                )  # fmt: skip
                start = hit
            start = np.uint64(0)
            probe += 1
        probe = 0
        signature += one_more
    return count, signature, probe, start, tried
