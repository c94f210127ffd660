"""Events are counted by time: in whatever order they come, and however they are divided, the counts are the same."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.pipeline.jobs.time_buckets import BUCKETS_MAX, SHOWN_MAX, Bucket, Timeline, microseconds, moment, readable

UTC = dt.UTC


def at(text: str) -> int:
    return microseconds(dt.datetime.fromisoformat(text).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("bucket", "time", "start"),
    [
        ("1s", "2024-03-07T12:34:56.789", "2024-03-07T12:34:56"),
        ("15m", "2024-03-07T12:34:56", "2024-03-07T12:30:00"),
        ("1h", "1969-12-31T23:59:59", "1969-12-31T23:00:00"),
        ("6 hours", "2024-03-07T12:34:56", "2024-03-07T12:00:00"),
        ("1 Day", "2024-03-07T12:34:56", "2024-03-07T00:00:00"),
        ("week", "2024-03-07T12:34:56", "2024-03-04T00:00:00"),  # a Monday
        ("1mo", "2024-02-29T23:59:59", "2024-02-01T00:00:00"),
        ("3 months", "2024-06-30T00:00:00", "2024-04-01T00:00:00"),
        ("1y", "1969-07-20T20:17:40", "1969-01-01T00:00:00"),
    ],
)
def test_a_time_is_in_the_bucket_that_a_calendar_puts_it_in(bucket: str, time: str, start: str) -> None:
    parsed = Bucket.parse(bucket)
    assert parsed.starts(parsed.numbers(np.array([at(time)]))).tolist() == [at(start)]
    assert Bucket.parse(str(parsed)) == parsed


@pytest.mark.parametrize("text", ["", "1", "h1", "0h", "1 fortnight", "-1h", "1.5h", "1h30m", "999999y", "999999999w"])
def test_what_is_no_bucket_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="a bucket") as refused:
        Bucket.parse(text)
    assert repr(text) in str(refused.value)


buckets = st.builds(Bucket, st.integers(1, 40), st.sampled_from(["s", "m", "h", "d", "w", "mo", "y"]))


@given(buckets, buckets, st.lists(st.integers(at("1800-01-01"), at("2200-01-01")), min_size=1))
def test_a_bucket_that_holds_another_is_never_crossed_by_it(outer: Bucket, inner: Bucket, times: list[int]) -> None:
    if outer.holds(inner):
        given = np.array(times)
        starts = inner.starts(inner.numbers(given))
        assert (outer.numbers(starts) == outer.numbers(given)).all()


times_of_kinds = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 10**10), st.integers(0, 10**14), st.integers(-(10**16), 10**17)), st.integers(0, 3)
    )
)


@given(times_of_kinds, st.randoms(), st.integers(1, 4))
def test_timelines_that_are_merged_count_what_one_counts(
    events: list[tuple[int, int]], random: Random, parts: int
) -> None:
    timelines = [Timeline(4) for _ in range(parts)]
    shuffled = random.sample(events, len(events))
    for first in range(0, len(shuffled), 3):
        times, kinds = np.array(shuffled[first : first + 3], np.int64).T
        random.choice(timelines).add(times, kinds)
    merged = Timeline(4)
    for timeline in timelines:
        merged.merge(timeline)
    bucket, starts, counts = merged.shown()
    assert counts.sum() == len(events)
    expected = Counter((int(bucket.starts(bucket.numbers(np.array([time])))[0]), kind) for time, kind in events)
    found = {(int(starts[row]), int(kind)): int(counts[row, kind]) for row, kind in zip(*counts.nonzero(), strict=True)}
    assert found == expected
    assert len(starts) <= max(SHOWN_MAX, (10**17 + 10**16) // 10**6 // 86400 // 365 + 2)
    if events:
        assert (merged.first, merged.last) == (min(events)[0], max(time for time, _ in events))


def test_a_given_bucket_is_kept_and_too_many_of_them_are_reported_not_counted() -> None:
    timeline = Timeline(2, Bucket.parse("1m"))
    timeline.add(np.array([at("2024-01-01T00:00:30"), at("2024-01-01T00:02:10")]), np.array([0, 1]))
    bucket, starts, counts = timeline.shown()
    assert (str(bucket), [moment(start).minute for start in starts.tolist()]) == ("1m", [0, 1, 2])
    assert counts.tolist() == [[1, 0], [0, 0], [0, 1]]
    timeline.add(np.array([at("2024-02-01T00:00:00")]), np.array([0]))
    assert timeline.overflows
    assert timeline.needed == 31 * 24 * 60 + 1 > BUCKETS_MAX
    merged = Timeline(2, Bucket.parse("1m"))
    merged.merge(timeline)
    assert merged.overflows


@pytest.mark.parametrize(
    ("of", "last", "most", "expected"),
    [
        ("1h", "2024-01-01T05:00:00", 24, "1h"),
        ("1h", "2024-01-08T00:00:00", 24, "12h"),
        ("1d", "2024-04-01T00:00:00", 24, "1w"),
        ("1w", "2030-01-01T00:00:00", 24, None),  # months do not hold weeks
        ("7h", "2024-02-01T00:00:00", 24, None),
        ("1mo", "2034-01-01T00:00:00", 24, "1y"),
    ],
)
def test_counts_are_taken_together_by_whole_buckets(of: str, last: str, most: int, expected: str | None) -> None:
    found = readable(Bucket.parse(of), at("2024-01-01"), at(last), most)
    assert (None if found is None else str(found)) == expected


def test_a_moment_past_the_calendar_is_its_end() -> None:
    assert moment(-(10**18)) == dt.datetime.min.replace(tzinfo=UTC)
    assert moment(10**18) == dt.datetime.max.replace(tzinfo=UTC)
