"""How the rows of a relation lie in its blocks.

Idea: rows are sorted by relation segment and, inside a segment, by the 64-bit hash of their key. Hashes are
uniform, so finding one in a sorted stretch takes nearly constant time and needs no index. The stretch of
one segment inside a block is a *slice*. A block of a bulk load is one slice; a block of a delta run holds
a slice for each segment that its load touched, so that a load writes one block, not thousands.

State: a block's columns are `_hash`, those of the relation, `_created_by` (the load that inserted the row), and
two run-end encoded ones, which cost nothing per row: `_slice`, the first coordinate of the segment that a
slice belongs to, and `_filter`, the block's filter.

Invariants: no row has a null in its key; rows of equal order keep the order they came in, so the same
rows make the same file on every machine.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import BadInput
from etl.kernels.blocks import block_column
from etl.kernels.columns import view
from etl.kernels.filters import build_filter, filter_words
from etl.storage.partitioning import Partitioning, PartitionKind, check_range_column
from etl.storage.ports import CREATED_BY_COLUMN, Keys, keys_of

HASH_COLUMN = "_hash"
SLICE_COLUMN = "_slice"
FILTER_COLUMN = "_filter"
CREATED_WITH_RELATION = ""
"""What stands in `_created_by` of the rows that a relation was created with: no load inserted them."""

_RESERVED = (HASH_COLUMN, CREATED_BY_COLUMN, SLICE_COLUMN, FILTER_COLUMN)
_SLICE_TYPE = pa.run_end_encoded(pa.int32(), pa.uint64())
_FILTER_TYPE = pa.run_end_encoded(pa.int32(), pa.large_binary())

# Well below the 2 GiB that the strings of one Arrow array can hold.
MOST_BLOCK_BYTES = 1 << 29
MOST_BLOCK_ROWS = 1 << 21


@dataclass(frozen=True, slots=True)
class RelationShape:
    """What never changes over the versions of a relation.

    `stored` is the schema of rows with hash and load; `block` is that of a block on disk.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    partition: PartitionKind = "hash"
    range_by: str | None = None
    theta: int = 65_536
    stored: pa.Schema = field(init=False, repr=False, compare=False)
    block: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_shape(self)
        if self.partition == "range" and self.range_by is None:
            object.__setattr__(self, "range_by", self.key[-1])
        hash_field = pa.field(HASH_COLUMN, pa.uint64(), nullable=False)
        created_by_field = pa.field(CREATED_BY_COLUMN, pa.string(), nullable=False)
        object.__setattr__(self, "schema", self.schema.remove_metadata())
        object.__setattr__(self, "stored", pa.schema([hash_field, *self.schema, created_by_field]))
        tags = [pa.field(SLICE_COLUMN, _SLICE_TYPE), pa.field(FILTER_COLUMN, _FILTER_TYPE)]
        object.__setattr__(self, "block", pa.schema([*self.stored, *tags]))

    @property
    def range_position(self) -> int:
        """Which key column gives the rank of a range partitioning."""
        return 0 if self.range_by is None else self.key.index(self.range_by)

    def keys(self, rows: pa.RecordBatch) -> Keys:
        return keys_of([rows.column(name) for name in self.key])

    def keys_of_stored(self, rows: pa.RecordBatch) -> Keys:
        """The keys of rows that carry their hash already."""
        views = tuple(view(rows.column(name)) for name in self.key)
        return Keys(views, rows.column(HASH_COLUMN).to_numpy(), None)


def check_rows(shape: RelationShape, rows: pa.RecordBatch | pa.Table) -> None:
    """BadInput when the rows do not fit into the relation."""
    if not rows.schema.equals(shape.schema):
        raise BadInput(
            f"relation {shape.name} has the columns ({_columns(shape.schema)}), but the rows have "
            f"({_columns(rows.schema)}); select and cast them first"
        )
    for name in shape.key:
        nulls = rows.column(name).null_count
        if nulls:
            raise BadInput(
                f"relation {shape.name}: key column {name!r} is null in {nulls} rows, which nothing can "
                "match; send them to quarantine or give them a key"
            )


