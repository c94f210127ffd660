"""A value fits where its type holds exactly that value; columns follow the rule for one value."""

import base64
import datetime as dt
import math
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.model.arrow import arrow_type
from tidings.model.event import fit_column, fit_values
from tidings.model.event_values import Misfit, fit, python_value, shown
from tidings.model.types import array, parse_type

FITS = [
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("tinyint", 127, 127),
    ("tinyint", -128, -128),
    ("bigint", 2**53 + 1, 2**53 + 1),
    ("bigint", 1.0, 1),
    ("bigint", -0.0, 0),
    ("bigint", Decimal("1.0"), 1),
    ("bigint", Decimal("1E+3"), 1000),
    ("bigint", np.int8(3), 3),
    ("double", 1, 1.0),
    ("double", 2**53, float(2**53)),
    ("double", 2**60, float(2**60)),
    ("double", Decimal("0.1"), 0.1),
    ("double", math.inf, math.inf),
    ("double", Decimal("Infinity"), math.inf),
    ("double", np.float32(0.5), 0.5),
    ("float", 0.1, 0.10000000149011612),
    ("float", Decimal("0.1"), 0.10000000149011612),
    ("float", 2**24, 16777216.0),
    ("float", 3.4028235e38, 3.4028234663852886e38),
    ("float", -math.inf, -math.inf),
    ("decimal(10,2)", 8, Decimal("8.00")),
    ("decimal(10,2)", 8.4, Decimal("8.40")),
    ("decimal(10,2)", Decimal("8.400"), Decimal("8.40")),
    ("decimal(10,2)", "-8.4", Decimal("-8.40")),
    ("decimal(10,2)", Decimal("-0"), Decimal("0.00")),
    ("decimal(38,0)", 10**37, Decimal(10**37)),
    ("decimal(38,38)", "0." + "1" * 38, Decimal("0." + "1" * 38)),
    ("string", "", ""),
    ("string", "𝄞 naïve", "𝄞 naïve"),
    ("date", "1970-01-02", 1),
    ("date", "0001-01-01", -719162),
    ("date", dt.date(9999, 12, 31), 2932896),
    ("timestamp", "1970-01-01T00:00:00Z", 0),
    ("timestamp", "1970-01-01t01:30:00.5+01:30", 500_000),
    ("timestamp", "1969-12-31 23:00:00-01:00", 0),
    ("timestamp", "1970-01-01T00:00:00.0000010000Z", 1),
    ("timestamp", dt.datetime(1970, 1, 1, 1, tzinfo=ZoneInfo("Europe/Paris")), 0),
    ("timestamp", pd.Timestamp("1970-01-01T00:00:00.000001Z"), 1),
    ("timestamp_ntz", "1970-01-01T00:00:01", 1_000_000),
    ("timestamp_ntz", dt.datetime(1970, 1, 1, 0, 0, 0, 7), 7),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("binary", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
    ("array<bigint>", [1, None, 2.0], [1, None, 2]),
    ("array<bigint>", np.array([1, 2]), [1, 2]),
    ("array<date>", ["1970-01-02"], [1]),
    ("array<string>", [], []),
    ("map<string,int>", {"a": 1.0}, [("a", 1)]),
    ("map<int,int>", [(1, None)], [(1, None)]),
    ("array<struct<a:int,b:date>>", [{"a": 1, "c": 9}, None], [{"a": 1, "b": None}, None]),
    *((type_, None, None) for type_ in ("int", "string", "date", "array<int>", "map<int,int>", "binary")),
]

MISFITS = [
    ("boolean", 1, "a number, which does not fit boolean"),
    ("boolean", "true", "a text"),
    ("tinyint", 128, r"out of range \(-128 to 127\)"),
    ("bigint", 2**63, "out of range"),
    ("bigint", 10**5000, "out of range"),
    ("bigint", 1.5, "1.5 is no whole number"),
    ("bigint", 2.0**63, "out of range"),
    ("bigint", math.nan, "no whole number"),
    ("bigint", -math.inf, "no whole number"),
    ("bigint", Decimal("NaN"), "no whole number"),
    ("bigint", Decimal("1E+999999"), "out of range"),
    ("bigint", Decimal("1E-999999"), "no whole number"),
    ("bigint", True, "True is a boolean"),
    ("bigint", "1", "'1' is a text"),
    ("bigint", [1], "a list"),
    ("double", 2**53 + 1, "would be rounded"),
    ("double", 10**400, "out of range"),
    ("double", Decimal("1E+400"), "out of range"),
    ("double", Decimal("sNaN"), "does not fit"),
    ("double", False, "a boolean"),
    ("double", "1.0", "a text"),
    ("float", 2**24 + 1, "would be rounded"),
    ("float", 1e39, "out of range"),
    ("decimal(10,2)", 8.401, "more digits after the point"),
    ("decimal(10,2)", 0.1 + 0.2, "more digits after the point"),
    ("decimal(4,2)", 100, "more digits than"),
    ("decimal(4,2)", Decimal("1E+999999"), "more digits than"),
    ("decimal(4,2)", math.nan, "no number"),
    ("decimal(4,2)", math.inf, "no number"),
    ("decimal(4,2)", True, "a boolean"),
    ("decimal(4,2)", "1e1", "plain digits"),
    ("decimal(4,2)", "", "plain digits"),
    ("decimal(4,2)", "١", "plain digits"),
    ("decimal(4,2)", "1\n", "plain digits"),
    ("string", 1, "a number"),
    ("string", b"a", "bytes"),
    ("string", "a\ud800", "lone surrogate"),
    ("date", dt.datetime(2024, 1, 1), "give its .date()"),
    ("date", "2024-1-1", "write it as YYYY-MM-DD"),
    ("date", "2024-02-30", "no day of the calendar"),
    ("date", "0000-01-01", "no day of the calendar"),
    ("date", 5, "a number"),
    ("timestamp", "2024-01-01T00:00:00", "times need an offset"),
    ("timestamp", dt.datetime(2024, 1, 1), "times need an offset"),
    ("timestamp", "2024-01-01", "no time"),
    ("timestamp", "2024-01-01T00:00:00.1234567Z", "digits beyond microseconds"),
    ("timestamp", "2024-01-01T24:00:00Z", "no time of the calendar"),
    ("timestamp", "2024-01-01T00:00:00+24:00", "no time"),
    ("timestamp", "0001-01-01T00:00:00+01:00", "outside the years"),
    ("timestamp", "9999-12-31T23:59:59-01:00", "outside the years"),
    ("timestamp", dt.date(2024, 1, 1), "a date"),
    ("timestamp", pd.Timestamp(1, tz="UTC"), "digits beyond microseconds"),
    ("timestamp", pd.NaT, "NaT is no time"),
    ("timestamp", 0, "a number"),
    ("timestamp", np.datetime64("2024-01-01"), "a datetime64"),
    ("timestamp_ntz", "2024-01-01T00:00:00Z", "has no offset"),
    ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "has no offset"),
    ("timestamp_ntz", "later", "no time"),
    ("binary", "***", "no base64"),
    ("binary", "é", "no base64"),
    ("binary", 1, "a number"),
    ("array<int>", "abc", "a text"),
    ("array<int>", {"a": 1}, "an object"),
    ("array<int>", [1, "2"], "element 1: '2' is a text"),
    ("map<string,int>", {"a": "b"}, "the value of 'a': 'b' is a text"),
    ("map<string,int>", [(None, 1)], "a key of a map is NULL"),
    ("map<string,int>", [1], "a list"),
    ("array<struct<a:int>>", [{"a": 1.5}], "element 0: field 'a': 1.5 is no whole number"),
    ("array<struct<a:int>>", [1], "element 0: 1 is a number"),
]


