"""Values as plain nodes and blobs, and back: what a saved matcher is made of.

A value is taken apart into *nodes*, the parts before the whole, so that a tree of any depth is
read back in one pass. Texts, integers, booleans and None are nodes themselves; every other node
is a list that begins with its kind, and names its parts by their numbers. Parts that are equal and
cannot change are written once. Arrays are *blobs* apart from the nodes, as they lie in memory.

Only records of known classes are read, and none of their code runs: fields are set one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.model.arrow import ArrowArray

Blob: TypeAlias = "npt.NDArray[Any] | ArrowArray"
Fields: TypeAlias = Mapping[type, tuple[str, ...]]  # of each class that may be stored, what is stored of it
Structure: TypeAlias = dict[str, Any]  # ready for JSON

_WHOLE = (f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("bool", *_WHOLE, "float16", "float32", "float64")}


class Unreadable(ValueError):
    """A structure that `encode` did not make, or made of classes that have changed since."""


def stored_fields(modules: Iterable[ModuleType]) -> Fields:
    """The fields of every frozen dataclass and NamedTuple that these modules define."""
    found: dict[type, tuple[str, ...]] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__ and (names := _field_names(value)):
                found[value] = names
    return found


def _field_names(class_: type) -> tuple[str, ...]:
    if is_dataclass(class_) and class_.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return tuple(field.name for field in fields(class_))
    return tuple(getattr(class_, "_fields", ())) if issubclass(class_, tuple) else ()


def encode(value: Any, known: Fields) -> tuple[Structure, list[Blob]]:
    """Take a value apart; the blobs are its own arrays, not copies."""
    encoder = _Encoder(known)
    encoder.encode(value)
    classes = [[_name(class_), list(known[class_])] for class_ in encoder.classes]
    return {"classes": classes, "nodes": encoder.nodes}, encoder.blobs


class _Encoder:
    def __init__(self, known: Fields) -> None:
        self._known = known
        self._by_identity: dict[int, int] = {}
        self._by_content: dict[Hashable, int] = {}
        self.classes: dict[type, int] = {}
        self.nodes: list[Any] = []
        self.blobs: list[Blob] = []

    def encode(self, whole: Any) -> None:
        """Add the nodes of a value, its own last. A stack of our own: filters nest deeper than calls should."""
        numbers = self._by_identity
        pending = [whole]
        while pending:
            value = pending[-1]
            if id(value) in numbers:
                pending.pop()
                continue
            parts = self._parts(value)
            missing = [part for part in parts if id(part) not in numbers]
            if missing:
                pending += missing
            else:
                pending.pop()
                numbers[id(value)] = self._number(value, [numbers[id(part)] for part in parts])

    def _parts(self, value: Any) -> Sequence[Any]:
        if type(value) in self._known:
            return [getattr(value, name) for name in self._known[type(value)]]
        if type(value) in (tuple, list):
            return value  # type: ignore[no-any-return]
        if type(value) is dict:
            return [part for item in value.items() for part in item]
        if isinstance(value, np.ndarray) and value.dtype == object:
            return value.ravel().tolist()
        return ()

    def _number(self, value: Any, parts: list[int]) -> int:
        """The number of a value's node: a new one, unless it is immutable and there is one with the same content."""
        node = self._node(value, parts)
        if type(value) in (list, dict) or isinstance(value, np.ndarray | np.generic | pa.Array):
            return self._add(node)
        content = (type(value), *node) if isinstance(node, list) else (type(value), node)
        if content not in self._by_content:
            self._by_content[content] = self._add(node)
        return self._by_content[content]

    def _add(self, node: Any) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _node(self, value: Any, parts: list[int]) -> Any:
        if type(value) in self._known:
            return ["record", self.classes.setdefault(type(value), len(self.classes)), *parts]
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return ["float", value.hex()]
        if type(value) is Decimal:
            return ["decimal", str(value)]
        if type(value) in (tuple, list, dict):
            return [type(value).__name__, *parts]
        if isinstance(value, pa.Array):
            return ["arrow", self._blob(value)]
        if isinstance(value, np.ndarray) and value.dtype == object:
            return ["objects", list(value.shape), *parts]
        if isinstance(value, np.ndarray | np.generic) and value.dtype.str in _DTYPES:
            return self._array(np.asarray(value), scalar=isinstance(value, np.generic))
        raise AssertionError(f"{type(value).__module__}.{type(value).__qualname__} is of no class that can be saved")

    def _array(self, array: npt.NDArray[Any], *, scalar: bool) -> list[Any]:
        """Kernels are compiled for the order of an array and for whether it can be written to, so both are kept."""
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        blob = self._blob(np.ascontiguousarray(array.T if order == "F" else array))
        return ["scalar" if scalar else "array", blob, array.dtype.str, list(array.shape), order, array.flags.writeable]

    def _blob(self, blob: Blob) -> int:
        self.blobs.append(blob)
        return len(self.blobs) - 1


