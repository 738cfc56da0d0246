"""Duplicate detection: against everything loaded before and inside the load; exact, without a horizon.

The relation holds one row per business key that was loaded. A key that this very load brought is no duplicate: that is
how a load that is run again gives the same answer. Inside a load the first row wins by a stated order: the
`prefer` columns ascending, then all other columns, so that the winner does not depend on how the rows were shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from etl.storage.ports import RelationView
from etl.transforms.lookups import Lookups, Pairs, looked_up
from etl.transforms.new_rows import as_relation_rows, has_key, is_new, new_members
from etl.transforms.ordering import first_of_each_key


@dataclass(frozen=True)
class Deduplicated:
    """`first`: rows to load, in their order; `members`: rows for the relation; `duplicates`: how many were dropped."""

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
    lookups: Lookups | None = None,
) -> Deduplicated:
    """Drop rows whose key was loaded before or comes again. A row with a null in its key is kept, and not remembered.

    `attributes` are the further columns that the relation remembers of the row that won.
    """
    answer = looked_up(rows, relation, on, lookups)
    key = [name for name, _ in on]
    keyed = has_key(rows, key)
    fresh = np.flatnonzero(is_new(keyed, answer.created_by, load_id).to_numpy())
    winners = fresh[first_of_each_key(rows.take(pa.array(fresh)), key, prefer).to_numpy()]
    kept = np.sort(np.concatenate([winners, np.flatnonzero(~keyed.to_numpy())]))
    first = rows.take(pa.array(kept))
    # Of the rows kept, those without a key are left out there; those whose key is committed are known.
    members = new_members(first, answer.known.take(pa.array(kept)), on, relation, attributes)
    return Deduplicated(first, as_relation_rows(members, relation), rows.num_rows - first.num_rows)
