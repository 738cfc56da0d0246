"""A stable 64-bit hash of one or several key columns, straight from their buffers.

The hash of a value is the same in every process, on every machine and in every release: files are sorted by
it and rows are sent to partitions by it. (Little-endian only; the golden values in the tests pin it.) What
counts is the value, not its container: an int32 5 hashes like an int64 5, a string like the same large
string.

- An integer of at most 8 bytes is widened to 64 bits and put through SplitMix64's finaliser.
- Bytes are taken 16 at a time and folded with a 64 x 64 -> 128-bit product, in the manner of wyhash.
- Several columns are combined in order, each hashed on its own, so ("a", "bc") and ("ab", "c") differ.

All 64 bits are well mixed: the high bits pick a partition, the low bits a slot. The hash has no secret, so it
does not withstand someone who makes up keys in order to collide; results stay right then (keys are compared),
only slower.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import types

from etl.kernels.cells import COLUMN, RawColumn, is_word, range_at, word_at
from etl.kernels.columns import ColumnView, Kind
from etl.kernels.compiling import Bools, UInt64s, helper, kernel, output_of
from etl.kernels.intrinsics import load_8, load_32, load_64, multiply_high

__all__ = ["KeyHashes", "hash_columns", "proves_equality"]


class KeyHashes(NamedTuple):
    """The hash of each row's key; `valid` is None when no key holds a null. An invalid key hashes to 0."""

    hashes: UInt64s
    valid: Bools | None


def hash_columns(columns: Sequence[ColumnView]) -> KeyHashes:
    """Hash each row's key. A key with a null in any column is not valid."""
    if not columns:
        raise ValueError("a key needs at least one column")
    length = columns[0].length
    hashes: UInt64s = np.empty(length, dtype=np.uint64)
    valid: Bools | None = None
    for number, column in enumerate(columns):
        if column.length != length:
            raise ValueError(f"key column {number} has {column.length} rows, column 0 has {length}")
        _hash_column(column[:4], number == 0, hashes)
        if column.valid is not None:
            valid = column.valid if valid is None else valid & column.valid
    if valid is not None:
        # Arrow leaves the bytes under a null undefined: without this the hash would differ from run to run.
        hashes[~valid] = 0
    return KeyHashes(hashes, valid)


def proves_equality(*sides: Sequence[ColumnView]) -> bool:
    """Whether equal hashes mean equal keys on these sides, so that the keys need not be compared.

    This does not trust 64 bits: for a single integer-like column of at most 8 bytes the hash is a permutation
    of the 64-bit value, so two different keys cannot share a hash. Unsigned and signed columns widen
    differently (the largest uint64 has the bits of -1), so a uint64 proves nothing beside a signed column.
    """
    if any(len(columns) != 1 or columns[0].kind > Kind.SIGNED for columns in sides):
        return False
    kinds = {columns[0].kind for columns in sides}
    unsigned_is_wide = any(columns[0].kind == Kind.UNSIGNED and columns[0].width == 8 for columns in sides)
    return len(kinds) == 1 or not unsigned_is_wide


# Odd numbers with about as many ones as zeros and no pattern: SplitMix64's, then digits of pi for the bytes.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_SEED = np.uint64(0x243F6A8885A308D3)
_LEFT_SECRET = np.uint64(0x13198A2E03707345)
_RIGHT_SECRET = np.uint64(0xA4093822299F31D1)
_LENGTH_FACTOR = np.uint64(0x082EFA98EC4E6C89)


@helper
def permute(word: np.uint64) -> np.uint64:
    """SplitMix64: every step can be undone, so no two words share a result."""
    word = word + _STEP
    word = (word ^ (word >> np.uint64(30))) * _FIRST_FACTOR
    word = (word ^ (word >> np.uint64(27))) * _SECOND_FACTOR
    return word ^ (word >> np.uint64(31))


@helper
def _fold(left: np.uint64, right: np.uint64) -> np.uint64:
    return (left * right) ^ multiply_high(left, right)


@helper
def _hash_bytes(address: int, length: int) -> np.uint64:
    """Overlapping loads cover the ends, so nothing outside the value is read."""
    state = _SEED
    if length > 16:
        left = load_64(address + length - 16)
        right = load_64(address + length - 8)
        while length > 16:
            state = _fold(load_64(address) ^ _LEFT_SECRET, load_64(address + 8) ^ state)
            address += 16
            length -= 16
        # The number of whole steps is not in `length` any more, but it is in `state`.
    elif length >= 8:
        left = load_64(address)
        right = load_64(address + length - 8)
    elif length >= 4:
        left = load_32(address)
        right = load_32(address + length - 4)
    elif length > 0:
        left = load_8(address) | (load_8(address + (length >> 1)) << np.uint64(8))
        right = load_8(address + length - 1)
    else:
        left = np.uint64(0)
        right = np.uint64(0)
    folded = _fold(left ^ _LEFT_SECRET, right ^ state ^ _RIGHT_SECRET)
    return permute(folded ^ (np.uint64(length) * _LENGTH_FACTOR))


@helper
def _combine(earlier: np.uint64, column_hash: np.uint64) -> np.uint64:
    """Depends on the order of the columns."""
    return permute(earlier * _LENGTH_FACTOR + column_hash)


@kernel(types.void(COLUMN, types.boolean, output_of(types.uint64)))
def _hash_column(column: RawColumn, first: bool, hashes: UInt64s) -> None:
    if is_word(column):
        for row in range(hashes.size):
            value = permute(word_at(column, row))
            hashes[row] = value if first else _combine(hashes[row], value)
    else:
        for row in range(hashes.size):
            address, length = range_at(column, row)
            value = _hash_bytes(address, length)
            hashes[row] = value if first else _combine(hashes[row], value)
