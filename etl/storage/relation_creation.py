"""Version 1 of a relation, from any number of rows."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from etl.errors import BadInput
from etl.storage.bulk_load import (
    LoadSettings,
    Spool,
    cut_segments,
    highest_of,
    spooled_partitioning,
    write_segments,
)
from etl.storage.partitioning import Partitioning
from etl.storage.relation_rows import (
    CREATED_WITH_RELATION,
    RelationShape,
    check_rows,
    file_label,
    stored_rows,
)
from etl.storage.relation_state import RelationFile, VersionState
from etl.storage.relation_version import OpenVersion, RelationParts, timestamp
from etl.storage.writers import run_label


def first_version(
    parts: RelationParts,
    shape: RelationShape,
    batches: Iterable[pa.RecordBatch],
    highest: int | str,
    settings: LoadSettings,
) -> OpenVersion:
    """Commit version 1; AlreadyPublished when the relation exists.

    `highest` is the highest surrogate key, or the name of the column to find it in.
    """
    if isinstance(highest, str) and highest not in shape.schema.names:
        raise BadInput(f"relation {shape.name} has no column {highest!r} to take the highest key from")
    spool = Spool(shape, settings)
    try:
        found = _spool_up(shape, batches, spool, highest, settings)
        with parts.writers.working() as token:
            partitioning, files = _written(parts, shape, spool, token, settings)
            state = VersionState(
                shape=shape,
                partitioning=partitioning,
                version=1,
                checkpoint=1,
                work="create",
                created_at=timestamp(parts.clock),
                load_id=CREATED_WITH_RELATION,
                highest=found,
                rows=spool.rows,
                files=files,
                load_runs=(),
                recent_loads={},
            )
            try:
                parts.log.commit(state, None)
            except BaseException:
                for file in files:
                    parts.runs.delete(file.run)
                raise
    finally:
        spool.close()
    return OpenVersion(parts, state)


def _spool_up(
    shape: RelationShape,
    batches: Iterable[pa.RecordBatch],
    spool: Spool,
    highest: int | str,
    settings: LoadSettings,
) -> int:
    """Take in all rows; the highest surrogate key."""
    found = highest if isinstance(highest, int) else 0
    for batch in batches:
        check_rows(shape, batch)
        spool.add(stored_rows(shape, batch, CREATED_WITH_RELATION))
        if isinstance(highest, str):
            found = max(found, highest_of(batch.column(highest)))
        settings.progress("reading", spool.rows, 0)
    return found


def _written(
    parts: RelationParts, shape: RelationShape, spool: Spool, token: str, settings: LoadSettings
) -> tuple[Partitioning, tuple[RelationFile, ...]]:
    partitioning = spooled_partitioning(shape, spool)
    boundaries: list[int] = []

    def numbered() -> Iterator[tuple[int, pa.RecordBatch]]:
        done = 0
        for segment in cut_segments(shape, spool, partitioning, settings):
            # The first segment begins where coordinates begin, so that every key belongs somewhere.
            boundaries.append(segment.lowest if boundaries else 0)
            yield boundaries[-1], segment.rows
            done += segment.rows.num_rows
            settings.progress("writing", done, spool.rows)

    label = run_label(file_label(CREATED_WITH_RELATION), token)
    runs = list(write_segments(parts.runs, shape, label, numbered(), settings.run_bytes))
    files = tuple(RelationFile(run, False, 1, 1) for run in runs)
    return partitioning.redrawn(np.array(boundaries or [0], np.uint64)), files
