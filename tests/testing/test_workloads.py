"""The workloads have the statistics that their definitions state."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tidings.filter.syntax.parser import parse_filter
from tidings.model.event import read_events
from tidings.testing.oracle import brute_force
from tidings.testing.workloads import WORKLOADS, Workload, alerts, bluedove, mixed, strings

_RANGE = re.compile(r"(\w+) >= ([\d.]+) AND \w+ < ([\d.]+)")
_EQUALITY = re.compile(r"(\w+) = '(\w+)'")


def match_counts(workload: Workload) -> npt.NDArray[np.int64]:
    """Matches of each event by numpy, for filters that are equalities and ranges joined by AND."""
    columns = {name: workload.events[name].to_numpy() for name in workload.events.column_names}
    ranks = {name: np.array([int(v[1:]) for v in column]) for name, column in columns.items() if column.dtype == object}
    counts = np.zeros(workload.events.num_rows, np.int64)
    for text in workload.filters.to_pylist():
        holds = np.ones(len(counts), bool)
        for name, low, high in _RANGE.findall(text):
            holds &= (columns[name] >= float(low)) & (columns[name] < float(high))
        for name, value in _EQUALITY.findall(text):
            holds &= ranks[name] == int(value[1:])
        counts += holds
    return counts


def boxes(workload: Workload) -> npt.NDArray[np.float64]:
    found: Any = [[bounds[1:] for bounds in _RANGE.findall(text)] for text in workload.filters.to_pylist()]
    return np.array(found, float)


def test_bluedove_gives_each_event_about_110_matches_of_40_000() -> None:
    workload = bluedove(40_000, 500)
    bounds = boxes(workload)
    values = np.stack([workload.events[name].to_numpy() for name in "abcd"], 1)
    counts = [int(((bounds[:, :, 0] <= row) & (row < bounds[:, :, 1])).all(1).sum()) for row in values]
    assert 90 < np.mean(counts) < 135
    assert max(counts) < 3_500


def test_bluedove_copies_per_segment_are_skewed_as_stated() -> None:
    bounds = boxes(bluedove(40_000, 1))
    for dimension, skew in enumerate((2.77, 1.73, 1.73, 2.77)):
        low, high = bounds[:, dimension, 0] // 50, np.ceil(bounds[:, dimension, 1] / 50) - 1
        copies = [np.sum((low <= segment) & (segment <= high)) for segment in range(20)]
        assert max(copies) / np.mean(copies) == pytest.approx(skew, rel=0.02)


def test_bluedove_variants_change_what_they_name() -> None:
    assert bluedove(10, 10, dimensions=2).events.column_names == ["a", "b"]
    assert len(boxes(bluedove(5, 1, dimensions=1))[0]) == 1
    plain, adverse = (bluedove(10, 5_000, adverse=skewed).events["a"].to_numpy() for skewed in (False, True))
    assert adverse.mean() < 250 < plain.mean()
    assert bluedove(100, 1, sigma=1000).filters != bluedove(100, 1).filters


def test_alerts_and_strings_give_each_event_the_matches_stated_for_a_million() -> None:
    assert match_counts(alerts(10_000, 2_000)).mean() * 100 == pytest.approx(43, rel=0.2)
    assert match_counts(strings(10_000, 4_000)).mean() * 100 == pytest.approx(5, rel=0.3)


def test_alerts_constrain_three_attributes_one_or_two_of_them_texts() -> None:
    texts = alerts(2_000, 1).filters.to_pylist()
    equalities = [len(_EQUALITY.findall(text)) for text in texts]
    assert {1, 2} == set(equalities)
    assert np.mean(equalities) == pytest.approx(1.5, abs=0.05)
    for text in texts:
        names = [found[0] for found in _EQUALITY.findall(text) + _RANGE.findall(text)]
        assert len(set(names)) == 3


def test_mixed_has_every_kind_in_its_share_and_missing_values() -> None:
    workload = mixed(20_000, 1_000)
    texts = workload.filters.to_pylist()
    boxes_share = np.mean([len(_RANGE.findall(text)) == 4 for text in texts])
    strings_share = np.mean([text.count("s") == 4 and len(_EQUALITY.findall(text)) == 4 for text in texts])
    residual_share = np.mean([" * 1.5" in text or "LIKE '%" in text for text in texts])
    logic_share = np.mean([bool(re.search(r" OR |NOT |IN \(|LIKE 'v|IS NULL", text)) for text in texts])
    assert [boxes_share, strings_share, residual_share, logic_share] == pytest.approx([0.2, 0.2, 0.1, 0.1], abs=0.01)
    nulls = sum(column.null_count for column in workload.events.columns)
    assert nulls / (1_000 * workload.events.num_columns) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_filter_and_event_of_a_workload_is_legal_and_the_same_each_time(name: str) -> None:
    workload, again = WORKLOADS[name](300, 20), WORKLOADS[name](300, 20)
    assert workload.filters == again.filters
    assert workload.events == again.events
    for text in workload.filters.to_pylist():
        parse_filter(text, workload.domain)
    assert read_events(workload.events, workload.domain).count == 20


def test_the_oracle_and_numpy_count_the_same_matches() -> None:
    workload = alerts(300, 200)
    found = brute_force(enumerate(workload.filters.to_pylist()), workload.events, workload.domain)
    counts = np.bincount([event for event, _ in found], minlength=200)
    assert counts.tolist() == match_counts(workload).tolist()
