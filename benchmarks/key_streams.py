"""Keys of a lookup relation and streams that ask for them, made by arithmetic on whole arrays.

Key number k of a relation is the pair (source k % 4, text "customer-" and the eight digits of 2k); its surrogate key is
k + 1. A miss asks for the text of 2k + 1, which no relation holds: misses lie between the hits, as new keys do, and not
beyond the last key where an ordered index finds them for nothing.

A stream row carries its number in the stream. The right answer to it is known without a join, so each answer can be
checked: `Digest` adds up over rows, in whatever order and pieces they are answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

RELATION_SCHEMA = pa.schema([("source", pa.int32()), ("key", pa.string()), ("surrogate", pa.int64())])
STREAM_SCHEMA = pa.schema([("source", pa.int32()), ("key", pa.string()), ("row", pa.int64())])
KEY = ("source", "key")

ROW_BYTES = 4 + 17 + 8 + 4
"""Of a relation's row in plain Arrow columns: source, text, surrogate key, and the text's offset."""

MOST_ROWS = 50_000_000
"""Eight digits hold twice as many numbers."""

Numbers = NDArray[np.int64]


def relation_batches(rows: int, batch_rows: int = 1_000_000) -> Iterator[pa.RecordBatch]:
    """A relation of `rows` rows, in the order of its keys."""
    if rows > MOST_ROWS:
        raise ValueError(f"a relation of {rows:,} rows: keys of eight digits tell {MOST_ROWS:,} apart")
    for start in range(0, rows, batch_rows):
        number = np.arange(start, min(rows, start + batch_rows), dtype=np.int64)
        columns = [_sources(number), _texts(2 * number), pa.array(number + 1)]
        yield pa.RecordBatch.from_arrays(columns, schema=RELATION_SCHEMA)


class Digest(NamedTuple):
    """Of answered rows: hits, misses, and a sum that another surrogate key for any row would change."""

    hits: int = 0
    misses: int = 0
    pairs: int = 0

    def plus(self, other: Digest) -> Digest:
        return Digest(self.hits + other.hits, self.misses + other.misses, (self.pairs + other.pairs) % 2**64)


def digest(row: pa.Array | pa.ChunkedArray, surrogate: pa.Array | pa.ChunkedArray) -> Digest:
    """Of stream rows and the surrogate keys that they were given; null for a miss."""
    return _digest(row.to_numpy(), surrogate.fill_null(0).to_numpy())


class StreamBatch(NamedTuple):
    rows: pa.RecordBatch
    expected: Digest


@dataclass(frozen=True)
class KeyStream:
    """A kind of stream against a relation of `relation_rows` rows; the same seed gives the same rows."""

    kind: str
    relation_rows: int
    miss_ratio: float = 0.1
    seed: int = 1

    def batches(self, batch_rows: int, count: int) -> Iterator[StreamBatch]:
        draw = _KINDS[self.kind]
        generator = np.random.default_rng(self.seed)
        for batch in range(count):
            number = draw(generator, self.relation_rows, batch_rows, batch * batch_rows)
            missing = generator.random(batch_rows) < self.miss_ratio
            row = np.arange(batch * batch_rows, (batch + 1) * batch_rows, dtype=np.int64)
            columns = [_sources(number), _texts(2 * number + missing), pa.array(row)]
            rows = pa.RecordBatch.from_arrays(columns, schema=STREAM_SCHEMA)
            yield StreamBatch(rows, _digest(row, np.where(missing, 0, number + 1)))


_PREFIX = np.frombuffer(b"customer-", np.uint8)
_DIGITS = 8
_HOT_SHARE = 0.05
_HOT_ROWS = 0.8
_DRIFT_ROWS = 2_000_000
"""Rows after which the hot range has moved on by its own width."""
_WEYL = np.uint64(0x9E3779B97F4A7C15)


def _sources(number: Numbers) -> pa.Array:
    return pa.array((number % 4).astype(np.int32))


def _texts(number: Numbers) -> pa.Array:
    """The prefix and eight digits of each number, written straight into the buffers of an Arrow array."""
    width = len(_PREFIX) + _DIGITS
    letters = np.empty((len(number), width), np.uint8)
    letters[:, : len(_PREFIX)] = _PREFIX
    rest = number
    for position in range(width - 1, len(_PREFIX) - 1, -1):
        rest, digit = np.divmod(rest, 10)
        letters[:, position] = digit + ord("0")
    offsets = np.arange(0, (len(number) + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(number), pa.py_buffer(offsets), pa.py_buffer(letters))


def _digest(row: Numbers, surrogate: Numbers) -> Digest:
    mixed = row.astype(np.uint64) * _WEYL + surrogate.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _WEYL
    hits = int(np.count_nonzero(surrogate))
    return Digest(hits, len(row) - hits, int((mixed ^ (mixed >> np.uint64(32))).sum()))


Draw = Callable[[np.random.Generator, int, int, int], Numbers]


def _uniform(generator: np.random.Generator, keys: int, rows: int, _at: int) -> Numbers:
    return generator.integers(0, keys, rows)


def _zipf(generator: np.random.Generator, keys: int, rows: int, _at: int) -> Numbers:
    """Exponent 1.0; frequent keys lie anywhere in the key range."""
    numbers, cumulated = _scrambled_zipf(keys)
    return numbers[np.searchsorted(cumulated, generator.random(rows))]


@cache
def _scrambled_zipf(keys: int) -> tuple[Numbers, NDArray[np.float64]]:
    cumulated = np.cumsum(1 / np.arange(1, keys + 1))
    return np.random.default_rng(7).permutation(keys), cumulated / cumulated[-1]


def _locality(generator: np.random.Generator, keys: int, rows: int, at: int) -> Numbers:
    """Most rows fall into a hot part of the key range, which moves a little with every batch."""
    width = max(1, int(_HOT_SHARE * keys))
    begin = int(width * at / _DRIFT_ROWS)
    hot = (begin + generator.integers(0, width, rows)) % keys
    return np.where(generator.random(rows) < _HOT_ROWS, hot, generator.integers(0, keys, rows))


_KINDS: dict[str, Draw] = {"uniform": _uniform, "zipf": _zipf, "locality": _locality}
