"""What a join must deliver, by definition: nested loops over Python rows. Shares no code with the operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

Row = tuple[object, ...]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in zip(*(_values(column) for column in batch.columns), strict=True)]


def inner_join(left: Sequence[Row], right: Sequence[Row], on: Sequence[tuple[int, int]]) -> Counter[Row]:
    """Every pair whose key columns are equal and not null, as often as it occurs."""
    return Counter(
        first + second for first in left for second in right if all(_equal(first[i], second[j]) for i, j in on)
    )


def _equal(first: object, second: object) -> bool:
    return first is not None and second is not None and first == second


def _values(column: pa.Array) -> list[object]:
    return [tuple(value) if isinstance(value, list) else value for value in column.to_pylist()]
