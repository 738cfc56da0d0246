"""The few machine instructions that NumPy has no name for, for use inside kernels.

A load trusts its address: the kernels compute addresses only from the bounds of a live array.
"""

# ruff: noqa: ANN401 - the compiler's own objects (contexts, builders, values) have no types to name

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["load_8", "load_16", "load_32", "load_64", "multiply_high", "prefetch"]

Address = int | np.integer[Any]
Load = Callable[[Address], np.uint64]


def _load(bits: int) -> Load:
    """An unaligned little-endian load of `bits` at an address, widened to 64 bits with zeros."""

    def typing(_typing_context: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.uint64(types.uintp), generate

    return cast(Load, intrinsic(typing))


def _multiply_high(_typing_context: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of the 128-bit product of two unsigned 64-bit numbers."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


def _prefetch(_typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address; never faults, whatever the address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte_pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        name = "llvm.prefetch.p0"
        function = cgutils.get_or_insert_function(builder.module, function_type, name)  # type: ignore[no-untyped-call]
        to_read, keep_close, data_cache = number(0), number(3), number(1)
        pointer = builder.inttoptr(arguments[0], byte_pointer)
        builder.call(function, [pointer, to_read, keep_close, data_cache])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


load_8 = _load(8)
load_16 = _load(16)
load_32 = _load(32)
load_64 = _load(64)
multiply_high = cast(Callable[[np.uint64, np.uint64], np.uint64], intrinsic(_multiply_high))
prefetch = cast(Callable[[Address], None], intrinsic(_prefetch))
