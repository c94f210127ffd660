from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.model.strict_json import JsonValue, MalformedError, TooLongError, read_array, read_lines

_leaves = st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=6)
_values = st.dictionaries(st.text(max_size=3), st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3)))


def read_until_too_long(text: str, most: int) -> tuple[list[JsonValue], int | None]:
    """What can be read of an array, and the row that is too long."""
    read = []
    try:
        for found in read_array(text, most):
            read.append(found)
    except TooLongError as error:
        return read, error.row
    return read, None


@given(st.lists(_values, max_size=12), st.integers(1, 60), st.sampled_from([None, 1]))
def test_an_array_is_read_part_by_part_as_in_one_piece(events: list[Any], most: int, indent: int | None) -> None:
    text = json.dumps(events, indent=indent)
    whole = list(read_array(text))
    if all(found.end - found.start <= most for found in whole):
        assert list(read_array(text, most)) == whole
        return
    read, too_long = read_until_too_long(text, most)
    if too_long is not None:
        assert too_long == len(read)
        assert whole[too_long].end - whole[too_long].start > most
    assert read == whole[: len(read)]  # what is a little too long may be read: who asked sees it


@pytest.mark.parametrize("inner", ['"' + "x" * 900 + '"', "[" + "[]," * 300 + "[]]", "1" * 900, '"' + "\\u00e9" * 200])
def test_a_value_that_is_too_long_is_given_up(inner: str) -> None:
    with pytest.raises((TooLongError, MalformedError)) as refused:
        list(read_array(f'[{{}},{{"a":{inner}}},{{}}' + "," * 500 + "]", 100))
    assert refused.value.row == 1


def test_what_is_malformed_is_so_at_its_place_in_the_whole_text() -> None:
    text = "[" + '{"a":1},' * 100 + '{"a" 1}' + ',{"a":1}' * 100 + "]"
    place = text.index('"a" 1') + 4
    with pytest.raises(MalformedError, match=f"at character {place}") as refused:
        list(read_array(text, 20))
    assert refused.value.row == 100
    assert not isinstance(refused.value, TooLongError)


def test_empty_lines_are_none() -> None:
    assert list(read_lines('\n \r\n{"a":1}\n\n\t{"b":2} \r\n\n')) == [('{"a":1}', {"a": 1}), ('{"b":2}', {"b": 2})]
