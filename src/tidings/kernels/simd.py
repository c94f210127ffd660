"""Compare 32 or 64 bytes at once, and other things that engines are made of and numba has no words for.

numba does not turn a loop of comparisons into one vector comparison with a bit mask, so they are
written as LLVM vectors here; each has a plain twin (`…_plain`) that says what it does. Arrays are
given by the address of the first byte.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, no-any-return, attr-defined"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

LANES = 32
WIDE = 64  # twice as many, where there are enough to compare; one vector where the processor has such long ones
_BIT, _BYTE, _WORD, _LONG = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
# Whether there is the instruction that `write_chosen` is made of; not where numba is to compile for another processor.
COMPRESSES = (
    config.CPU_NAME is None and config.CPU_FEATURES is None and bool(binding.get_host_cpu_features().get("avx512vl"))
)


def _load(builder: Any, address: Any, lanes: int) -> Any:
    return builder.load(builder.inttoptr(address, ir.VectorType(_BYTE, lanes).as_pointer()), align=1)


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    undefined = ir.Constant(ir.VectorType(_BYTE, lanes), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes))


def _ranges_holding(lanes: int, mask: Any) -> Any:
    @intrinsic
    def holding(typingctx, lows, highs, value):
        """Bit j is set where lows[j] <= value <= highs[j]: which of many ranges hold one value."""

        def generate(context, builder, signature, arguments):
            low, high, one = arguments
            spread = _splat(builder, one, lanes)
            above = builder.icmp_unsigned("<=", _load(builder, low, lanes), spread)
            below = builder.icmp_unsigned("<=", spread, _load(builder, high, lanes))
            return builder.bitcast(builder.and_(above, below), ir.IntType(lanes))

        return mask(types.uint64, types.uint64, types.uint8), generate

    return holding


ranges_holding = _ranges_holding(LANES, types.uint32)
many_ranges_holding = _ranges_holding(WIDE, types.uint64)


@intrinsic
def ranges_touching(typingctx, lows, highs, value):
    """Bit j is set where value is lows[j] or highs[j]: which of 64 ranges begin or end at one value."""

    def generate(context, builder, signature, arguments):
        low, high, one = arguments
        spread = _splat(builder, one, WIDE)
        first = builder.icmp_unsigned("==", _load(builder, low, WIDE), spread)
        last = builder.icmp_unsigned("==", _load(builder, high, WIDE), spread)
        return builder.bitcast(builder.or_(first, last), _LONG)

    return types.uint64(types.uint64, types.uint64, types.uint8), generate


@intrinsic
def values_within(typingctx, values, low, high):
    """Bit j is set where low <= values[j] <= high: which of 64 values one range holds."""

    def generate(context, builder, signature, arguments):
        address, least, most = arguments
        vector = _load(builder, address, WIDE)
        above = builder.icmp_unsigned("<=", _splat(builder, least, WIDE), vector)
        below = builder.icmp_unsigned("<=", vector, _splat(builder, most, WIDE))
        return builder.bitcast(builder.and_(above, below), _LONG)

    return types.uint64(types.uint64, types.uint8, types.uint8), generate


@intrinsic
def lowest_bit(typingctx, bits):
    """The number of the lowest bit that is set; undefined for 0."""

    def generate(context, builder, signature, arguments):
        return _as_word(builder, builder.cttz(arguments[0], ir.Constant(_BIT, 1)))

    return types.uint32(_mask_of(bits)), generate


@intrinsic
def count_bits(typingctx, bits):
    def generate(context, builder, signature, arguments):
        return _as_word(builder, builder.ctpop(arguments[0]))

    return types.uint32(_mask_of(bits)), generate


def _mask_of(bits: Any) -> Any:
    return types.uint64 if bits == types.uint64 else types.uint32


def _as_word(builder: Any, number: Any) -> Any:
    return number if number.type == _WORD else builder.trunc(number, _WORD)


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
    """Write those of 64 numbers of 32 bits whose bit is set one after the other; there has to be room for all 64."""

    def generate(context, builder, signature, arguments):
        address, chosen, to = arguments
        some_numbers, flags = ir.VectorType(_WORD, 16), ir.VectorType(_BIT, 16)
        kind = ir.FunctionType(some_numbers, [some_numbers, some_numbers, flags])
        # In a register, and then all of it written: to have memory written by halves takes several times as long.
        compress = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.mask.compress.v16i32")
        nothing = ir.Constant(some_numbers, [0] * 16)
        for part in range(4):
            some = builder.trunc(builder.lshr(chosen, ir.Constant(chosen.type, 16 * part)), ir.IntType(16))
            at = builder.add(address, ir.Constant(address.type, 64 * part))
            values = builder.load(builder.inttoptr(at, some_numbers.as_pointer()), align=4)
            close = builder.call(compress, [values, nothing, builder.bitcast(some, flags)])
            builder.store(close, builder.inttoptr(to, some_numbers.as_pointer()), align=4)
            written = builder.zext(builder.ctpop(some), to.type)
            to = builder.add(to, builder.shl(written, ir.Constant(to.type, 2)))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


Bytes = npt.NDArray[np.uint8]


def ranges_holding_plain(lows: Bytes, highs: Bytes, value: int) -> int:
    return _bits([low <= value <= high for low, high in zip(lows, highs, strict=True)])


def ranges_touching_plain(lows: Bytes, highs: Bytes, value: int) -> int:
    return _bits([value in (low, high) for low, high in zip(lows, highs, strict=True)])


def values_within_plain(values: Bytes, low: int, high: int) -> int:
    return _bits([low <= value <= high for value in values])


def _bits(flags: list[bool]) -> int:
    return sum(1 << lane for lane, flag in enumerate(flags) if flag)
