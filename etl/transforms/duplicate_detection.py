"""Duplicate detection: against everything loaded before and inside the load; exact, without a horizon.

The relation holds one row per business key that was loaded. A key that this very load brought is no duplicate: that is
how a load that is run again gives the same answer. Inside a load the first row wins by a stated order: the
`prefer` columns ascending, then all other columns, so that the winner does not depend on how the rows were shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.storage.ports import RelationView
from etl.transforms.new_rows import look_up, new_keys

_POSITION = "_position"


@dataclass(frozen=True)
class Deduplicated:
    """`first`: the rows to load; `members`: the relation's rows to append; `duplicates`: how many rows were dropped."""

    first: pa.Table
    members: pa.Table
    duplicates: int


def drop_duplicates(
    rows: pa.Table, relation: RelationView, on: Sequence[tuple[str, str]], load_id: str, prefer: Sequence[str] = ()
) -> Deduplicated:
    """A row with a null in its business key has no key: it is kept, and not remembered."""
    answer = look_up(rows, relation, on)
    stream = [name for name, _ in on]
    loaded_before = pc.fill_null(pc.not_equal(answer.created_by, load_id), False)
    fresh = rows.filter(pc.invert(loaded_before))
    known = answer.known.filter(pc.invert(loaded_before))
    has_key = reduce(pc.and_, [fresh.column(name).is_valid() for name in stream])
    first = _first_by_key(fresh.filter(has_key), stream, prefer)
    members = new_keys(fresh, known, on, relation)
    kept = pa.concat_tables([first, fresh.filter(pc.invert(has_key))])
    return Deduplicated(kept, members.cast(relation.schema), rows.num_rows - kept.num_rows)


def _first_by_key(rows: pa.Table, key: Sequence[str], prefer: Sequence[str]) -> pa.Table:
    order = [*prefer, *(name for name in rows.column_names if name not in prefer)]
    ranked = rows.sort_by([(name, "ascending") for name in order])
    ranked = ranked.append_column(_POSITION, pa.array(np.arange(ranked.num_rows)))
    winners = ranked.group_by(list(key), use_threads=False).aggregate([(_POSITION, "min")]).column(f"{_POSITION}_min")
    return ranked.take(winners.take(pc.sort_indices(winners))).drop_columns([_POSITION])
