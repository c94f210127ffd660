"""Events become columns that fit their domain; what does not fit is named by row and attribute."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import EventError
from tidings.model.arrow import arrow_type
from tidings.model.domain import Attribute, Domain
from tidings.model.event import Reject, read_events, read_record

STOCKS = Domain(
    "stocks",
    [
        Attribute("symbol", "string"),
        Attribute("price", "double", min=0, max=20),
        Attribute("volume", "bigint"),
        Attribute("venue", "struct<city:string,hall:struct<number:int>>"),
        Attribute("at", "timestamp"),
        Attribute("tags", "array<string>"),
    ],
)
EMPTY = dict.fromkeys(STOCKS.leaves)


def test_events_become_one_column_of_its_own_type_for_every_leaf():
    events = [{"symbol": "OTE", "price": 8.4, "venue": {"city": "Athens"}, "tags": ["a", None], "unknown": 1}, {}]
    batch = read_events(events, STOCKS)
    assert {path: column.type for path, column in batch.columns.items()} == {
        path: arrow_type(type_) for path, type_ in STOCKS.leaves.items()
    }
    assert list(batch.columns) == list(STOCKS.leaves)
    assert (batch.count, batch.rows.tolist(), batch.rejects) == (2, [0, 1], [])
    assert batch.record(0) == {
        **EMPTY,
        ("symbol",): "OTE",
        ("price",): 8.4,
        ("venue", "city"): "Athens",
        ("tags",): ["a", None],
    }
    assert batch.record(1) == EMPTY
    assert batch.source is events  # with the unknown attribute


def test_values_beyond_the_declared_min_and_max_are_legal():
    assert read_events([{"price": -5.0}, {"price": 1e9}], STOCKS).count == 2


def test_a_value_that_does_not_fit_raises_with_row_and_attribute():
    with pytest.raises(EventError, match=r"event: row 1, attribute 'volume': 1\.5 is no whole number") as caught:
        read_events([{"volume": 1}, {"volume": 1.5}, {"price": "x"}], STOCKS)
    assert (caught.value.row, caught.value.attribute) == (1, "volume")


def test_rejected_rows_are_left_out_and_listed_in_order():
    events = [
        {"symbol": "a", "volume": "1", "price": True},
        {"symbol": "b"},
        {"symbol": "c", "venue": 3},
        "no event",
        {"symbol": "d", "venue": {"hall": [1]}},
        None,
        {"symbol": "e", "venue": {"hall": {"number": 2**31}}},
        {"symbol": "f"},
    ]
    batch = read_events(events, STOCKS, on_error="reject")
    assert batch.rows.tolist() == [1, 7]
    assert batch.rows.dtype == np.int64
    assert batch.columns[("symbol",)].to_pylist() == ["b", "f"]
    assert [(reject.row, reject.attribute) for reject in batch.rejects] == [
        (0, "price"), (0, "volume"), (2, "venue"), (3, None), (4, "venue.hall"), (5, None), (6, "venue.hall.number"),
    ]  # fmt: skip
    assert batch.rejects[3] == Reject(3, None, "an event is an object, and this is a text: 'no event'")


def test_a_cloudevent_is_its_data():
    wrapped = {"specversion": "1.0", "id": "1", "source": "/x", "type": "tick", "data": {"price": 8.4}}
    assert read_events([wrapped], STOCKS).record(0) == {**EMPTY, ("price",): 8.4}
    assert read_events([{**wrapped, "data": None}], STOCKS).record(0) == EMPTY


@pytest.mark.parametrize(
    ("change", "attribute"),
    [
        ({"id": None}, "id"),
        ({"source": ""}, "source"),
        ({"type": 3}, "type"),
        ({"specversion": "0.3"}, "specversion"),
        ({"data": [1]}, "data"),
        ({"data": "text"}, "data"),
        ({"data_base64": "AA=="}, "data_base64"),
    ],
)
def test_a_cloudevent_that_lacks_what_it_needs_is_refused(change, attribute):
    wrapped = {"specversion": "1.0", "id": "1", "source": "/x", "type": "tick", "data": {}, **change}
    with pytest.raises(EventError) as caught:
        read_events([wrapped], STOCKS)
    assert (caught.value.row, caught.value.attribute) == (0, attribute)


def test_a_domain_with_an_attribute_specversion_has_plain_records():
    domain = Domain("d", [Attribute("specversion", "string")])
    assert read_events([{"specversion": "1.0"}], domain).record(0) == {("specversion",): "1.0"}


def test_a_nested_attribute_is_a_nested_object_and_a_dotted_key_is_a_flat_one():
    domain = Domain("d", [Attribute("a.b", "int"), Attribute("`a.b`", "int")])
    assert read_events([{"a.b": 1, "a": {"b": 2}}], domain).record(0) == {("a", "b"): 2, ("a.b",): 1}
    table = pa.table({"a.b": [1], "a": [{"b": 2}]})
    assert read_events(table, domain).record(0) == {("a", "b"): 2, ("a.b",): 1}


def test_arrow_passes_without_a_copy_and_structs_hand_down_their_nulls():
    price = pa.array([8.4, None, math.nan])
    venue = pa.StructArray.from_arrays(
        [pa.array(["Athens", "hidden", None])], names=["city"], mask=pa.array([False, True, False])
    )
    for table in (pa.table({"price": price, "venue": venue}), pa.record_batch({"price": price, "venue": venue})):
        batch = read_events(table, STOCKS)
        assert batch.columns[("price",)].buffers()[1].address == price.buffers()[1].address
        assert batch.columns[("venue", "city")].to_pylist() == ["Athens", None, None]
        assert math.isnan(batch.record(2)[("price",)])


def test_chunks_are_joined():
    table = pa.concat_tables([pa.table({"volume": [1]}), pa.table({"volume": [2]})])
    column = read_events(table, STOCKS).columns[("volume",)]
    assert isinstance(column, pa.Array)
    assert column.to_pylist() == [1, 2]


def test_rows_of_arrow_that_do_not_fit_are_named():
    table = pa.table({"volume": [1.0, 1.5, None], "venue": [1, None, None], "symbol": ["a", "b", "c"]})
    batch = read_events(table, STOCKS, on_error="reject")
    assert batch.columns[("symbol",)].to_pylist() == ["c"]
    assert [(reject.row, reject.attribute) for reject in batch.rejects] == [(0, "venue"), (1, "volume")]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(
            {"price": [8.4, math.nan], "symbol": ["OTE", None], "at": pd.to_datetime(["1970-01-01", None], utc=True)}
        ),
        pd.DataFrame({"price": [8.4, None], "symbol": ["OTE", math.nan]}).convert_dtypes(),
        pd.DataFrame({"price": [Decimal("8.4"), pd.NA], "symbol": ["OTE", pd.NA]}, dtype=object),
        pd.DataFrame({"price": pd.array([8.4, math.nan], dtype="double[pyarrow]"), "symbol": ["OTE", None]}),
        pd.DataFrame({"price": [8.4, None], "symbol": pd.Categorical(["OTE", None])}),
    ],
    ids=["numpy", "nullable", "objects", "arrow", "categories"],
)
def test_missing_values_of_pandas_are_null(frame):
    batch = read_events(frame, STOCKS)
    first = {path: value for path, value in batch.record(0).items() if path != ("at",)}
    assert first[("price",)] == 8.4
    assert first[("symbol",)] == "OTE"
    assert batch.record(1) == EMPTY
    assert batch.source is frame


def test_objects_in_pandas_are_judged_one_by_one():
    times = [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1)]
    frame = pd.DataFrame(
        {"at": pd.Series(times, dtype=object), "tags": [["a"], [None]], "venue": [{"city": "x"}, None]}
    )
    batch = read_events(frame, STOCKS, on_error="reject")
    assert [(reject.row, reject.attribute) for reject in batch.rejects] == [(1, "at")]
    assert batch.record(0) == {**EMPTY, ("at",): 0, ("tags",): ["a"], ("venue", "city"): "x"}


def test_a_nan_of_polars_is_nan():
    frame = pl.DataFrame(
        {"price": [8.4, math.nan, None], "tags": [["a"], None, []], "venue": [{"city": "x"}, None, None]}
    )
    batch = read_events(frame, STOCKS)
    assert batch.record(0) == {**EMPTY, ("price",): 8.4, ("tags",): ["a"], ("venue", "city"): "x"}
    assert math.isnan(batch.record(1)[("price",)])
    assert batch.record(2) == {**EMPTY, ("tags",): []}


@pytest.mark.parametrize("nothing", [[], pa.table({}), pd.DataFrame(), pl.DataFrame(), iter(())])
def test_there_may_be_no_events(nothing):
    batch = read_events(nothing, STOCKS)
    assert batch.count == 0
    assert all(len(column) == 0 for column in batch.columns.values())


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ({"price": 1.0}, "put the one event in brackets"),
        ('{"price": 1.0}', "read JSON text with parse_events"),
        (3, "not int"),
        (pl.LazyFrame({"price": [1.0]}), r"call its collect\(\) first"),
        (pa.table([[1], [2]], names=["price", "price"]), "attribute 'price': two columns have this name"),
    ],
)
def test_what_is_no_list_of_events_is_refused(events, message):
    with pytest.raises(EventError, match=message):
        read_events(events, STOCKS)


def test_on_error_is_one_of_two_words():
    with pytest.raises(ValueError, match="on_error is 'raise' or 'reject'"):
        read_events([], STOCKS, on_error="ignore")


def test_a_record_beyond_the_batch_is_an_index_error():
    with pytest.raises(IndexError):
        read_events([{}], STOCKS).record(1)


TIMES = st.datetimes(timezones=st.just(dt.UTC))
NUMBERS = st.integers(-(2**65), 2**65) | st.floats() | st.decimals(allow_nan=False)
LISTS = st.lists(st.none() | st.text(max_size=2), max_size=2)
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=3) | st.dates() | st.datetimes() | TIMES | LISTS
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "symbol": st.text(max_size=3) | VALUES,
        "price": st.floats() | VALUES,
        "volume": st.integers(-(2**63), 2**63 - 1) | VALUES,
        "venue": VALUES
        | st.fixed_dictionaries(
            {}, optional={"city": VALUES, "hall": VALUES | st.fixed_dictionaries({"number": VALUES})}
        ),
        "at": TIMES | VALUES,
        "tags": VALUES,
    },
)


@given(st.lists(EVENTS | VALUES, max_size=5))
def test_a_batch_keeps_and_refuses_as_each_event_alone(events):
    batch = read_events(events, STOCKS, on_error="reject")
    kept = {int(row): batch.record(i) for i, row in enumerate(batch.rows)}
    first = {}
    for reject in reversed(batch.rejects):
        first[reject.row] = (reject.attribute, reject.reason)
    for row, event in enumerate(events):
        if row in first:
            with pytest.raises(EventError) as caught:
                read_record(event, STOCKS)
            assert first[row] == (caught.value.attribute, caught.value.reason)
        else:
            assert repr(kept[row]) == repr(read_record(event, STOCKS))
