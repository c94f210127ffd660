"""What is read quickly is what the strict reading would read, and what that would refuse is left to it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.model import strict_json
from tidings.model.domain import Attribute, Domain
from tidings.service.gateway.json_bodies import BodyLimits, Events, event_lines, many_events
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.quick_json import exact_paths, quick_array, quick_lines

MAX = 1 << 20
LIMITS = BodyLimits(MAX, 8 << 20, 100_000)

texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    [":", '":', "},{", "a\\b", '"', "{", "[", " :"]
)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def objects(draw: st.DrawFn, value: st.SearchStrategy[Any] = values) -> str:
    """An object, written as somebody may write it: with spaces here and there, and a key twice now and then."""
    pairs = draw(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "data"]) | texts, value), max_size=4))
    space = draw(st.sampled_from(["", " ", "\n"]))
    colon = draw(st.sampled_from([":", ": ", " :"]))
    ascii_ = draw(st.booleans())
    written = (
        json.dumps(key, ensure_ascii=ascii_) + colon + json.dumps(one, ensure_ascii=ascii_) for key, one in pairs
    )
    return "{" + f",{space}".join(written) + "}"


def in_doubles(value: Any) -> Any:
    match value:
        case dict():
            return {key: in_doubles(inner) for key, inner in value.items()}
        case list():
            return [in_doubles(inner) for inner in value]
        case Decimal():
            return float(value)
    return value


def strictly(body: str) -> Events | None:
    try:
        found = list(strict_json.read_array(body))
    except strict_json.MalformedError:
        return None
    return Events([in_doubles(one.value) for one in found], [body[one.start : one.end] for one in found])


@given(st.lists(objects() | objects(objects().map(json.loads)), max_size=4), st.sampled_from([",", ", ", ",\n"]))
def test_an_array_is_read_as_strictly_or_not_at_all(events: list[str], comma: str) -> None:
    body = "[" + comma.join(events) + "]"
    quick = quick_array(body.encode(), body, (), MAX)
    if quick is not None:
        assert Events(*quick) == strictly(body)


@given(st.text(alphabet='[]{},:"\\ \n01e.-atrue', max_size=40))
def test_what_is_no_json_is_never_read(body: str) -> None:
    quick = quick_array(body.encode(), body, (), MAX)
    if quick is not None:
        assert Events(*quick) == strictly(body)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_ordinary_events_are_read_quickly(separators: tuple[str, str]) -> None:
    data = [{"n": n, "price": n / 7, "name": f"Zürich {n}", "more": {"tags": ["a", None, True]}} for n in range(5)]
    clouds = [
        {"specversion": "1.0", "id": str(n), "source": "/s", "type": "t", "data": one} for n, one in enumerate(data)
    ]
    for events in (data, clouds):
        written = [json.dumps(event, separators=separators, ensure_ascii=False) for event in events]
        body = "[" + separators[0].join(written) + "]"
        assert quick_array(body.encode(), body, (("n",),), MAX) == (events, written)
        lines = "\r\n".join(written) + "\n"
        assert quick_lines(lines.encode(), lines, (("n",),), MAX) == (events, written)


@pytest.mark.parametrize(
    "event",
    [
        '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '{"a" :1,"a":2}', '{"data": {"a": 1}, "b": [{"c": 1, "c": 2}]}',
        '{"a": 9223372036854775808}', '{"a": 1e999}', '{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1,}', "[1]", "7",
        '{"a": ' * 65 + "1" + "}" * 65, '{"a": "' + "x" * MAX + '"}', '{"a": 1} {"a": 2}', '{"a": "\t"}',
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_with_its_reason(event: str) -> None:
    body = f"[{event}]"
    assert quick_array(body.encode(), body, (), MAX) is None
    with pytest.raises(Problem):
        many_events(body.encode(), LIMITS, ())


def test_an_integer_or_a_decimal_with_a_point_is_read_digit_by_digit() -> None:
    domain = Domain(
        "d",
        [Attribute(name, type_) for name, type_ in {"n": "bigint", "in.fee": "decimal(10,2)", "x": "double"}.items()],
    )
    exact = exact_paths(domain)
    assert exact == (("n",), ("in", "fee"))
    for event in ('{"n":9007199254740993.0}', '{"in":{"fee":8.40}}', '{"specversion":"1.0","data":{"n":1.0}}'):
        for read, body in ((many_events, f"[{event}]"), (event_lines, event)):
            assert "Decimal" in repr(read(body.encode(), LIMITS, exact).objects)
    assert many_events(b'[{"n":1,"x":0.5,"in":{"fee":"8.40"}}]', LIMITS, exact).objects[0]["x"] == 0.5


def test_a_domain_with_integers_in_lists_is_read_digit_by_digit_always() -> None:
    for type_ in ("array<int>", "map<string,decimal(4,2)>", "array<struct<n:bigint>>"):
        assert exact_paths(Domain("d", [Attribute("a", type_)])) is None
    assert exact_paths(Domain("d", [Attribute("a", "array<double>")])) == ()
    assert exact_paths(Domain("d", [Attribute("specversion", "string")])) is None


def test_a_text_that_may_be_too_long_is_not_read_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """orjson would make all of it, with the interpreter's lock held."""
    read: list[str] = []

    def loads(text: str) -> Any:
        read.append(text)
        return json.loads(text)

    monkeypatch.setattr("orjson.loads", loads)
    long = '[{"a":[' + "1," * 200 + "1]}]"
    assert quick_array(long.encode(), long, (), 1000) is None
    assert read == []
    assert quick_array(long.encode(), long, (), 4000) is not None