@pytest.mark.parametrize(("type_", "value", "kept"), FITS, ids=lambda x: ascii(shown(x)))
def test_a_value_that_its_type_holds_is_kept_in_one_form(type_, value, kept):
    fitted = fit(value, parse_type(type_))
    assert fitted == kept
    assert type(fitted) is type(kept)
    if isinstance(kept, Decimal):
        assert fitted.as_tuple() == kept.as_tuple()


@pytest.mark.parametrize(("type_", "value", "reason"), MISFITS, ids=lambda x: ascii(shown(x)))
def test_a_value_that_its_type_cannot_hold_is_refused(type_, value, reason):
    with pytest.raises(Misfit, match=reason):
        fit(value, parse_type(type_))


def test_nan_is_a_value_of_float_and_double():
    assert math.isnan(fit(math.nan, parse_type("double")))
    assert math.isnan(fit(math.nan, parse_type("float")))


@pytest.mark.parametrize("type_", sorted({type_ for type_, _, _ in FITS}))
def test_a_column_of_python_values_keeps_and_refuses_as_each_value_alone(type_):
    cases = [value for name, value, *_ in FITS + MISFITS if name == type_]
    check_column(fit_values(cases, parse_type(type_)), cases, parse_type(type_))


def same(left, right):
    return repr(left) == repr(right)  # tells -0.0 from 0.0, and NaN is NaN


