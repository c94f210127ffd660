"""A value that is taken apart and put together again is the same; nothing else is ever put together."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.matching.saving.value_codec import Unreadable, decode, encode, stored_fields, write_arrow


@dataclass(frozen=True, slots=True)
class Leaf:
    value: Any
    name: str = "leaf"


@dataclass(frozen=True)
class Checked:
    """A record with code of its own in its constructor."""

    value: int

    def __init__(self, value: int) -> None:
        raise AssertionError("nothing of a class runs when its records are read")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Mutable:
    value: int


KNOWN = stored_fields([sys.modules[__name__]])


def _again(value: Any) -> Any:
    """Through JSON and bytes, as through a file."""
    structure, blobs = encode(value, KNOWN)
    return decode(json.loads(json.dumps(structure)), [memoryview(_bytes_of(blob)) for blob in blobs], KNOWN)


def _bytes_of(blob: Any) -> bytearray:
    if isinstance(blob, np.ndarray):
        return bytearray(blob.tobytes())
    sink = io.BytesIO()
    write_arrow(blob, sink)
    return bytearray(sink.getvalue())


def _same(left: Any, right: Any) -> bool:
    """Equal in type and value, at every level; NaN is itself, and 0.0 is not -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, pa.Array):
        return bool(left.type == right.type and left.equals(right))
    if isinstance(left, np.ndarray):
        alike = (left.dtype, left.shape) == (right.dtype, right.shape)
        return alike and all(map(_same, left.ravel().tolist(), right.ravel().tolist()))
    if isinstance(left, Leaf):
        return _same((left.value, left.name), (right.value, right.name))
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return _same(list(left.items()), list(right.items()))
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or left.hex() == right.hex()
    return str(left) == str(right)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.text(max_size=3)
    | st.decimals(allow_nan=False) | st.sampled_from([1, True, 1.0, Decimal("1"), Decimal("1.0"), 0.0, -0.0, "1"])
)  # fmt: skip
NUMBERS = st.builds(
    lambda values, dtype, order: np.asarray(np.array(values, dtype).reshape(2, -1), order=order),
    st.lists(st.integers(0, 100), max_size=3).map(lambda half: [*half, *half]),
    st.sampled_from(["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float32", "float64"]),
    st.sampled_from("CF"),
)
KEYS = st.text(max_size=3) | st.integers() | st.tuples(st.text(max_size=3), st.text(max_size=3))
VALUES = st.recursive(
    SCALARS | NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(Leaf, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert _same(_again(value), value)


@given(st.lists(SCALARS, max_size=8))
def test_an_array_of_objects_comes_back_value_by_value(values: list[Any]) -> None:
    objects = np.empty(len(values), object)
    objects[:] = values
    assert _same(_again(objects), objects)


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None, "", "ü𝄞"]),
        pa.array([b"\x00\xff", b""]),
        pa.array([1, None, 3], pa.int64()),
        pa.array([True, None, False]),
        pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)),
        pa.array([0, 1], pa.timestamp("us", tz="UTC")),
        pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        pa.array([{"a": 1, "b": "x"}, None]),
        pa.array([], pa.string()),
        pa.array([None, None]),
        pa.array(["long", "longer", "longest"]).slice(1, 1),
        pa.array(["one", "two", "one"]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_an_arrow_array_comes_back_with_its_type(array: Any) -> None:
    assert _same(_again(array), array)


def test_a_part_of_a_long_arrow_array_takes_no_more_than_its_own_bytes() -> None:
    part = pa.array(["x" * 1000] * 1000).slice(500, 2)
    assert len(_bytes_of(part)) < 3000


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("array", [np.arange(6), np.arange(6).reshape(2, 3), np.asfortranarray(np.eye(3))])
def test_an_array_keeps_its_order_and_whether_it_can_be_written_to(array: Any, writeable: bool) -> None:
    array = array.copy(order="K")
    array.flags.writeable = writeable
    flags = _again(array).flags
    assert (flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned) == (
        array.flags.c_contiguous,
        array.flags.f_contiguous,
        writeable,
        True,
    )


def test_an_array_that_lies_scattered_comes_back_together() -> None:
    assert _same(_again(np.arange(12).reshape(3, 4)[:, ::2]), np.arange(12).reshape(3, 4)[:, ::2])


def test_a_number_of_numpy_keeps_its_type() -> None:
    again = _again((np.uint64(7), np.uint64(7), np.float64(0.5), np.bool_(True)))
    assert again == (7, 7, 0.5, True)
    assert [type(value) for value in again] == [np.uint64, np.uint64, np.float64, np.bool_]


def test_a_tree_deeper_than_calls_may_nest_comes_back() -> None:
    tree = Leaf(1)
    for _ in range(3 * sys.getrecursionlimit()):
        tree = Leaf(tree)
    again, depth = _again(tree), 0
    while isinstance(again, Leaf):
        again, depth = again.value, depth + 1
    assert (again, depth) == (1, 3 * sys.getrecursionlimit() + 1)


def test_equal_parts_that_cannot_change_are_written_once_and_lists_never_shared() -> None:
    structure, _ = encode([Leaf((1, "a")) for _ in range(100)], KNOWN)
    assert len(structure["nodes"]) < 10
    first, second = _again([[], []])
    first.append(1)
    assert second == []


def test_an_array_that_is_there_twice_is_written_once() -> None:
    array = np.arange(5)
    assert len(encode([array, Leaf(array), array.copy()], KNOWN)[1]) == 2


def test_a_record_is_read_without_its_constructor() -> None:
    record = object.__new__(Checked)
    object.__setattr__(record, "value", 5)
    again = _again(record)
    assert (type(again), vars(again)) == (Checked, {"value": 5})


@pytest.mark.parametrize("value", [{1, 2}, object(), len, Mutable(1), np.array(["text"]), np.array([1], ">i8"), b"x"])
def test_what_no_file_could_give_back_is_not_written(value: Any) -> None:
    with pytest.raises(AssertionError, match="no class that can be saved"):
        encode([value], KNOWN)


@pytest.mark.parametrize(
    "structure",
    [
        {"classes": [["os.system", ["command"]]], "nodes": ["true", ["record", 0, 0]]},
        {"classes": [["builtins.eval", []]], "nodes": [["record", 0]]},
        {"classes": [[f"{__name__}.Leaf", ["value"]]], "nodes": [1, ["record", 0, 0]]},
        {"classes": [[f"{__name__}.Leaf", ["value", "name", "more"]]], "nodes": [1, ["record", 0, 0, 0, 0]]},
        {"classes": [], "nodes": [["eval", "1 + 1"]]},
        {"classes": [], "nodes": [["array", 0, "<i8", [2], "C", True]]},
    ],
)
def test_a_structure_of_unknown_classes_fields_or_kinds_is_refused(structure: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        decode(structure, [memoryview(bytearray(64))], KNOWN)
