"""How kernels are compiled.

A kernel declares its one signature. Inputs are declared read-only, which accepts writeable arrays too, so a
memory map and a fresh array run the same machine code instead of compiling it twice.

Limit: numba's cache watches only the file that defines a kernel. After editing a `@helper` or an intrinsic,
remove the `__pycache__` folders of the package, or the kernels keep the old code.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.core.typing.templates import Signature

__all__ = [
    "Bools",
    "Bytes",
    "Int32s",
    "Int64s",
    "UInt32s",
    "UInt64s",
    "EVERY_ROW",
    "input_of",
    "output_of",
    "tuple_of",
    "kernel",
    "helper",
    "signed",
    "validity",
]

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]

Function = TypeVar("Function", bound=Callable[..., Any])

EVERY_ROW: Bools = np.empty(0, dtype=np.bool_)
"""What a kernel gets for `valid=None`: an empty mask, because None would be a second signature."""


def input_of(element: types.Type) -> types.Type:
    """The type of a one-dimensional array that a kernel reads."""
    return types.Array(element, 1, "C", readonly=True)


def output_of(element: types.Type) -> types.Type:
    """The type of a one-dimensional array that a kernel writes."""
    return types.Array(element, 1, "C")


def tuple_of(*elements: types.Type) -> types.Type:
    """The type of a tuple, as an argument or as a result."""
    return cast(types.Type, types.Tuple(elements))  # type: ignore[no-untyped-call]


def kernel(*signatures: Signature) -> Callable[[Function], Function]:
    """Compile a function for these signatures only; it runs without the interpreter lock."""

    def compile_now(function: Function) -> Function:
        return cast(Function, njit(list(signatures), cache=True, nogil=True)(function))

    return compile_now


def helper(function: Function) -> Function:
    """Mark a function that kernels call; it is compiled into each of them."""
    return cast(Function, njit(nogil=True, inline="never")(function))


@helper
def signed(value: np.integer[Any]) -> int:
    """A number as an index: in a kernel, an unsigned number plus a signed one would be a float."""
    return np.int64(value)  # type: ignore[return-value]


def validity(valid: Bools | None, length: int) -> Bools:
    """The mask as the kernels take it; refuses one that does not cover the rows."""
    if valid is None:
        return EVERY_ROW
    if valid.size != length:
        raise ValueError(f"the validity mask has {valid.size} values for {length} rows: give one per row, or None")
    return np.ascontiguousarray(valid, dtype=np.bool_)
