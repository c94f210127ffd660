"""Types are read as Spark writes them, written back the same, and have one Arrow type each."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import DomainError
from tidings.model import types
from tidings.model.arrow import arrow_type, from_arrow
from tidings.model.types import array, decimal, mapping, parse_type, struct

SCALARS = [
    types.BOOLEAN, types.TINYINT, types.SMALLINT, types.INT, types.BIGINT, types.FLOAT, types.DOUBLE, types.STRING,
    types.DATE, types.TIMESTAMP, types.TIMESTAMP_NTZ, types.BINARY,
]  # fmt: skip

decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: decimal(p, s)))
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
any_type = st.recursive(
    st.sampled_from(SCALARS) | decimals,
    lambda inner: st.one_of(
        inner.map(array),
        st.tuples(inner, inner).map(lambda pair: mapping(*pair)),
        st.lists(st.tuples(names, inner), min_size=1, max_size=4, unique_by=lambda field: field[0]).map(
            lambda fields: struct(*fields)
        ),
    ),
    max_leaves=6,
)


@given(any_type)
def test_every_type_reads_back_what_it_writes(type_):
    assert parse_type(str(type_)) == type_


@given(any_type)
def test_every_type_has_one_arrow_type_that_leads_back_to_it(type_):
    assert from_arrow(arrow_type(type_)) == type_


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("BIGINT", types.BIGINT),
        (" integer ", types.INT),
        ("long", types.BIGINT),
        ("real", types.FLOAT),
        ("timestamp_ltz", types.TIMESTAMP),
        ("varchar(10)", types.STRING),
        ("decimal", decimal(10, 0)),
        ("numeric(5)", decimal(5, 0)),
        ("decimal( 10 , 2 )", decimal(10, 2)),
        ("array<array<int>>", array(array(types.INT))),
        ("struct<A:int, b double>", struct(("A", types.INT), ("b", types.DOUBLE))),
        ("struct<`a b`:int,`c``d`:int>", struct(("a b", types.INT), ("c`d", types.INT))),
        ("map<string,struct<x:int>>", mapping(types.STRING, struct(("x", types.INT)))),
    ],
)
def test_a_type_is_read_as_spark_sql_writes_it(text, type_):
    assert parse_type(text) == type_


@pytest.mark.parametrize(
    "text",
    [
        "", "strin", "interval", "struct<a", "struct<>", "struct<a:>", "struct<a:int", "struct<a:int,>", "struct<:int>",
        "struct<a:int,a:int>", "array<int", "array<>", "array<int>>", "array", "map<int>", "map<int,int", "bigint x",
        "decimal(", "decimal(a,b)", "decimal(0,0)", "decimal(39,0)", "decimal(2,3)", "decimal(5,-1)", "int(3)",
        "`int`", "`",
        "array<" * 70 + "int" + ">" * 70, "decimal(" + "9" * 5000 + ")",
    ],
)  # fmt: skip
def test_what_is_no_type_is_refused(text):
    with pytest.raises(DomainError, match="type: "):
        parse_type(text)


def test_a_misspelt_type_brings_the_nearest_one():
    with pytest.raises(DomainError, match="unknown type 'strng'; did you mean 'string'"):
        parse_type("strng")


@pytest.mark.parametrize(
    ("arrow", "type_"),
    [
        (pa.uint8(), types.SMALLINT),
        (pa.uint16(), types.INT),
        (pa.uint32(), types.BIGINT),
        (pa.uint64(), decimal(20, 0)),
        (pa.float16(), types.FLOAT),
        (pa.large_string(), types.STRING),
        (pa.string_view(), types.STRING),
        (pa.dictionary(pa.int8(), pa.string()), types.STRING),
        (pa.run_end_encoded(pa.int32(), pa.int64()), types.BIGINT),
        (pa.date64(), types.DATE),
        (pa.timestamp("s"), types.TIMESTAMP_NTZ),
        (pa.timestamp("ns", tz="Europe/Paris"), types.TIMESTAMP),
        (pa.decimal256(20, 3), decimal(20, 3)),
        (pa.decimal128(5, -2), decimal(7, 0)),
        (pa.large_list(pa.uint8()), array(types.SMALLINT)),
        (pa.list_(pa.int8(), 3), array(types.TINYINT)),
        (pa.binary(4), types.BINARY),
        (pa.null(), types.STRING),
    ],
)
def test_an_arrow_type_becomes_the_one_that_holds_all_its_values(arrow, type_):
    assert from_arrow(arrow) == type_


@pytest.mark.parametrize(
    "arrow", [pa.time32("s"), pa.duration("us"), pa.month_day_nano_interval(), pa.decimal256(60, 2), pa.struct([])]
)
def test_an_arrow_type_that_spark_has_none_for_is_refused_with_what_to_do(arrow):
    with pytest.raises(DomainError, match=r"Arrow's .*; (cast|leave)"):
        from_arrow(arrow)
