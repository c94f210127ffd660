"""Subscriptions are read in columns, their ids unique; the ring's subscription id is bit-exact."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import SubscriptionError
from tidings.model.subscription import Subscription, SubscriptionId, SubscriptionIdCodec, read_subscriptions

PAIRS = [("a", "x > 1"), ("b", "x > 2")]


@pytest.mark.parametrize(
    "source",
    [
        PAIRS,
        [list(pair) for pair in PAIRS],
        iter(PAIRS),
        dict(PAIRS),
        [Subscription(*pair) for pair in PAIRS],
        pa.table({"id": ["a", "b"], "filter": ["x > 1", "x > 2"], "note": [1, 2]}),
        pa.record_batch({"id": pa.array(["a", "b"]).dictionary_encode(), "filter": ["x > 1", "x > 2"]}),
        pd.DataFrame({"id": ["a", "b"], "filter": ["x > 1", "x > 2"]}),
        pl.DataFrame({"id": ["a", "b"], "filter": ["x > 1", "x > 2"]}),
    ],
    ids=["pairs", "lists", "iterator", "dict", "objects", "arrow", "batch", "pandas", "polars"],
)
def test_every_kind_of_source_gives_the_same_table(source):
    table = read_subscriptions(source)
    assert table.ids == pa.array(["a", "b"])
    assert table.filters == pa.array(["x > 1", "x > 2"])
    assert (table.subscribers, table.domains, table.valid_from, table.valid_to) == (None, None, None, None)
    assert list(table) == [Subscription(*pair) for pair in PAIRS]
    assert read_subscriptions(table) is table


@pytest.mark.parametrize(
    "ids", [[1, 2], [np.int32(1), np.int64(2)], pa.array([1, 2], pa.uint8()), pa.array([1, 2], pa.uint64())], ids=str
)
def test_integer_ids_are_bigints(ids):
    source = (
        pa.table({"id": ids, "filter": ["", ""]}) if isinstance(ids, pa.Array) else list(zip(ids, "ab", strict=True))
    )
    assert read_subscriptions(source).ids == pa.array([1, 2], pa.int64())


def test_optional_columns_are_kept_with_their_nulls():
    given_subscriptions = [
        Subscription(1, "TRUE", "ann", "stocks", 5, 9),
        Subscription(2, "TRUE"),
        Subscription(3, "TRUE", valid_to=0),
    ]
    table = read_subscriptions(given_subscriptions)
    assert list(table) == given_subscriptions
    assert table.valid_from == pa.array([5, 0, 0])
    assert table.valid_to == pa.array([9, None, 0])
    frame = pd.DataFrame({"id": [1, 2], "filter": ["a", "b"], "valid_to": [7, None]})
    assert read_subscriptions(frame).valid_to == pa.array([7, None], pa.int64())


@pytest.mark.parametrize(
    "source", [[], {}, pa.table({"id": pa.array([], pa.string()), "filter": pa.array([], pa.string())})]
)
def test_there_may_be_no_subscriptions_at_all(source):
    assert len(read_subscriptions(source)) == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([("a", "x"), ("a", "y")], "the id 'a' is there twice, in rows 0 and 1"),
        (pa.table({"id": [3, 4, 3], "filter": ["", "", ""]}), "the id 3 is there twice, in rows 0 and 2"),
        ([("a", "x"), (None, "y")], "row 1: None is no id"),
        (pa.table({"id": ["a", None], "filter": ["", ""]}), "row 1 has no id"),
        ([("a", "x"), ("", "y")], "row 1 has an empty id"),
        ([("a", "x"), (1, "y")], "row 0 is 'a', and in row 1 1; ids are all texts, or all integers"),
        ([(True, "x")], "row 0: True is no id"),
        ([(1.0, "x")], "row 0: 1.0 is no id"),
        ([(1, "x"), (2**63, "x")], "row 1: the id 9223372036854775808 is out of range"),
        ([("\ud800", "x")], "row 0: .*lone surrogate"),
        (
            pa.table({"id": pa.array([2**63], pa.uint64()), "filter": [""]}),
            "row 0: the id 9223372036854775808 is out of",
        ),
        (pd.DataFrame({"id": [1, None], "filter": ["", ""]}), "the column 'id' is double"),
        ([("a", None)], r"subscription 'a' \(row 0\): there is no filter"),
        ([("a", 3)], r"subscription 'a' \(row 0\): filter: 3 is a number"),
        ([("a", "x", "y")], r"row 0: .* is no pair"),
        ([Subscription("a", "x"), ("b", "y")], "row 1: .* is no Subscription"),
        ("a", "not as str"),
        (3, "not as int"),
        (pa.table({"id": [1]}), "there is no column 'filter'"),
        (pa.table({"id": [1], "fliter": [""]}), "did you mean 'fliter'"),
        (pa.table({"id": [1], "filter": [""], "valid_from": [-1]}), "subscription 1 .*valid_from is no position"),
        (pa.table({"id": [1], "filter": [""], "valid_from": [5], "valid_to": [4]}), "valid_to is before valid_from"),
        (pa.table({"id": [1], "filter": [""], "subscriber": [5]}), "subscription 1 .*subscriber: 5 is a number"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_its_row(source, message):
    with pytest.raises(SubscriptionError, match=message):
        read_subscriptions(source)


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": ""}, {"id": None}, {"id": True}, {"id": 1.0}, {"id": 2**63}, {"id": "\ud800"}, {"filter": None},
        {"filter": 3}, {"subscriber": 3}, {"domain": 3}, {"valid_from": -1}, {"valid_from": 1.0}, {"valid_from": None},
        {"valid_from": 3, "valid_to": 2}, {"valid_to": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_subscription_that_cannot_be_is_refused(arguments):
    with pytest.raises(SubscriptionError):
        Subscription(**{"id": "a", "filter": "TRUE", **arguments})


# Triantafillou and Aekaterinidis, "Content-based Publish-Subscribe Over Structured P2P Networks", Figure 3


def test_the_papers_example_is_subscription_3_of_node_4_on_5_attributes():
    codec = SubscriptionIdCodec(owner_bits=3, max_subscriptions=8, attributes=7)
    assert (codec.owner_bits, codec.number_bits, codec.constrained_bits) == (3, 3, 3)
    assert codec.encode(SubscriptionId(owner=4, number=3, constrained=5)) == 0b100_011_101
    assert codec.decode(0b100_011_101) == SubscriptionId(4, 3, 5)


def test_a_million_subscriptions_a_node_take_20_bits():
    assert SubscriptionIdCodec(160, 1_000_000, 5).number_bits == 20


codecs = st.builds(SubscriptionIdCodec, st.integers(1, 160), st.integers(1, 2**40), st.integers(1, 1000))


@given(codecs, st.data())
def test_every_subscription_id_decodes_to_what_was_encoded(codec, data):
    given_id = SubscriptionId(
        data.draw(st.integers(0, 2**codec.owner_bits - 1)),
        data.draw(st.integers(0, codec.max_subscriptions - 1)),
        data.draw(st.integers(0, codec.attributes)),
    )
    packed = codec.encode(given_id)
    assert 0 <= packed < 2**codec.bits
    assert codec.decode(packed) == given_id


@given(codecs, st.data())
def test_a_number_decodes_to_an_id_that_encodes_to_it_or_is_refused(codec, data):
    packed = data.draw(st.integers(0, 2**codec.bits - 1))
    number = (packed >> codec.constrained_bits) % 2**codec.number_bits
    if number < codec.max_subscriptions and packed % 2**codec.constrained_bits <= codec.attributes:
        assert codec.encode(codec.decode(packed)) == packed
    else:
        with pytest.raises(SubscriptionError, match="out of range"):
            codec.decode(packed)


@given(codecs)
def test_parts_out_of_range_are_refused(codec):
    ends = (2**codec.owner_bits, codec.max_subscriptions, codec.attributes + 1)
    for position, end in enumerate(ends):
        for wrong in (-1, end, True, 1.0):
            parts = [0, 0, 0]
            parts[position] = wrong
            with pytest.raises(SubscriptionError, match="out of range"):
                codec.encode(SubscriptionId(*parts))
    for packed in (-1, 2**codec.bits, True):
        with pytest.raises(SubscriptionError, match="is no number of"):
            codec.decode(packed)


@pytest.mark.parametrize("sizes", [(0, 8, 7), (3, 0, 7), (3, 8, 0), (3.0, 8, 7), (True, 8, 7)])
def test_a_codec_needs_sizes_from_1(sizes):
    with pytest.raises(SubscriptionError, match="is a whole number from 1"):
        SubscriptionIdCodec(*sizes)