def check_column(fitted, values, type_):
    column, misfits = fitted
    assert column.type == arrow_type(type_)
    column.validate(full=True)
    assert len(column) == len(values)
    for position, value in enumerate(values):
        try:
            expected = fit(value, type_)
        except Misfit:
            assert position in misfits
            assert not column[position].is_valid
        else:
            assert position not in misfits
            assert same(python_value(column[position], type_), expected)


DOUBLES = st.floats() | st.integers(-(2**70), 2**70).map(float) | st.sampled_from([2.0**63, -(2.0**63), 1e39, 0.1, 8.4])
EDGES = st.sampled_from([127, 128, -129, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, -(2**63), 0, 7])
SOURCES = {
    pa.int8(): st.integers(-128, 127),
    pa.uint8(): st.integers(0, 255),
    pa.int64(): EDGES | st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): DOUBLES,
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3) | EDGES.filter(lambda x: abs(x) < 10**9).map(Decimal),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal) | EDGES.map(Decimal),
    pa.decimal256(50, 1): st.decimals(-(10**48), 10**48, places=1),
    pa.string(): st.sampled_from(
        ["1970-01-02", "1.5", "12", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00", "YQ==", ""]
    ),
    pa.large_string(): st.text(st.characters(codec="utf-8")),
    pa.string_view(): st.text(st.characters(codec="utf-8")),
    pa.binary(): st.binary(),
    pa.large_binary(): st.binary(),
    pa.bool_(): st.booleans(),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", "1970-01-02"]),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(dt.UTC)),
}
TARGETS = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,0)",
    "decimal(3,3)", "string", "date", "timestamp", "timestamp_ntz", "binary", "array<int>", "map<string,int>",
]  # fmt: skip


@given(st.sampled_from(list(SOURCES)), st.sampled_from(TARGETS), st.data())
def test_a_column_of_arrow_keeps_and_refuses_as_each_value_alone(source, target, data):
    values = data.draw(st.lists(st.none() | SOURCES[source], max_size=6))
    column = pa.array(values, pa.float64() if source == pa.float32() else source).cast(source)
    check_column(fit_column(column, parse_type(target)), values, parse_type(target))


@given(
    st.sampled_from(list(SOURCES)),
    st.sampled_from(TARGETS[:-2]),
    st.sampled_from(["list", "large", "fixed", "view"]),
    st.data(),
)
def test_a_column_of_lists_keeps_and_refuses_as_each_list_alone(source, target, shape, data):
    type_ = array(parse_type(target))
    sizes = {"min_size": 2, "max_size": 2} if shape == "fixed" else {"max_size": 3}
    values = data.draw(st.lists(st.none() | st.lists(st.none() | SOURCES[source], **sizes), max_size=4))
    column = {
        "list": lambda: pa.array(values, pa.list_(source)),
        "large": lambda: pa.array(values, pa.large_list(source)),
        "fixed": lambda: pa.array(values, pa.list_(source, 2)),
        "view": lambda: pa.array(values, pa.list_view(source)),
    }[shape]()
    cut = data.draw(st.integers(0, len(values)))
    check_column(fit_column(column.slice(cut), type_), values[cut:], type_)


