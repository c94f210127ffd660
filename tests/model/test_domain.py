"""Domains find attributes as Spark does, refuse what cannot be, and round-trip."""

import datetime as dt
import pickle
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import DomainError
from tidings.model import types
from tidings.model.domain import Attribute, Domain, dump_domains, load_domains, parse_path, path_text
from tidings.model.infer import infer_domain
from tidings.model.types import array, decimal, parse_type, struct

STOCKS = Domain(
    "stocks",
    [
        Attribute("exchange", "string", allowed=["NYSE", "NASDAQ"]),
        Attribute("price", "decimal(10,2)", min=0, max="20.00", precision=0.01, unit="EUR"),
        Attribute("venue", "struct<country:string,city:string>"),
        Attribute("venue.hall", "int"),
        Attribute("`a.b`", "array<int>"),
        Attribute("opened", "date", min="1990-01-01"),
    ],
    indices=[("exchange", "venue.city")],
)


def test_a_struct_is_expanded_into_its_leaves_in_order():
    assert STOCKS.leaves == {
        ("exchange",): types.STRING,
        ("price",): decimal(10, 2),
        ("venue", "country"): types.STRING,
        ("venue", "city"): types.STRING,
        ("venue", "hall"): types.INT,
        ("a.b",): array(types.INT),
        ("opened",): types.DATE,
    }
    assert STOCKS.names == ["exchange", "price", "venue.country", "venue.city", "venue.hall", "`a.b`", "opened"]


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("price",), ("price",)),
        (("PRICE",), ("price",)),
        (("Venue", "CITY"), ("venue", "city")),
        (("a.b",), ("a.b",)),
        (("a", "b"), None),
        (("prise",), None),
        (("price", "x"), None),
    ],
)
def test_find_prefers_exact_names_and_else_disregards_case(parts, path):
    found = STOCKS.find(parts)
    assert (found and found[0]) == path
    assert found is None or found[1] == STOCKS.leaves[found[0]]


def test_find_gives_the_type_of_a_struct_with_all_its_fields():
    fields = struct(("country", types.STRING), ("city", types.STRING), ("hall", types.INT))
    assert STOCKS.find(("VENUE",)) == (("venue",), fields)


def test_names_that_differ_by_case_alone_are_ambiguous_unless_exact():
    domain = Domain("d", [Attribute("Price", "int"), Attribute("price", "double")])
    assert domain.find(("price",)) == (("price",), types.DOUBLE)
    with pytest.raises(DomainError, match="'PRICE' is ambiguous; write 'Price' or 'price'"):
        domain.find(("PRICE",))


def test_a_declared_attribute_is_found_by_its_path():
    price = STOCKS.attribute(("price",))
    assert price is not None
    assert (price.min, price.max, price.precision) == (Decimal("0.00"), Decimal("20.00"), Decimal("0.01"))
    assert STOCKS.attribute(("venue", "city")) is None


