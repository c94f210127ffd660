"""Compare 32 bytes at once, and other things that engines are made of and numba has no words for.

numba does not turn a loop of comparisons into one vector comparison with a bit mask, so they are
written as LLVM vectors here; each has a plain twin (`…_plain`) that says what it does. Arrays are
given by the address of the first byte.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 32
_BYTE, _WORD = ir.IntType(8), ir.IntType(32)
_VECTOR = ir.VectorType(_BYTE, LANES)
_NUMBERS = ir.VectorType(_WORD, 8)
COMPRESSES = bool(binding.get_host_cpu_features().get("avx512vl"))  # whether `write_chosen` is one instruction in four


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _VECTOR.as_pointer()), align=1)


def _splat(builder: Any, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(_WORD, 0))
    lanes = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), lanes)


@intrinsic
def ranges_holding(typingctx, lows, highs, value):
    """Bit j is set where lows[j] <= value <= highs[j]: which of 32 ranges hold one value."""

    def generate(context, builder, signature, arguments):
        low, high, one = arguments
        spread = _splat(builder, one)
        above = builder.icmp_unsigned("<=", _load(builder, low), spread)
        below = builder.icmp_unsigned("<=", spread, _load(builder, high))
        return builder.bitcast(builder.and_(above, below), _WORD)

    return types.uint32(types.uint64, types.uint64, types.uint8), generate


@intrinsic
def ranges_touching(typingctx, lows, highs, value):
    """Bit j is set where value is lows[j] or highs[j]: which of 32 ranges begin or end at one value."""

    def generate(context, builder, signature, arguments):
        low, high, one = arguments
        spread = _splat(builder, one)
        first = builder.icmp_unsigned("==", _load(builder, low), spread)
        last = builder.icmp_unsigned("==", _load(builder, high), spread)
        return builder.bitcast(builder.or_(first, last), _WORD)

    return types.uint32(types.uint64, types.uint64, types.uint8), generate


@intrinsic
def values_within(typingctx, values, low, high):
    """Bit j is set where low <= values[j] <= high: which of 32 values one range holds."""

    def generate(context, builder, signature, arguments):
        address, least, most = arguments
        vector = _load(builder, address)
        above = builder.icmp_unsigned("<=", _splat(builder, least), vector)
        below = builder.icmp_unsigned("<=", vector, _splat(builder, most))
        return builder.bitcast(builder.and_(above, below), _WORD)

    return types.uint32(types.uint64, types.uint8, types.uint8), generate


@intrinsic
def lowest_bit(typingctx, bits):
    """The number of the lowest bit that is set; undefined for 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate


@intrinsic
def count_bits(typingctx, bits):
    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint32(types.uint32), generate


@intrinsic
def prefetch(typingctx, address):
    """Have a cache line brought near, to be read soon: where a loop would wait for one after the other."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, _WORD, _WORD, _WORD])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, ir.Constant(_WORD, 0), ir.Constant(_WORD, 3), ir.Constant(_WORD, 1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


@intrinsic
def borrowed(typingctx, array):
    """The same array, whose references nobody counts: for a function with many that is called in a loop.

    numba counts them at every call, atomically, which may take longer than the call. The array that was given
    has to outlive this one.
    """

    def generate(context, builder, signature, arguments):
        own = context.make_array(signature.args[0])(context, builder, arguments[0])
        own.meminfo = cgutils.get_null_value(own.meminfo.type)
        own.parent = cgutils.get_null_value(own.parent.type)
        return own._getvalue()

    return array(array), generate


@intrinsic
def write_chosen(typingctx, numbers, bits, to):
    """Write those of 32 numbers of 32 bits whose bit is set one after the other."""

    def generate(context, builder, signature, arguments):
        address, chosen, to = arguments
        flags = ir.VectorType(ir.IntType(1), 8)
        kind = ir.FunctionType(ir.VoidType(), [_NUMBERS, _WORD.as_pointer(), flags])
        store = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.compressstore.v8i32")
        for part in range(4):
            some = builder.trunc(builder.lshr(chosen, ir.Constant(_WORD, 8 * part)), _BYTE)
            at = builder.add(address, ir.Constant(address.type, 32 * part))
            values = builder.load(builder.inttoptr(at, _NUMBERS.as_pointer()), align=4)
            builder.call(store, [values, builder.inttoptr(to, _WORD.as_pointer()), builder.bitcast(some, flags)])
            written = builder.zext(builder.ctpop(some), to.type)
            to = builder.add(to, builder.shl(written, ir.Constant(to.type, 2)))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint32, types.uint64), generate


Bytes = npt.NDArray[np.uint8]


def ranges_holding_plain(lows: Bytes, highs: Bytes, value: int) -> int:
    return _bits([low <= value <= high for low, high in zip(lows[:LANES], highs[:LANES], strict=True)])


def ranges_touching_plain(lows: Bytes, highs: Bytes, value: int) -> int:
    return _bits([value in (low, high) for low, high in zip(lows[:LANES], highs[:LANES], strict=True)])


def values_within_plain(values: Bytes, low: int, high: int) -> int:
    return _bits([low <= value <= high for value in values[:LANES]])


def _bits(flags: list[bool]) -> int:
    return sum(1 << lane for lane, flag in enumerate(flags) if flag)
