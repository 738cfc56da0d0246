"""Blocked Bloom filters over key hashes: a key that no filter may hold is new, without a look at the disk.

A filter is a row of 64-byte cells, each 8 words of 64 bits. A key belongs to one cell and sets one bit in each
of its words, so a check costs one cache line: the low half of the hash picks the cell, as a fraction of their
number; a permutation of the hash picks the 8 bits, 6 bits of it for each word. (Rows of one relation segment
may share the high bits of their hash, so those decide nothing by themselves.) At 10 bits a key, 1 % of the
absent keys are taken for present; at 12 bits 0.4 %. A key that was put in is always found.

Filters are stored on disk: which bits stand for a hash never changes (golden values in the tests pin it).
A filter works at any address, and fastest where a cell is one cache line: see `empty_filter`.

Who keeps the memory alive: the caller holds the arrays whose addresses it gives to `may_hold`.
Limit: 2**32 cells (256 GiB) a filter.
"""

import numpy as np
from numba import types

from etl.kernels.compiling import (
    Bools,
    Int32s,
    Int64s,
    UInt64s,
    helper,
    input_of,
    kernel,
    output_of,
    signed,
    validity,
)
from etl.kernels.hashing import permute
from etl.kernels.intrinsics import load_64, prefetch
from etl.kernels.segment_ranges import checked_segments, checked_starts

__all__ = ["filter_words", "empty_filter", "build_filter", "may_hold"]


def filter_words(keys: int, bits_per_key: int = 10) -> int:
    """How many 64-bit words a filter for so many keys has: whole cells, at least one."""
    if keys < 0 or bits_per_key < 1:
        raise ValueError(f"a filter of {keys} keys at {bits_per_key} bits each: give 0 keys or more, and 1 bit or more")
    return _CELL_WORDS * max(1, -(-keys * bits_per_key // _CELL_BITS))


def empty_filter(words: int) -> UInt64s:
    """A filter that holds nothing, placed so that no cell lies across two cache lines."""
    if words < _CELL_WORDS or words % _CELL_WORDS:
        raise ValueError(f"a filter of {words} words: it has whole cells of {_CELL_WORDS}, at least one")
    if words // _CELL_WORDS > _MOST_CELLS:
        raise OverflowError(f"a filter has at most {_MOST_CELLS} cells: make several of {words} words")
    roomy: UInt64s = np.zeros(words + _CELL_WORDS, dtype=np.uint64)
    skipped = -roomy.ctypes.data % _CELL_BYTES // roomy.itemsize
    return roomy[skipped : skipped + words]


def build_filter(hashes: UInt64s, words: int) -> UInt64s:
    """The filter of these keys, in `filter_words(...)` words."""
    words_of_filter = empty_filter(words)
    _build(np.ascontiguousarray(hashes, dtype=np.uint64), words_of_filter)
    return words_of_filter


def may_hold(
    filters_from: Int64s,
    filter_address: UInt64s,
    filter_words: Int64s,
    segment: Int32s,
    hashes: UInt64s,
    valid: Bools | None = None,
) -> Bools:
    """For each row: may a block of its relation segment hold its key? False is certain.

    The filters of segment s are numbered `filters_from[s]` to `filters_from[s + 1] - 1`; filter f is
    `filter_words[f]` words at `filter_address[f]`. An address of 0 marks a block whose filter is not in memory: it
    may hold any key, and so may its segment. A segment without any entry has no blocks and holds nothing. A row
    that is not valid, or in segment -1, is held nowhere.
    """
    addresses = np.ascontiguousarray(filter_address, dtype=np.uint64)
    words = np.ascontiguousarray(filter_words, dtype=np.int64)
    _check_filters(addresses, words)
    filters_from = checked_starts(filters_from, addresses.size, "filters_from")
    hashes = np.ascontiguousarray(hashes, dtype=np.uint64)
    segment = checked_segments(segment, hashes.size, filters_from.size - 1)
    held: Bools = np.empty(hashes.size, dtype=np.bool_)
    _check_rows(filters_from, addresses, words, segment, hashes, validity(valid, hashes.size), held)
    return held


def _check_filters(addresses: UInt64s, words: Int64s) -> None:
    if addresses.size != words.size:
        raise ValueError(f"there are {addresses.size} addresses for {words.size} filters: give one each")
    is_broken = (addresses != 0) & ((words < _CELL_WORDS) | (words % _CELL_WORDS != 0))
    if is_broken.any():
        culprit = int(np.flatnonzero(is_broken)[0])
        raise ValueError(f"filter {culprit} has {words[culprit]} words: it has whole cells of {_CELL_WORDS}")


_CELL_WORDS = 8
_CELL_BYTES = 64
_CELL_BITS = 512
_MOST_CELLS = 2**32

_BIT_NUMBER_SIZE = np.uint64(6)
_LOW_SIX = np.uint64(63)
_LOW_HALF, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ONE = np.uint64(1)

_AHEAD = 16


@helper
def _cell_of(key_hash: np.uint64, words: int) -> int:
    """The number of the cell that a key belongs to."""
    return signed(((key_hash & _LOW_HALF) * np.uint64(words >> 3)) >> _HALF)


@kernel(types.void(input_of(types.uint64), output_of(types.uint64)))
def _build(hashes: UInt64s, filter_: UInt64s) -> None:
    start = signed(np.uintp(filter_.ctypes.data))
    for row in range(hashes.size):
        if row + _AHEAD < hashes.size:
            prefetch(start + _CELL_BYTES * _cell_of(hashes[row + _AHEAD], filter_.size))
        first = _CELL_WORDS * _cell_of(hashes[row], filter_.size)
        bits = permute(hashes[row])
        for word in range(_CELL_WORDS):
            filter_[first + word] |= _ONE << (bits & _LOW_SIX)
            bits >>= _BIT_NUMBER_SIZE


@helper
def _holds_all_bits(cell: int, bits: np.uint64) -> bool:
    """All words are looked at: a branch at each would be guessed wrong more often than it saved a load."""
    held = _ONE
    for word in range(_CELL_WORDS):
        held &= load_64(cell + 8 * word) >> (bits & _LOW_SIX)
        bits >>= _BIT_NUMBER_SIZE
    return bool(held)


@kernel(
    types.void(
        input_of(types.int64),
        input_of(types.uint64),
        input_of(types.int64),
        input_of(types.int32),
        input_of(types.uint64),
        input_of(types.boolean),
        output_of(types.boolean),
    )
)
def _check_rows(
    filters_from: Int64s,
    addresses: UInt64s,
    words: Int64s,
    segment: Int32s,
    hashes: UInt64s,
    valid: Bools,
    held: Bools,
) -> None:
    for row in range(hashes.size):
        ahead = row + _AHEAD
        if ahead < hashes.size and segment[ahead] >= 0:
            for number in range(filters_from[segment[ahead]], filters_from[segment[ahead] + 1]):
                cell = _cell_of(hashes[ahead], words[number])
                prefetch(signed(addresses[number]) + _CELL_BYTES * cell)
        held[row] = False
        if segment[row] < 0 or (valid.size and not valid[row]):
            continue
        bits = permute(hashes[row])
        for number in range(filters_from[segment[row]], filters_from[segment[row] + 1]):
            start = signed(addresses[number])
            if start == 0 or _holds_all_bits(start + _CELL_BYTES * _cell_of(hashes[row], words[number]), bits):
                held[row] = True
                break
