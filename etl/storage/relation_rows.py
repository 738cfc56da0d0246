"""How the rows of a relation lie in its blocks, and how a block is probed.

Idea: a block holds rows of one relation segment, sorted by the 64-bit hash of their key. Hashes are
uniform, so finding one in a sorted block takes nearly constant time and needs no index. The block carries
the hash as its first column and the load that inserted each row as its last.

Invariants: equal hashes only nominate a pair; the key columns decide. No row has a null in its key.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from etl.errors import BadInput
from etl.kernels.columns import ColumnView, view
from etl.kernels.compare import equal_rows
from etl.kernels.hashing import KeyHashes, hash_columns, proves_equality
from etl.kernels.scatter import partition_of
from etl.kernels.sorted_probe import sorted_probe
from etl.storage.ports import Positions

HASH_COLUMN = "_hash"
CREATED_BY_COLUMN = "_created_by"
CREATED_WITH_RELATION = ""
"""What stands in `_created_by` of the rows that a relation was created with: no load inserted them."""


@dataclass(frozen=True, slots=True)
class RelationShape:
    """What never changes over the versions of a relation."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    segments: int
    block_schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_shape(self)
        hash_field = pa.field(HASH_COLUMN, pa.uint64(), nullable=False)
        created_by_field = pa.field(CREATED_BY_COLUMN, pa.string(), nullable=False)
        object.__setattr__(self, "schema", self.schema.remove_metadata())
        object.__setattr__(self, "block_schema", pa.schema([hash_field, *self.schema, created_by_field]))


def sorted_blocks(shape: RelationShape, rows: pa.Table, created_by: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut rows into blocks, each with the number of its relation segment, in the order of the segments."""
    hashes = _hash_rows(shape, rows)
    # Stable, so that the same rows in the same order make the same file on every machine.
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    columns = [
        pa.array(hashes),
        *rows.combine_chunks().take(pa.array(order)).columns,
        pa.repeat(pa.scalar(created_by), hashes.size),
    ]
    table = pa.Table.from_arrays(columns, schema=shape.block_schema)
    # Segments are ascending shares of the hash range: sorted by hash, the rows of each lie side by side.
    bounds = np.searchsorted(partition_of(hashes, shape.segments), np.arange(shape.segments + 1))
    for segment, (start, end) in enumerate(pairwise(bounds.tolist())):
        # Strings of more than 2 GiB do not fit into one batch: then the segment gets several blocks.
        for block in table.slice(start, end - start).to_batches():
            yield segment, block


def probe_block(
    shape: RelationShape, block: pa.RecordBatch, key_columns: Sequence[ColumnView], hashes: KeyHashes
) -> Iterator[tuple[Positions, pa.RecordBatch]]:
    """Pairs of positions among the probing rows and the block's matching rows, without the hash column."""
    stored_hashes = block.column(0).to_numpy()
    stored_key = [view(block.column(name)) for name in shape.key]
    rows = block.select([*shape.schema.names, CREATED_BY_COLUMN])
    hash_decides = proves_equality(key_columns, stored_key)
    for probing, stored in sorted_probe(stored_hashes, hashes.hashes, hashes.valid):
        if not hash_decides:
            equal = equal_rows(key_columns, probing, stored_key, stored)
            probing, stored = probing[equal], stored[equal]
        if probing.size:
            yield probing, rows.take(pa.array(stored))


def check_rows(shape: RelationShape, rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The rows as a table, or BadInput when they do not fit into the relation."""
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
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def file_label(load_id: str) -> str:
    """The load's id as far as a file name can hold it; for people who look into the folder."""
    return "load-" + re.sub(r"[^A-Za-z0-9_.=-]", "_", load_id)[:60] if load_id else "base"


def _hash_rows(shape: RelationShape, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    # Batch by batch: key columns of a large table need not fit into one array.
    hashes = [hash_columns([view(batch.column(name)) for name in shape.key]).hashes for batch in rows.to_batches()]
    return np.concatenate([np.empty(0, np.uint64), *hashes])


def _check_shape(shape: RelationShape) -> None:
    names = shape.schema.names
    if not 1 <= shape.segments <= 1 << 16:
        raise BadInput(f"relation {shape.name}: {shape.segments} segments; choose 1 to 65536")
    for name in names:
        if names.count(name) > 1 or name in (HASH_COLUMN, CREATED_BY_COLUMN):
            raise BadInput(f"relation {shape.name}: column name {name!r} repeats or is reserved; rename it")
        if pa.types.is_dictionary(shape.schema.field(name).type):
            raise BadInput(f"relation {shape.name}: column {name!r} is dictionary-encoded; decode it first")
    if not shape.key or len(set(shape.key)) != len(shape.key):
        raise BadInput(f"relation {shape.name}: key {shape.key} is empty or names a column twice")
    for name in shape.key:
        if name not in names:
            raise BadInput(f"relation {shape.name} has no key column {name!r}; its columns are {names}")
        try:
            view(pa.array([], shape.schema.field(name).type))
        except TypeError as error:
            raise BadInput(f"relation {shape.name}, column {name!r}: {error}") from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