def stored_rows(shape: RelationShape, rows: pa.RecordBatch, created_by: str) -> pa.RecordBatch:
    """The rows with their key hashes before and the load behind them."""
    loads = pa.repeat(pa.scalar(created_by), rows.num_rows)
    return pa.RecordBatch.from_arrays([pa.array(shape.keys(rows).hashes), *rows.columns, loads], schema=shape.stored)


def block_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in batches that are each small enough to be one block."""
    if rows.num_rows == 0:
        return
    most_rows = max(1, min(MOST_BLOCK_ROWS, int(rows.num_rows * MOST_BLOCK_BYTES / max(rows.nbytes, 1))))
    for start in range(0, rows.num_rows, most_rows):
        piece = rows.slice(start, most_rows).combine_chunks()
        yield from piece.to_batches()


def sliced_block(shape: RelationShape, partitioning: Partitioning, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Stored rows of any segments in any order, as one block."""
    keys = shape.keys_of_stored(rows)
    segment = partitioning.segment_of(keys)
    order = _order(keys.hashes, segment, partitioning.kind)
    segment = segment[order]
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    ordered = rows.take(pa.array(order))
    ends = np.append(starts[1:], rows.num_rows)
    return _tagged(shape, ordered, ends, partitioning.boundaries[segment[starts]])


def segment_block(shape: RelationShape, first_coordinate: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Stored rows of one segment in any order, as one block."""
    hashes = rows.column(HASH_COLUMN).to_numpy()
    if (hashes[1:] < hashes[:-1]).any():
        rows = rows.take(pa.array(np.argsort(hashes, kind="stable")))
    return _tagged(shape, rows, np.array([rows.num_rows]), np.array([first_coordinate], np.uint64))


def file_label(load_id: str) -> str:
    """The load's id as far as a file name can hold it; for people who look into the folder."""
    return "load-" + re.sub(r"[^A-Za-z0-9_=-]", "_", load_id)[:60] if load_id else "base"


def _order(
    hashes: npt.NDArray[np.uint64], segment: npt.NDArray[np.int32], kind: PartitionKind
) -> npt.NDArray[np.int64]:
    # Segments by hash are ascending stretches of the hashes: sorting by hash sorts by segment too.
    if kind == "hash":
        return np.argsort(hashes, kind="stable")
    return np.lexsort((hashes, segment))


def _tagged(
    shape: RelationShape,
    ordered: pa.RecordBatch,
    ends: npt.NDArray[np.int64],
    first_coordinates: npt.NDArray[np.uint64],
) -> pa.RecordBatch:
    hashes = ordered.column(HASH_COLUMN).to_numpy()
    words = build_filter(hashes, filter_words(hashes.size))
    offsets = pa.py_buffer(np.array([0, words.nbytes], np.int64))
    value = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(words)])
    slices = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(first_coordinates))
    filter_ = pa.RunEndEncodedArray.from_arrays(pa.array([hashes.size], pa.int32()), value)
    return pa.RecordBatch.from_arrays([*ordered.columns, slices, filter_], schema=shape.block)


def _check_shape(shape: RelationShape) -> None:
    names = shape.schema.names
    if shape.theta < 1:
        raise BadInput(f"relation {shape.name}: theta is {shape.theta}; a segment holds at least one row")
    for name in names:
        if names.count(name) > 1 or name in _RESERVED:
            raise BadInput(f"relation {shape.name}: column name {name!r} repeats or is reserved; rename it")
        if pa.types.is_dictionary(shape.schema.field(name).type):
            raise BadInput(f"relation {shape.name}: column {name!r} is dictionary-encoded; decode it first")
        _check_type(shape, name, lambda empty: block_column([empty]))
    if not shape.key or len(set(shape.key)) != len(shape.key):
        raise BadInput(f"relation {shape.name}: key {shape.key} is empty or names a column twice")
    for name in shape.key:
        if name not in names:
            raise BadInput(f"relation {shape.name} has no key column {name!r}; its columns are {names}")
        _check_type(shape, name, view)
    check_range_column(shape.name, shape.schema, shape.key, shape.partition, shape.range_by)


def _check_type(shape: RelationShape, name: str, use: Callable[[pa.Array], object]) -> None:
    try:
        use(pa.array([], shape.schema.field(name).type))
    except TypeError as error:
        raise BadInput(f"relation {shape.name}, column {name!r}: {error}") from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