def test_a_decimal_half_way_past_the_greatest_float_is_refused_in_a_column_too():
    column = pa.array([Decimal("340282356779733642748073463979561713664.0")], pa.decimal256(50, 1))
    fitted, misfits = fit_column(column, parse_type("float"))
    assert fitted.to_pylist() == [None]
    assert "out of range" in misfits[0]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_become_microseconds_where_exact(unit):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    column = pa.array([per_second, None, -per_second], pa.timestamp(unit, tz="America/New_York"))
    fitted, misfits = fit_column(column, parse_type("timestamp"))
    assert (fitted.cast(pa.int64()).to_pylist(), misfits) == ([10**6, None, -(10**6)], {})


def test_times_that_do_not_fit_are_named():
    fitted, misfits = fit_column(pa.array([1, 1000, None, -1], pa.timestamp("ns")), parse_type("timestamp_ntz"))
    assert fitted.cast(pa.int64()).to_pylist() == [None, 1, None, None]
    assert misfits == dict.fromkeys([0, 3], "the time has digits beyond microseconds")
    for column, type_ in [
        (pa.array([2**62], pa.timestamp("us")), "timestamp_ntz"),
        (pa.array([2**62], pa.timestamp("s", tz="UTC")), "timestamp"),
        (pa.array([2**30], pa.int32()).view(pa.date32()), "date"),
        (pa.array([-(2**60)], pa.int64()).view(pa.date64()), "date"),
    ]:
        fitted, misfits = fit_column(column, parse_type(type_))
        assert (fitted.null_count, misfits) == (1, {0: "the time is outside the years 0001 to 9999"})
    midnight = pa.array([86_400_000, 1], pa.int64()).view(pa.date64())
    fitted, misfits = fit_column(midnight, parse_type("date"))
    assert (fitted.cast(pa.int32()).to_pylist(), misfits) == ([1, None], {1: "the time has a time of day"})


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        (pa.array([1], pa.time32("s")), "timestamp"),
        (pa.array([1], pa.duration("ns")), "bigint"),
        (pa.array([1], pa.timestamp("us")), "date"),
        (pa.array([1], pa.date32()), "timestamp_ntz"),
        (pa.array([{"a": 1}]), "int"),
        (pa.array([[1]]), "int"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.duration("ns"))), "map<string,int>"),
    ],
    ids=str,
)
def test_a_column_of_another_kind_is_refused_row_by_row(column, type_):
    column = pa.concat_arrays([column, pa.nulls(1, column.type)])
    fitted, misfits = fit_column(column, parse_type(type_))
    assert (fitted.null_count, list(misfits)) == (2, [0])


@pytest.mark.parametrize("type_", [*TARGETS, "array<timestamp>", "array<string>", "map<string,double>"])
def test_a_column_of_the_types_own_arrow_type_is_not_copied(type_):
    values = {"array<int>": [[1], None], "array<timestamp>": [[1], None], "array<string>": [["a"], None]}
    values |= {
        "map<string,int>": [[("a", 1)], None],
        "map<string,double>": [[("a", 1.0)], None],
        "boolean": [True, None],
    }
    values |= {"string": ["a", None], "binary": [b"a", None]}
    of_decimals = [Decimal("0.001" if type_ == "decimal(3,3)" else 1), None]
    column = pa.array(
        values.get(type_, of_decimals if "decimal" in type_ else [1, None]), arrow_type(parse_type(type_))
    )
    fitted, misfits = fit_column(column, parse_type(type_))
    assert misfits == {}
    addresses = [buffer and buffer.address for buffer in fitted.buffers()]
    assert addresses == [buffer and buffer.address for buffer in column.buffers()]
