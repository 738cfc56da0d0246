"""A growable hash table from 64-bit key hashes to row numbers, which are given in the order of insertion.

Idea: open addressing over 8-byte entries. An entry holds the top 31 bits of the hash as a tag, a flag and a
row number, so most slots are judged without leaving the cache line; the stored hash of the row settles the
rest. Rows with one hash share one entry, however many they are: a skewed key never lengthens the search for
another key.

State, by row: `stored` (its hash) and `following` (the next row with the same hash). The rows of one hash
form a ring in ascending order: the entry names the newest row, and the newest is followed by the oldest. A
row is therefore the last of its ring exactly when what follows it is not greater; a row whose key is null is
followed by NOWHERE and is in no ring. That is enough to rebuild the entries from the rows alone, and to
resume a probe from a row number.

Invariants: the hashes are well mixed (their low bits pick the slot); at most half of the entries are taken.
Limit: 2**32 - 2 rows.
"""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from numba import types

from etl.kernels.chunks import DEFAULT_LIMIT, Pairs, pair_chunks
from etl.kernels.compiling import (
    Bools,
    Int64s,
    UInt32s,
    UInt64s,
    helper,
    input_of,
    kernel,
    output_of,
    signed,
    tuple_of,
    validity,
)
from etl.kernels.intrinsics import prefetch

__all__ = ["HashTable", "build"]


class HashTable:
    """Rows by the hash of their key. `rows` makes room for that many rows in advance."""

    def __init__(self, rows: int = 0) -> None:
        self._rows = 0
        self._taken = 0
        self._stored: UInt64s = np.empty(max(rows, _SMALLEST_ROWS), dtype=np.uint64)
        self._following: UInt32s = np.empty(max(rows, _SMALLEST_ROWS), dtype=np.uint32)
        self._entries: UInt64s = np.zeros(_entries_for(rows), dtype=np.uint64)

    def __len__(self) -> int:
        return self._rows

    @property
    def hashes(self) -> UInt64s:
        """The hash of each row: a read-only look that later insertions may leave behind."""
        hashes = self._stored[: self._rows]
        hashes.flags.writeable = False
        return hashes

    @property
    def nbytes(self) -> int:
        """All memory held, used or not."""
        return self._stored.nbytes + self._following.nbytes + self._entries.nbytes

    def bytes_after(self, rows: int) -> int:
        """The most memory held at once while `rows` more rows go in, arrays being replaced included."""
        row_capacity, entry_capacity = self._capacities_after(rows)
        held = most = self.nbytes
        for array, capacity in (
            (self._stored, row_capacity),
            (self._following, row_capacity),
            (self._entries, entry_capacity),
        ):
            if capacity > array.size:
                replacement = capacity * array.itemsize
                most = max(most, held + replacement)
                held += replacement - array.nbytes
        return most

    def insert(self, hashes: UInt64s, valid: Bools | None = None) -> None:
        """Append rows. A row that is not valid gets a number but matches nothing."""
        hashes = np.ascontiguousarray(hashes, dtype=np.uint64)
        mask = validity(valid, hashes.size)
        if self._rows + hashes.size > _MOST_ROWS:
            raise OverflowError(f"a hash table holds at most {_MOST_ROWS} rows: partition the input first")
        self._make_room(hashes.size)
        self._taken += _insert(self._entries, self._stored, self._following, self._rows, hashes, mask)
        self._rows += hashes.size

    def probe(self, hashes: UInt64s, valid: Bools | None = None, limit: int = DEFAULT_LIMIT) -> Iterator[Pairs]:
        """Chunks of at most `limit` pairs (probe position, row number) with equal hashes, ascending by both.

        The table must not change before the last chunk is taken.
        """
        hashes = np.ascontiguousarray(hashes, dtype=np.uint64)
        mask = validity(valid, hashes.size)
        rows_at_start = self._rows

        def fill(cursor: tuple[int, ...], positions: Int64s, rows: Int64s) -> tuple[int, tuple[int, ...]]:
            if self._rows != rows_at_start:
                raise RuntimeError("rows were inserted while a probe was under way: take all its chunks first")
            return _probe(self._entries, self._stored, self._following, hashes, mask, cursor, positions, rows)

        return pair_chunks(fill, (0, _FRESH), hashes.size, limit)

    def _capacities_after(self, rows: int) -> tuple[int, int]:
        """Room for rows and for entries, as it will be after `rows` more: every new row may be a new key."""
        row_capacity, entry_capacity = self._following.size, self._entries.size
        if self._rows + rows > row_capacity:
            row_capacity = max(2 * row_capacity, self._rows + rows)
        return row_capacity, max(entry_capacity, _entries_for(self._taken + rows))

    def _make_room(self, rows: int) -> None:
        """Grow one array at a time; each step leaves a working table, should the next find no memory."""
        row_capacity, entry_capacity = self._capacities_after(rows)
        if row_capacity > self._stored.size:
            self._stored = _grown(self._stored, self._rows, row_capacity)
        if row_capacity > self._following.size:
            self._following = _grown(self._following, self._rows, row_capacity)
        if entry_capacity > self._entries.size:
            entries: UInt64s = np.zeros(entry_capacity, dtype=np.uint64)
            _enter_rings(entries, self._stored, self._following, self._rows)
            self._entries = entries


