"""Laws of how found pairs and runs become rows of slots by event."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidings.matching.engines.found_pairs import Pairs, Rows, Runs

EVENTS, SLOTS = 5, 7
PAIRS = st.lists(st.tuples(st.integers(0, EVENTS - 1), st.integers(0, SLOTS - 1)), max_size=30)
RUNS = st.lists(st.tuples(st.integers(0, EVENTS - 1), st.lists(st.integers(0, SLOTS - 1), min_size=1)), max_size=10)


def pairs_of(given_pairs):
    pairs = Pairs()
    pairs.add(*(np.array([pair[i] for pair in given_pairs], np.int32) for i in range(2)))
    return pairs


def runs_of(given_runs):
    runs = Runs()
    for event, outputs in given_runs:
        runs.reserve(1, len(outputs))
        runs.events[runs.runs], runs.starts[runs.runs] = event, runs.count
        runs.outputs[runs.count : runs.count + len(outputs)] = outputs
        runs.runs, runs.count = runs.runs + 1, runs.count + len(outputs)
    return runs


def expected(given_pairs, given_runs):
    flat = [*given_pairs, *((event, slot) for event, outputs in given_runs for slot in outputs)]
    return [sorted(slot for at, slot in flat if at == event) for event in range(EVENTS)]


def rows_of(offsets, slots):
    return [sorted(slots[offsets[i] : offsets[i + 1]].tolist()) for i in range(len(offsets) - 1)]


@given(st.lists(st.tuples(PAIRS, RUNS), max_size=4))
def test_every_pair_and_every_output_of_a_run_is_in_the_row_of_its_event(chunks):
    rows = Rows(EVENTS * len(chunks))
    for given_pairs, given_runs in chunks:
        pairs = pairs_of(given_pairs)
        rows.add(EVENTS, pairs.events[: pairs.count], pairs.outputs[: pairs.count], runs_of(given_runs))
    assert rows_of(rows.offsets, rows.slots) == [row for chunk in chunks for row in expected(*chunk)]


@given(st.lists(PAIRS, max_size=4), st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS))
def test_dropping_repeats_leaves_each_slot_that_may_repeat_once_an_event(chunks, repeated):
    rows, seen = Rows(EVENTS * len(chunks)), np.zeros(SLOTS, np.int32)
    wanted = []
    for given_pairs in chunks:
        pairs = pairs_of(given_pairs)
        rows.add(EVENTS, pairs.events[: pairs.count], pairs.outputs[: pairs.count], Runs())
        rows.drop_repeats(EVENTS, np.array(repeated), seen)
        for row in expected(given_pairs, []):
            wanted.append(sorted([*{s for s in row if repeated[s]}, *(s for s in row if not repeated[s])]))
    assert rows_of(rows.offsets, rows.slots) == wanted
