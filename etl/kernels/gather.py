"""Gather of variable-length values: the bytes of chosen rows, one after the other."""

import numpy as np
import numpy.typing as npt
from numba import types

from etl.kernels.compiling import Bytes, Int64s, input_of, kernel, output_of

__all__ = ["gathered_bytes", "gather_bytes"]


@kernel(types.int64(input_of(types.int64), input_of(types.int64)))
def gathered_bytes(offsets: Int64s, index: Int64s) -> int:
    """How many bytes the rows at `index` hold together."""
    total = 0
    for position in range(index.size):
        row = index[position]
        total += offsets[row + 1] - offsets[row]
    return total


@kernel(
    *(
        types.void(
            input_of(types.int64),
            input_of(types.uint8),
            input_of(types.int64),
            output_of(offset_type),
            output_of(types.uint8),
        )
        for offset_type in (types.int32, types.int64)
    )
)
def gather_bytes(
    offsets: Int64s,
    data: Bytes,
    index: Int64s,
    out_offsets: npt.NDArray[np.signedinteger[npt.NBitBase]],
    out_data: Bytes,
) -> None:
    """Fills `out_offsets` (one longer than `index`) and `out_data` (`gathered_bytes` long)."""
    end = 0
    out_offsets[0] = 0
    for position in range(index.size):
        row = index[position]
        start = offsets[row]
        length = offsets[row + 1] - start
        for byte in range(length):
            out_data[end + byte] = data[start + byte]
        end += length
        out_offsets[position + 1] = end
