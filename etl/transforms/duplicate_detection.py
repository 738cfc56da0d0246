"""Duplicate detection: against everything loaded before and inside the load; exact, without a horizon.

The relation holds one row per business key that was loaded. A key that this very load brought is no duplicate: that is
how a load that is run again gives the same answer. Inside a load the first row wins by a stated order: the
`prefer` columns ascending, then all other columns, so that the winner does not depend on how the rows were shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from etl.storage.ports import RelationView
from etl.transforms.new_rows import MEMORY_BYTES, Pairs, as_relation_rows, identify_new, new_members
from etl.transforms.ordering import first_of_each_key


@dataclass(frozen=True)
class Deduplicated:
    """`first`: the rows to load; `members`: the relation's rows to append; `duplicates`: how many rows were dropped."""

    first: pa.Table
    members: pa.Table
    duplicates: int


def drop_duplicates(
    rows: pa.Table,
    relation: RelationView,
    on: Pairs,
    load_id: str,
    prefer: Sequence[str] = (),
    *,
    attributes: Pairs = (),
    join: str = "auto",
    memory_bytes: int = MEMORY_BYTES,
) -> Deduplicated:
    """Drop rows whose key was loaded before or comes again. A row with a null in its key is kept, and not remembered.

    `attributes` are the further columns that the relation remembers of the row that won.
    """
    found = identify_new(rows, relation, on, load_id, join=join, memory_bytes=memory_bytes)
    winners = first_of_each_key(found.new, [name for name, _ in on], prefer)
    first = found.new.take(winners)
    members = new_members(first, found.brought.take(winners), on, relation, attributes)
    kept = pa.concat_tables([first, found.without_key])
    return Deduplicated(kept, as_relation_rows(members, relation), rows.num_rows - kept.num_rows)
