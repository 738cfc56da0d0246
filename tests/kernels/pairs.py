"""What the tests of pair-finding kernels share: pairs by definition, and a check of the chunks."""

from collections.abc import Iterator, Sequence

import numpy as np

from etl.kernels.chunks import Pairs

Pair = tuple[int, int]


def pairs_by_definition(left: Sequence[int], right: Sequence[int], below: int = 0, above: int = 0) -> list[Pair]:
    """Nested loops over Python integers, ascending by left, then right position."""
    return [
        (position, partner)
        for position, value in enumerate(left)
        for partner, other in enumerate(right)
        if value - below <= other <= value + above
    ]


def taken(chunks: Iterator[Pairs], limit: int) -> list[Pair]:
    """All pairs; fails on a chunk that is empty, too large or of the wrong type."""
    pairs: list[Pair] = []
    for left, right in chunks:
        assert left.dtype == right.dtype == np.int64
        assert 1 <= left.size == right.size <= limit
        pairs.extend(zip(left.tolist(), right.tolist(), strict=True))
    return pairs