@pytest.mark.parametrize(
    ("type_", "given_value", "kept"),
    [
        ("double", 1, 1.0),
        ("double", Decimal("0.1"), 0.1),
        ("bigint", 5.0, 5),
        ("date", "1970-01-02", 1),
        ("date", dt.date(1970, 1, 3), 2),
        ("date", 3, 3),
        ("timestamp", "1970-01-01T01:00:00+01:00", 0),
        ("timestamp", dt.datetime(1970, 1, 1, tzinfo=dt.UTC), 0),
        ("timestamp_ntz", dt.datetime(1970, 1, 1, 0, 0, 1), 1_000_000),
        ("decimal(4,2)", "1.5", Decimal("1.50")),
        ("string", "x", "x"),
        ("boolean", False, False),
    ],
)
def test_limits_are_kept_in_the_one_form_of_their_type(type_, given_value, kept):
    attribute = Attribute("x", type_, min=given_value, allowed=[given_value])
    assert attribute.min == kept
    assert type(attribute.min) is type(kept)
    assert attribute.allowed == (kept,)
    assert Attribute("x", attribute.type, min=attribute.min, allowed=attribute.allowed) == attribute


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "dubble"}, "attribute 'x': type: unknown type 'dubble'; did you mean 'double'"),
        ({"type": 3}, "a type is a text"),
        ({"type": "int", "min": 1.5}, "min: 1.5 is no whole number"),
        ({"type": "int", "min": "1"}, "min: '1' is a text"),
        ({"type": "int", "min": 3, "max": 2}, "min 3 is above max 2"),
        ({"type": "int", "max": 2, "allowed": [3]}, "the allowed 3 is outside"),
        ({"type": "int", "allowed": [None]}, "allowed None is no bound"),
        ({"type": "string", "allowed": "abc"}, "allowed is a list"),
        ({"type": "double", "min": float("nan")}, "min nan is no bound"),
        ({"type": "double", "max": float("inf")}, "max inf is no bound"),
        ({"type": "double", "precision": 0}, "precision 0 is no step"),
        ({"type": "string", "precision": 1}, "precision is for numbers"),
        ({"type": "array<int>", "min": 1}, "min is for scalar types"),
        ({"type": "date", "max": 10**9}, "max 1000000000 is outside the years"),
        ({"type": "int", "unit": 3}, "the unit is a text"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(DomainError, match=message):
        Attribute("x", **arguments)


@pytest.mark.parametrize(
    ("attributes", "indices", "message"),
    [
        ([("a", "int"), ("a", "int")], [], "attribute 'a' is there twice"),
        ([("a", "struct<b:int>"), ("a.b", "int")], [], "attribute 'a.b' is there twice"),
        ([("a", "int"), ("a.b", "int")], [], "attribute 'a' is int, so there is no 'a.b' in it"),
        ([("price", "int")], [["prise"]], r"index \(prise\): unknown attribute 'prise'; did you mean 'price'"),
        ([("a", "array<int>")], [["a"]], "an index is over scalar attributes"),
        ([("a", "int")], [["a", "a"]], "'a' is there twice"),
        ([("a", "int")], [["a"], ["a"]], "an index is there twice"),
        ([("a", "int")], [[]], "an index is empty"),
    ],
)
def test_a_domain_that_cannot_be_is_refused(attributes, indices, message):
    with pytest.raises(DomainError, match=f"domain 'd': .*{message}"):
        Domain("d", [Attribute(*attribute) for attribute in attributes], indices)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "`", "`a", "``", "a`b", "`a`b", "\ud800"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(DomainError, match="no attribute's name"):
        Attribute(name, "int")


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1).map(tuple))
def test_every_path_reads_back_what_it_writes(path):
    assert parse_path(path_text(path)) == path


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
LIMITS = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "decimal(38,10)": st.decimals(-(10**27), 10**27, places=10),
    "string": TEXTS,
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
}


@st.composite
def domains(draw):
    names = draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=5, unique=True))
    attributes = []
    for name in names:
        type_ = draw(
            st.sampled_from([*LIMITS, "struct<a:int,b:struct<`c.d`:string>>", "map<string,int>", "array<date>"])
        )
        arguments = {}
        if type_ in LIMITS:
            low, high = sorted((draw(LIMITS[type_]), draw(LIMITS[type_])))
            arguments = draw(st.sampled_from([{}, {"min": low}, {"max": high}, {"min": low, "max": high}]))
            allowed = draw(st.lists(st.sampled_from([low, high]), max_size=2))
            arguments = {**arguments, "allowed": allowed, "unit": draw(st.none() | TEXTS)}
        if parse_type(type_).is_datetime or type_ == "bigint":
            arguments["precision"] = draw(st.none() | st.integers(1, 2**40))
        attributes.append(Attribute(path_text((name,)), type_, **arguments))
    scalars = [attribute.name for attribute in attributes if attribute.type.is_scalar]
    indices = [draw(st.permutations(scalars))] if scalars and draw(st.booleans()) else []
    return Domain(draw(TEXTS.filter(bool)), attributes, indices)


@given(domains())
def test_every_domain_round_trips_through_toml_json_and_pickle(domain):
    assert Domain.from_toml(domain.to_toml()) == domain
    assert Domain.from_json(domain.to_json()) == domain
    assert Domain.from_json(domain.to_dict()) == domain
    assert pickle.loads(pickle.dumps(domain)) == domain
    assert str(domain)


