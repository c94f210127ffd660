"""Publishers' JSON is read strictly: exact numbers, and a clear refusal of everything doubtful."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import EventError
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.model.event_json import MAX_BATCH_BYTES, MAX_EVENT_BYTES, parse_events
from tidings.model.strict_json import MAX_DEPTH


def nested(depth):
    return '{"a":' + "[" * (depth - 1) + '"é"' + "]" * (depth - 1) + "}"


@pytest.mark.parametrize(
    ("body", "events"),
    [
        ('{"a": 1}', [{"a": 1}]),
        (b' \r\n\t{"a": 1} ', [{"a": 1}]),
        ("[]", []),
        (' [ {"a": 1} , {} ] ', [{"a": 1}, {}]),
        ('{"a": "\\ud834\\udd1e"}', [{"a": "𝄞"}]),
        ('{"a": null, "b": [true, false]}', [{"a": None, "b": [True, False]}]),
        ('{"a": {"x": 1}, "b": {"x": 2}}', [{"a": {"x": 1}, "b": {"x": 2}}]),
        ('{"a": -9223372036854775808, "b": 9223372036854775807}', [{"a": -(2**63), "b": 2**63 - 1}]),
        (nested(MAX_DEPTH), [json.loads(nested(MAX_DEPTH))]),
    ],
)
def test_one_object_or_an_array_of_objects_is_read(body, events):
    assert parse_events(body) == events


def test_lines_are_read_one_event_each():
    assert parse_events('{"a": 1}\r\n\n {"a": "\u2028"}\n', lines=True) == [{"a": 1}, {"a": "\u2028"}]
    assert parse_events("", lines=True) == []


@pytest.mark.parametrize(
    "number",
    ["0.1234567890123456789012345", "-7.00000000000000000001", "12345678901234567.5", "1e99", "9.99E-307"],
)
def test_digits_after_the_point_are_as_many_as_one_likes_and_a_double_is_the_nearest(number):
    domain = Domain("d", [Attribute("ratio", "double")])
    (one,) = parse_events(f'{{"ratio": {number}}}')
    assert one == {"ratio": Decimal(number)}
    assert read_events([one, {}, one], domain).columns["ratio",].to_pylist() == [float(number), None, float(number)]


@pytest.mark.parametrize("number", ["1E+400", "sNaN"])
def test_a_decimal_that_no_double_is_near_to_is_refused_by_its_row(number):
    events = [{"ratio": Decimal("0.5")}, {"ratio": Decimal(number)}]
    batch = read_events(events, Domain("d", [Attribute("ratio", "double")]), on_error="reject")
    assert [(reject.row, reject.attribute) for reject in batch.rejects] == [(1, "ratio")]


def test_numbers_stay_exact():
    domain = Domain(
        "d", [Attribute("money", "decimal(10,2)"), Attribute("ratio", "double"), Attribute("count", "bigint")]
    )
    events = parse_events('{"money": 8.40, "ratio": 0.1, "count": 9007199254740993}')
    assert read_events(events, domain).record(0) == {
        ("money",): Decimal("8.40"),
        ("ratio",): 0.1,
        ("count",): 2**53 + 1,
    }
    assert read_events(parse_events('{"money": 8, "ratio": 1e300, "count": 1.0}'), domain).record(0) == {
        ("money",): Decimal("8.00"),
        ("ratio",): 1e300,
        ("count",): 1,
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("\ufeff{}", "byte order mark"),
        (b'{"a": "\xff"}', "not UTF-8, at byte 7"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        ("", "the body is empty"),
        (" \n", "the body is empty"),
        ("{", "malformed JSON"),
        ('{"a": 1,}', "malformed JSON"),
        ("{'a': 1}", "malformed JSON"),
        ('{"a": 01}', "malformed JSON"),
        ('{"a": "\n"}', "malformed JSON: Invalid control character"),
        (
            '{"a": 1} {"a": 2}',
            "there is more at character 9, after what should be all; send several as an array",
        ),
        ("[{}] x", "there is more at character 5"),
        ("[{} {}]", "row 0: malformed JSON: expected a comma"),
        ("[{},]", "row 1: malformed JSON"),
        ("[{}", "row 0: malformed JSON"),
        ("[{}, 3]", "row 1: an event is an object, and this is a number: 3"),
        ("3", "an event is an object"),
        ('"x"', "an event is an object"),
        ('[{}, {"a": 1, "b": 2, "a": 3}]', "row 1: the key 'a' is there twice"),
        ('{"x": {"a": 1, "\\u0061": 2}}', "the key 'a' is there twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": 1e400}', "1e400 is beyond the range of a double"),
        ('{"a": 9223372036854775808}', "beyond 64 bits"),
        ('{"a": -9223372036854775809}', "beyond 64 bits"),
        ('{"a": ' + "9" * 10_000 + "}", "beyond 64 bits"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ('{"\\udfff": 1}', "lone surrogate"),
        ('{"a": "\ud800"}', "lone surrogate"),
        ('{"a": 1e-99999999999999999999}', "an exponent that is too long"),
        (nested(MAX_DEPTH + 1), "more than 64 levels deep"),
        (nested(100_000), "more than 64 levels deep"),
        ('[{}, {"a": "' + "x" * MAX_EVENT_BYTES + '"}]', r"row 1: the event has \d+ bytes, and at most 1048576"),
        (b" " * (MAX_BATCH_BYTES + 1), "the body has 8388609 bytes, and at most 8388608"),
    ],
    ids=lambda x: ascii(x)[:40],
)
def test_what_is_doubtful_is_refused(body, message):
    with pytest.raises(EventError, match=message):
        parse_events(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{}\n{"a": ', "row 1: malformed"),
        ("{} {}", "row 0: .* there is more"),
        ("{}\n[{}]", "row 1: an event"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_row(body, message):
    with pytest.raises(EventError, match=message):
        parse_events(body, lines=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=4), max_size=4), st.booleans())
def test_events_read_back_what_they_write(events, escaped):
    assert parse_events(json.dumps(events, ensure_ascii=escaped)) == events
    assert parse_events("\n".join(json.dumps(event, ensure_ascii=escaped) for event in events), lines=True) == events


@given(st.binary(max_size=40) | st.text('[]{},:"\\ue1.-0truefalsnd8 ', max_size=30), st.booleans())
def test_any_body_is_read_or_refused_and_nothing_else(body, lines):
    try:
        events = parse_events(body, lines=lines)
    except EventError:
        return
    assert all(isinstance(event, dict) for event in events)
