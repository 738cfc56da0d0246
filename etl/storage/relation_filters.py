"""The filters of a relation version in memory: a key that none of them may hold is new without touching the disk.

A block's filter lies beside it in its file. A set copies as many as its limit allows, segment by segment,
because a segment is filtered only when the filters of all its blocks are there; in the others any key
may be. The filter of a delta run's block serves all segments that the block touches, and is held once.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from etl.kernels.filters import empty_filter, may_hold
from etl.storage.block_table import BlockTable
from etl.storage.ports import Keys, Segments

Words: TypeAlias = npt.NDArray[np.uint64]
_FilterName: TypeAlias = tuple[str, int]
_NOT_IN_MEMORY = 0


class FilterSet:
    """Filters of the segments in `order` (hottest first; by number when none is given), up to `limit_bytes`.

    Filters that the set of a `previous` version holds are shared with it, not copied again.
    """

    def __init__(
        self,
        table: BlockTable,
        limit_bytes: int,
        order: Sequence[int] | None = None,
        previous: "FilterSet | None" = None,
    ) -> None:
        blocks = table.blocks.rows.size
        self._filters_from = table.blocks_from
        self._address = np.full(blocks, _NOT_IN_MEMORY, np.uint64)
        self._words = np.zeros(blocks, np.int64)
        self._held: dict[_FilterName, npt.NDArray[np.uint64]] = {}
        self.nbytes = self._filters_from.nbytes + self._address.nbytes + self._words.nbytes
        self.segments = 0
        at_hand = {} if previous is None else previous._held
        for segment in range(table.segments) if order is None else order:
            if not self._hold_segment(table, segment, limit_bytes, at_hand):
                break
            self.segments += 1

    def may_hold(self, segment: Segments, keys: Keys) -> npt.NDArray[np.bool_]:
        """False where the key is certainly not in the relation."""
        return may_hold(self._filters_from, self._address, self._words, segment, keys.hashes, keys.valid)

    def _hold_segment(
        self, table: BlockTable, segment: int, limit_bytes: int, at_hand: Mapping[_FilterName, Words]
    ) -> bool:
        """Whether the filters of all blocks of the segment fit; if not, none is taken."""
        filters = {
            block: table.filter_of(block) for block in range(table.blocks_from[segment], table.blocks_from[segment + 1])
        }
        fresh = {name: words for name, words in filters.values() if name not in self._held}
        size = sum(words.nbytes for words in fresh.values())
        if self.nbytes + size > limit_bytes:
            return False
        self.nbytes += size
        for name, words in fresh.items():
            self._held[name] = at_hand[name] if name in at_hand else _copied(words)
        for block, (name, words) in filters.items():
            self._address[block] = self._held[name].ctypes.data
            self._words[block] = words.size
        return True


def _copied(words: Words) -> Words:
    copy = empty_filter(words.size)
    copy[:] = words
    return copy