@settings(max_examples=40)
@given(st.lists(domains(), max_size=3, unique_by=lambda domain: domain.name), st.sampled_from(["toml", "json"]))
def test_several_domains_round_trip_in_one_file(several, form):
    assert load_domains(dump_domains(several, form=form) + "\n") == {domain.name: domain for domain in several}


def test_domains_are_loaded_from_a_path_of_either_form(tmp_path):
    for name, text in {"one.toml": STOCKS.to_toml(), "many.json": dump_domains([STOCKS], form="json")}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert load_domains(tmp_path / name) == {"stocks": STOCKS}
        assert load_domains(str(tmp_path / name)) == {"stocks": STOCKS}


def test_tomls_own_dates_and_times_are_read():
    text = """
        name = "d"
        attributes = [
            { name = "day", type = "date", min = 2024-05-01 },
            { name = "at", type = "timestamp", max = 1970-01-01T00:00:01Z },
            { name = "price", type = "decimal(4,2)", precision = 0.01 },
        ]
    """
    day, at, price = Domain.from_toml(text).attributes
    assert (day.min, at.max, price.precision) == (19844, 1_000_000, Decimal("0.01"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = \n", "this is not TOML"),
        ("{", "this is not JSON"),
        ("attributes = []\n", "a domain has no name"),
        ('{"name": "d", "attributes": {}}', "domain 'd': attributes are a list"),
        ('{"name": "d", "attributes": [3]}', "domain 'd': attribute 0 is an object"),
        ('{"name": "d", "attributes": [{"name": "x"}]}', "domain 'd': attribute 'x' has no type"),
        ('{"name": "d", "attributes": [{"type": "int"}]}', "domain 'd': attribute 0 has no name"),
        (
            '{"name": "d", "attributes": [{"name": "x", "type": "int", "mni": 1}]}',
            "unknown key 'mni'; did you mean 'min'",
        ),
        ('{"name": "d", "atributes": []}', "unknown key 'atributes'; did you mean 'attributes'"),
        ('{"name": "d", "indices": ["a"]}', "indices are lists"),
        ('{"name": "d", "name": "e"}', "the key 'name' is there twice"),
        ('{"domains": [{"name": "d"}, {"name": "d"}]}', "domain 'd' is there twice"),
        ('{"domains": 3}', "domains are listed"),
        (
            '{"name": "d", "attributes": [{"name": "x", "type": "int", "min": "a"}]}',
            "domain 'd': attribute 'x': min: 'a'",
        ),
        ("no/such/file.toml", "cannot read the file"),
    ],
)
def test_an_error_in_a_domain_file_names_domain_and_attribute(text, message):
    with pytest.raises(DomainError, match=message):
        load_domains(text)


def test_a_domain_prints_itself_as_an_aligned_table():
    assert str(STOCKS) == (
        "domain stocks\n"
        "  name        type                                min         max    precision  unit  allowed\n"
        "  exchange    string                                                                  NYSE, NASDAQ\n"
        "  price       decimal(10,2)                       0.00        20.00  0.01       EUR\n"
        "  venue       struct<country:string,city:string>\n"
        "  venue.hall  int\n"
        "  `a.b`       array<int>\n"
        "  opened      date                                1990-01-01\n"
        "  index (exchange, venue.city)"
    )


@pytest.mark.parametrize(
    "name", ["_tidings_position", "_tidings_", "_TIDINGS_Time", "`_tidings_a.b`", "_tidings_s.field", "_tıdİngſ_x"]
)
def test_a_name_of_tidings_own_columns_is_refused_in_any_case(name):
    with pytest.raises(DomainError, match="names that begin with _tidings_ are Tidings' own; rename it"):
        Attribute(name, "int")
    with pytest.raises(DomainError, match="Tidings' own"):
        infer_domain([{parse_path(name)[0]: 1}])


@pytest.mark.parametrize(
    "name", ["position", "time", "subscriptions_version", "rejected", "_tiding", "s._tidings_position"]
)
def test_any_other_name_is_an_attribute(name):
    assert Domain("d", [Attribute(name, "int")]).names == [name]
