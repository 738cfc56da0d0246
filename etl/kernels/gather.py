"""Gather of variable-length values: the bytes of chosen rows, one after the other."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def gathered_bytes(offsets: NDArray[np.int64], index: NDArray[np.int64]) -> int:
    """How many bytes the rows at `index` hold together."""
    total = 0
    for position in range(len(index)):
        row = index[position]
        total += offsets[row + 1] - offsets[row]
    return total


@njit(cache=True, nogil=True)
def gather_bytes(
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    index: NDArray[np.int64],
    out_offsets: NDArray[np.signedinteger],
    out_data: NDArray[np.uint8],
) -> None:
    """Fills `out_offsets` (one longer than `index`) and `out_data` (`gathered_bytes` long)."""
    end = 0
    out_offsets[0] = 0
    for position in range(len(index)):
        row = index[position]
        start = offsets[row]
        length = offsets[row + 1] - start
        for byte in range(length):
            out_data[end + byte] = data[start + byte]
        end += length
        out_offsets[position + 1] = end
