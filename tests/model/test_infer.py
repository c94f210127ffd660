"""A domain inferred from data holds all the data it was inferred from."""

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import DomainError, EventError
from tidings.model.domain import path_text
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.model.infer import infer_domain


def types_of(domain):
    return {path_text(path): str(type_) for path, type_ in domain.leaves.items()}


def test_a_sample_of_events_gives_the_types_of_its_kinds():
    sample = [
        {"flag": True, "count": 1, "price": 8.4, "mixed": 1, "name": "2024-01-01", "venue": {"city": "x"}, "a.b": 1},
        {
            "tags": ["a", None],
            "mixed": 1.5,
            "venue": {"hall": {"number": 2}},
            "gone": None,
            "grid": [[1], [2.5]],
            "none": [],
        },
        {"parts": [{"x": 1}, {"y": "z"}], "empty": {}, "venue": None},
    ]
    domain = infer_domain(sample, "stocks")
    assert domain.name == "stocks"
    assert types_of(domain) == {
        "flag": "boolean", "count": "bigint", "price": "double", "mixed": "double", "name": "string",
        "venue.city": "string", "venue.hall.number": "bigint", "`a.b`": "bigint", "tags": "array<string>",
        "gone": "string", "grid": "array<array<double>>", "none": "array<string>",
        "parts": "array<struct<x:bigint,y:string>>",
    }  # fmt: skip
    assert read_events(sample, domain).count == 3


def test_python_values_in_a_sample_have_their_own_types():
    sample = [
        {
            "d": dt.date(2024, 1, 1),
            "t": dt.datetime.now(dt.UTC),
            "n": dt.datetime(2024, 1, 1),
            "b": b"x",
            "f": Decimal("1.5"),
        }
    ]
    expected = {"d": "date", "t": "timestamp", "n": "timestamp_ntz", "b": "binary", "f": "double"}
    assert types_of(infer_domain(sample)) == expected
    assert types_of(infer_domain([{"i": np.int8(1), "f": np.float32(1), "a": np.array([1.5])}])) == {
        "i": "bigint",
        "f": "double",
        "a": "array<double>",
    }


def test_cloudevents_in_a_sample_are_unwrapped():
    wrapped = {"specversion": "1.0", "id": "1", "source": "/x", "type": "tick", "data": {"price": 8.4}}
    assert types_of(infer_domain([wrapped])) == {"price": "double"}


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ([{"x": 1}, {"x": "a"}], "attribute 'x' is bigint in one event and string in another"),
        ([{"x": True}, {"x": 1}], "attribute 'x' is boolean in one event and bigint in another"),
        ([{"x": {"y": 1}}, {"x": {"y": [1]}}], "attribute 'x.y' is bigint in one event and array in another"),
        ([{"x": ["a", 1]}], "attribute 'x' is string in one event and bigint in another"),
        ([{"x": 2**63}], "attribute 'x' has 9223372036854775808, which is beyond 64 bits"),
        ([{"x": object}], "attribute 'x' has .* a type, which is no value of an event"),
        ([{1: 2}], "the key 1 is no text"),
        ([{"": 2}], "no attribute's name"),
        ([{}, 3], "row 1 of the sample: an event is an object"),
        ([{"specversion": "1.0"}], "row 0 of the sample: a CloudEvent needs 'id'"),
        ({"x": 1}, "not from dict"),
        ("x", "not from str"),
        (3, "not from int"),
    ],
)
def test_a_sample_that_gives_no_domain_is_refused(sample, message):
    with pytest.raises(DomainError, match=f"domain.*: .*{message}"):
        infer_domain(sample)


def test_an_arrow_schema_table_and_batch_give_the_same_domain():
    table = pa.table({"a": pa.array([1], pa.uint8()), "b": [{"c.d": 1.5}], "e": pa.array(["x"]).dictionary_encode()})
    expected = {"a": "smallint", "b.`c.d`": "double", "e": "string"}
    for data in (table, table.schema, table.to_batches()[0]):
        assert types_of(infer_domain(data)) == expected