def build(hashes: UInt64s, valid: Bools | None = None) -> HashTable:
    """A table of exactly these rows, without the spare room that growth leaves."""
    table = HashTable(hashes.size)
    table.insert(hashes, valid)
    return table


_Element = TypeVar("_Element", bound=np.generic)

_MOST_ROWS = 2**32 - 2
_SMALLEST_ROWS = 16
_SMALLEST_ENTRIES = 32

# An entry: tag (31 bits) | several rows share the hash (1 bit) | row number + 1 (32 bits). Empty slots are 0.
_TAG_SHIFT = np.uint64(33)
_SEVERAL = np.uint64(1 << 32)
_ROW_BITS = np.uint64(0xFFFFFFFF)
_NOWHERE = np.uint32(0xFFFFFFFF)
_FRESH = -1
_CURSOR = tuple_of(types.int64, types.int64)

# Below this many entries (256 KiB) they stay in the cache anyhow, and asking ahead costs more than it saves.
_PREFETCH_FROM = 1 << 15
_ENTRY_AHEAD = 24
_HASH_AHEAD = 12


def _entries_for(keys: int) -> int:
    """A power of two that is at most half taken."""
    return max(_SMALLEST_ENTRIES, 1 << (2 * keys - 1).bit_length() if keys > 0 else 0)


def _grown(array: npt.NDArray[_Element], used: int, capacity: int) -> npt.NDArray[_Element]:
    grown = np.empty(capacity, dtype=array.dtype)
    grown[:used] = array[:used]
    return grown


@helper
def _prefetch_entry(entries: UInt64s, key_hash: np.uint64) -> None:
    slot = key_hash & np.uint64(entries.size - 1)
    prefetch(entries.ctypes.data + np.uintp(8) * slot)


@helper
def _prefetch_stored(entries: UInt64s, stored: UInt64s, key_hash: np.uint64) -> None:
    """Ask for the stored hash that the first slot of a key will be checked against, if its tag fits."""
    entry = entries[key_hash & np.uint64(entries.size - 1)]
    if (entry ^ key_hash) >> _TAG_SHIFT == 0:
        prefetch(stored.ctypes.data + np.uintp(8) * (entry & _ROW_BITS) - np.uintp(8))


@helper
def _find_slot(entries: UInt64s, stored: UInt64s, key_hash: np.uint64) -> np.uint64:
    """The slot that holds the hash, or else the empty slot where it would go."""
    mask = np.uint64(entries.size - 1)
    slot = key_hash & mask
    while True:
        entry = entries[slot]
        if entry == 0:
            return slot
        if (entry ^ key_hash) >> _TAG_SHIFT == 0 and stored[(entry & _ROW_BITS) - np.uint64(1)] == key_hash:
            return slot
        slot = (slot + np.uint64(1)) & mask


