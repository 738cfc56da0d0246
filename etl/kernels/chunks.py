"""Index pairs in bounded chunks: the loop that all kernels that find pairs share.

A kernel writes pairs into two arrays until they are full or nothing is left, and says where it stopped. A
chunk that is not full is therefore the last one.
"""

from collections.abc import Callable, Iterator

import numpy as np

from etl.kernels.compiling import Int64s

__all__ = ["DEFAULT_LIMIT", "Pairs", "pair_chunks"]

DEFAULT_LIMIT = 65536

Pairs = tuple[Int64s, Int64s]
Cursor = tuple[int, ...]
# fill(cursor, left, right) writes pairs and returns how many, and the next cursor.
Fill = Callable[[Cursor, Int64s, Int64s], tuple[int, Cursor]]


def pair_chunks(fill: Fill, start: Cursor, rows: int, limit: int) -> Iterator[Pairs]:
    """Chunks of one to `limit` pairs, each filled from where the one before it stopped."""
    if limit < 1:
        raise ValueError(f"limit is {limit}: a chunk holds at least one pair")
    return _chunks(fill, start, rows, limit)


def _chunks(fill: Fill, cursor: Cursor, rows: int, limit: int) -> Iterator[Pairs]:
    # Mostly a row has one partner, so this is room enough and one more; only a full chunk makes larger ones.
    room = min(limit, rows + 1)
    while True:
        left: Int64s = np.empty(room, dtype=np.int64)
        right: Int64s = np.empty(room, dtype=np.int64)
        count, cursor = fill(cursor, left, right)
        if count:
            yield left[:count], right[:count]
        if count < room:
            return
        room = min(limit, 4 * room)