def test_an_arrow_type_without_counterpart_is_refused_with_its_attribute():
    with pytest.raises(DomainError, match=r"domain 'events': attribute 'x': type: Arrow's duration\[us\] .*; cast"):
        infer_domain(pa.schema([("x", pa.duration("us"))]))


def test_data_frames_give_the_types_of_their_columns():
    expected = {"i": "bigint", "f": "double", "s": "string", "t": "timestamp_ntz", "l": "array<bigint>"}
    columns = {"i": [1], "f": [1.5], "s": ["x"], "t": [dt.datetime(2024, 1, 1)], "l": [[1]]}
    assert types_of(infer_domain(pd.DataFrame(columns))) == expected
    assert types_of(infer_domain(pl.DataFrame(columns))) == expected
    assert types_of(infer_domain(pl.LazyFrame(columns))) == expected
    with pytest.raises(DomainError, match="attribute 'x' has values of different kinds"):
        infer_domain(pd.DataFrame({"x": [1, "a"]}))


class SparkSchema:
    """As pyspark's StructType speaks, without a Java to start."""

    def jsonValue(self):
        return json.loads("""{"type": "struct", "fields": [
            {"name": "a b", "type": "integer", "nullable": true, "metadata": {}},
            {"name": "s", "nullable": true, "metadata": {}, "type": {"type": "struct", "fields": [
                {"name": "x.y", "type": "decimal(10,2)", "nullable": true, "metadata": {}}]}},
            {"name": "l", "nullable": true, "metadata": {}, "type":
                {"type": "array", "elementType": "timestamp_ntz", "containsNull": true}},
            {"name": "m", "nullable": true, "metadata": {}, "type":
                {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": true}},
            {"name": "v", "type": "void", "nullable": true, "metadata": {}}]}""")


class SparkFrame:
    """As pyspark's DataFrame does: it would run a job to become Arrow."""

    schema = SparkSchema()
    sparkSession = None

    def __arrow_c_stream__(self, requested_schema=None):
        raise AssertionError("a job ran")

    def collect(self):
        raise AssertionError("a job ran")

    def toArrow(self):
        raise AssertionError("a job ran")


def test_a_spark_schema_or_frame_gives_its_types():
    expected = {
        "`a b`": "int",
        "s.`x.y`": "decimal(10,2)",
        "l": "array<timestamp_ntz>",
        "m": "map<string,bigint>",
        "v": "string",
    }
    assert types_of(infer_domain(SparkSchema())) == expected
    assert types_of(infer_domain(SparkFrame())) == expected
    with pytest.raises(EventError, match=r"call its toArrow\(\) first"):
        read_events(SparkFrame(), infer_domain(SparkFrame()))


def test_pysparks_own_struct_type_is_read():
    spark = pytest.importorskip("pyspark.sql.types")
    every = (
        "boolean",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    )
    schema = spark.StructType([spark.StructField(name, spark._parse_datatype_json_value(name)) for name in every])
    assert list(types_of(infer_domain(schema)).values()) == [
        "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
        "timestamp_ntz",
    ]  # fmt: skip
    with pytest.raises(DomainError, match="attribute 'x': type: unknown type 'interval"):
        infer_domain(spark.StructType([spark.StructField("x", spark.DayTimeIntervalType())]))
    with pytest.raises(DomainError, match="a Spark schema is a StructType"):
        infer_domain(spark.StringType())


SCALARS = [
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab€", max_size=3),
]
SHAPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        inner.map(lambda of: st.lists(st.none() | of, max_size=2))
        | st.dictionaries(st.text("ab. `", min_size=1, max_size=3), inner, min_size=1, max_size=3).map(
            lambda fields: st.fixed_dictionaries({}, optional=fields)
        )
    ),
    max_leaves=4,
)


@given(st.data())
def test_every_sample_fits_the_domain_inferred_from_it(data):
    shapes = data.draw(st.dictionaries(st.text("abc.", min_size=1, max_size=3), SHAPES, max_size=4))
    sample = data.draw(st.lists(st.fixed_dictionaries({}, optional=shapes), max_size=4))
    assert read_events(sample, infer_domain(sample)).count == len(sample)
    body = json.dumps(sample)
    assert read_events(parse_events(body), infer_domain(parse_events(body))).count == len(sample)