@helper
def _entry_of(key_hash: np.uint64, row: int) -> np.uint64:
    return ((key_hash >> _TAG_SHIFT) << _TAG_SHIFT) | np.uint64(row + 1)


@kernel(
    types.int64(
        output_of(types.uint64),
        output_of(types.uint64),
        output_of(types.uint32),
        types.int64,
        input_of(types.uint64),
        input_of(types.boolean),
    )
)
def _insert(
    entries: UInt64s, stored: UInt64s, following: UInt32s, first_row: int, hashes: UInt64s, valid: Bools
) -> int:
    """Append the rows and return how many entries they took."""
    taken = 0
    far = entries.size >= _PREFETCH_FROM
    for position in range(hashes.size):
        if far and position + _ENTRY_AHEAD < hashes.size:
            _prefetch_entry(entries, hashes[position + _ENTRY_AHEAD])
        row = first_row + position
        key_hash = hashes[position]
        stored[row] = key_hash
        if valid.size and not valid[position]:
            following[row] = _NOWHERE
            continue
        slot = _find_slot(entries, stored, key_hash)
        entry = entries[slot]
        if entry == 0:
            following[row] = np.uint32(row)
            entries[slot] = _entry_of(key_hash, row)
            taken += 1
        else:
            newest = (entry & _ROW_BITS) - np.uint64(1)
            following[row] = following[newest]
            following[newest] = np.uint32(row)
            entries[slot] = _entry_of(key_hash, row) | _SEVERAL
    return taken


@kernel(types.void(output_of(types.uint64), input_of(types.uint64), input_of(types.uint32), types.int64))
def _enter_rings(entries: UInt64s, stored: UInt64s, following: UInt32s, rows: int) -> None:
    """Fill empty entries with the newest row of each ring: each hash comes once, so nothing is compared."""
    mask = np.uint64(entries.size - 1)
    far = entries.size >= _PREFETCH_FROM
    for row in range(rows):
        if far and row + _ENTRY_AHEAD < rows:
            _prefetch_entry(entries, stored[row + _ENTRY_AHEAD])
        if following[row] > row:
            continue
        key_hash = stored[row]
        slot = key_hash & mask
        while entries[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        several = _SEVERAL if following[row] < row else np.uint64(0)
        entries[slot] = _entry_of(key_hash, row) | several


@kernel(
    tuple_of(types.int64, _CURSOR)(
        input_of(types.uint64),
        input_of(types.uint64),
        input_of(types.uint32),
        input_of(types.uint64),
        input_of(types.boolean),
        _CURSOR,
        output_of(types.int64),
        output_of(types.int64),
    )
)
def _probe(
    entries: UInt64s,
    stored: UInt64s,
    following: UInt32s,
    hashes: UInt64s,
    valid: Bools,
    cursor: tuple[int, ...],
    positions: Int64s,
    rows: Int64s,
) -> tuple[int, tuple[int, ...]]:
    """Write pairs until the output is full or the probe rows end; return the count and where to go on.

    The cursor is a probe position and the next row of a ring that was left half-way, or _FRESH.
    """
    position, row = cursor
    count = 0
    far = entries.size >= _PREFETCH_FROM
    while position < hashes.size and count < positions.size:
        if row == _FRESH:
            if far and position + _ENTRY_AHEAD < hashes.size:
                _prefetch_entry(entries, hashes[position + _ENTRY_AHEAD])
                _prefetch_stored(entries, stored, hashes[position + _HASH_AHEAD])
            if valid.size and not valid[position]:
                position += 1
                continue
            entry = entries[_find_slot(entries, stored, hashes[position])]
            if entry == 0:
                position += 1
                continue
            row = signed(entry & _ROW_BITS) - 1
            if entry & _SEVERAL == 0:
                positions[count] = position
                rows[count] = row
                count += 1
                position += 1
                row = _FRESH
                continue
            row = signed(following[row])
        positions[count] = position
        rows[count] = row
        count += 1
        after = signed(following[row])
        if after > row:
            row = after
        else:
            row = _FRESH
            position += 1
    return count, (position, row)