def decode(structure: Structure, blobs: Sequence[memoryview], known: Fields) -> Any:
    """The value again; its arrays are views of the blobs."""
    by_name = {_name(class_): class_ for class_ in known}
    classes: list[type] = []
    for name, names in structure["classes"]:
        if name not in by_name:
            raise Unreadable(f"it has a record of the class {name!r}, which there is not")
        if tuple(names) != known[by_name[name]]:
            raise Unreadable(f"it has records of {name} with other fields: {', '.join(names)}")
        classes.append(by_name[name])
    decoder = _Decoder(classes, [known[class_] for class_ in classes], blobs)
    for node in structure["nodes"]:
        decoder.values.append(decoder.value(node))
    return decoder.values[-1]


class _Decoder:
    def __init__(self, classes: list[type], names: list[tuple[str, ...]], blobs: Sequence[memoryview]) -> None:
        self._classes = classes
        self._names = names
        self._blobs = blobs
        self.values: list[Any] = []

    def value(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        match node:
            case ["record", class_, *parts]:
                return self._record(class_, self._all(parts))
            case ["float", text]:
                return float.fromhex(text)
            case ["decimal", text]:
                return Decimal(text)
            case ["tuple", *parts]:
                return tuple(self._all(parts))
            case ["list", *parts]:
                return self._all(parts)
            case ["dict", *parts]:
                return dict(zip(self._all(parts[::2]), self._all(parts[1::2]), strict=True))
            case ["objects", shape, *parts]:
                objects = np.empty(len(parts), object)
                objects[:] = self._all(parts)
                return objects.reshape(shape)
            case ["arrow", blob]:
                return _arrow_array(self._blobs[blob])
            case ["scalar" | "array" as kind, blob, dtype, shape, "C" | "F" as order, writeable]:
                array = np.ndarray(tuple(shape), _DTYPES[dtype], self._blobs[blob], order=order)
                if array.nbytes != len(self._blobs[blob]):
                    raise Unreadable(f"an array of {array.nbytes} bytes has {len(self._blobs[blob])}")
                array.flags.writeable = writeable
                return array[()] if kind == "scalar" else array
        raise Unreadable(f"it has a node of the kind {node[0]!r}, which there is not")

    def _all(self, parts: list[int]) -> list[Any]:
        return [self.values[part] for part in parts]

    def _record(self, number: int, values: list[Any]) -> Any:
        class_ = self._classes[number]
        if issubclass(class_, tuple):
            return tuple.__new__(class_, values)
        record = object.__new__(class_)
        for name, value in zip(self._names[number], values, strict=True):
            object.__setattr__(record, name, value)
        return record


def write_arrow(array: ArrowArray, sink: Any) -> None:
    """Arrow's own stream of one column: it keeps every type, and is read without a copy."""
    batch = pa.record_batch([array], ["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _arrow_array(blob: memoryview) -> ArrowArray:
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        array = reader.read_next_batch().column(0)
    array.validate()
    return array


def _name(class_: type) -> str:
    return f"{class_.__module__}.{class_.__qualname__}"
