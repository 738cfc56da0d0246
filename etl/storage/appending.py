"""Making the next version from a load's rows.

Idea: a load writes one run for all segments, because a commit waits for the disk once per file. When there are too many
such delta runs, the appender takes up the youngest of them into its own run, as many as are together no larger than
the next older one: so a row is rewritten only a logarithmic number of times, and a probe meets few blocks.

Limits: a delta of more than `MOST_FOLDED_ROWS` is left to compaction, so that an append stays short; many large
loads without compaction therefore make more delta runs than that.
"""

from dataclasses import replace

import pyarrow as pa

from etl.errors import AlreadyPublished, BadInput, CommitRace, MissingFile
from etl.storage.relation_rows import block_batches, check_rows, file_label, sliced_block, stored_rows
from etl.storage.relation_runs import write_run
from etl.storage.relation_state import RelationFile, VersionState
from etl.storage.relation_version import OpenVersion, timestamp, with_checkpoint
from etl.storage.writers import run_label

MOST_FOLDED_ROWS = 1 << 20


def append(version: OpenVersion, rows: pa.Table, load_id: str, highest: int) -> OpenVersion:
    """Commit the next version with these rows, or find the one that the load made; CommitRace when we lose.

    A version that the load made and that was dropped since gives the newest one, which has all its rows.
    """
    shape = version.state.shape
    if not load_id:
        raise BadInput(f"relation {shape.name}: rows need the id of the load that brings them")
    while True:
        newest = version.newest()
        made = newest.find(load_id)
        if made is not None:
            return at_or_after(newest, made)
        if highest < version.state.highest:
            raise BadInput(
                f"relation {shape.name}, load {load_id}: highest surrogate key {highest} is below "
                f"{version.state.highest} of version {version.state.version}; a key is never given twice"
            )
        check_rows(shape, rows)
        # A compaction moves rows but brings none: what was resolved before it still holds after it.
        if newest is not version and not only_compactions_since(version, newest):
            raise _race_lost(version, load_id)
        committed = _try(newest, rows, load_id, highest)
        if committed is not None:
            return committed


def find_load_version(version: OpenVersion, load_id: str) -> int | None:
    """The version that the load made, also when it is newer than this one."""
    made = version.find(load_id)
    return version.newest().find(load_id) if made is None else made


def at_or_after(newest: OpenVersion, made: int) -> OpenVersion:
    """A version that a load made; the newest one, which has all its rows, when that was dropped."""
    try:
        return newest.at(made)
    except MissingFile:
        if made in newest.parts.log.openable():
            raise
        return newest


def only_loads_since(version: OpenVersion, newest: OpenVersion) -> bool:
    """Whether loads made all versions after `version`; no when some of them were dropped already."""
    return None not in _loads_since(version, newest)


def only_compactions_since(version: OpenVersion, newest: OpenVersion) -> bool:
    """The same for compactions."""
    loads = _loads_since(version, newest)
    return loads is not _DROPPED and set(loads) == {None}


def folded(deltas: tuple[RelationFile, ...], new_rows: int, most: int) -> tuple[RelationFile, ...]:
    """The youngest deltas that the next run takes up; none while there are fewer than `most`."""
    if len(deltas) < most or not new_rows:
        return ()
    rows, chosen = new_rows, 0
    for delta in reversed(deltas):
        too_large = rows + delta.run.rows > MOST_FOLDED_ROWS
        if too_large or (chosen and delta.run.rows > rows):
            break
        rows += delta.run.rows
        chosen += 1
    return deltas[len(deltas) - chosen :]


def remove_runs(version: OpenVersion, after: VersionState) -> None:
    """Delete what was written for a version that will not be."""
    kept = {file.run.name for file in version.state.files} | {run.name for run in version.state.load_runs}
    for run in (*(file.run for file in after.files), *after.load_runs):
        if run.name not in kept:
            version.parts.runs.delete(run)


def _try(version: OpenVersion, rows: pa.Table, load_id: str, highest: int) -> OpenVersion | None:
    """Commit right after `version`; None when somebody else did."""
    with version.parts.writers.working() as token:
        after = _with_rows(version, rows, load_id, highest, token)
        try:
            version.parts.log.commit(after, version.state)
        except AlreadyPublished:
            remove_runs(version, after)
            return None
    return OpenVersion(version.parts, after, version)


def _with_rows(version: OpenVersion, rows: pa.Table, load_id: str, highest: int, token: str) -> VersionState:
    state = version.state
    number = state.version + 1
    taken_up = folded(state.deltas, rows.num_rows, version.parts.most_deltas)
    batches = [stored_rows(state.shape, batch, load_id) for batch in rows.to_batches()]
    together = pa.Table.from_batches([*version.rows_in(taken_up), *batches], state.shape.stored)
    blocks = (sliced_block(state.shape, state.partitioning, batch) for batch in block_batches(together))
    run = write_run(version.parts.runs, state.shape, run_label(file_label(load_id), token), blocks)
    first = min((file.first_version for file in taken_up), default=number)
    added = () if run is None else (RelationFile(run, True, first, number),)
    after = replace(
        state,
        version=number,
        work="append",
        created_at=timestamp(version.parts.clock),
        load_id=load_id,
        highest=highest,
        rows=state.rows + rows.num_rows,
        files=(*(file for file in state.files if file not in taken_up), *added),
        recent_loads={**state.recent_loads, load_id: number},
    )
    return with_checkpoint(version.parts, after, token)


_DROPPED: list[str | None] = [None]


def _loads_since(version: OpenVersion, newest: OpenVersion) -> list[str | None]:
    try:
        return version.parts.log.loads(version.state.version + 1, newest.state.version)
    except MissingFile:
        return _DROPPED


def _race_lost(version: OpenVersion, load_id: str) -> CommitRace:
    loads = [load for load in _loads_since(version, version.newest()) if load is not None]
    by = f"load {loads[0]}" if loads else "another writer"
    return CommitRace(
        f"relation {version.state.shape.name}: {by} made a version after version {version.state.version} before "
        f"load {load_id} could; resolve against the newest version and append again"
    )
