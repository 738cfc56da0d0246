"""Finding damage: everything that a version stands on is read and compared with what was written.

Nothing is repaired: whoever runs this decides what to restore.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from etl.errors import CorruptFile, HeadraceError, MissingFile, StorageError
from etl.kernels.filters import may_hold
from etl.kernels.hashing import hash_columns
from etl.storage.ports import RunName
from etl.storage.relation_rows import HASH_COLUMN, SLICE_COLUMN
from etl.storage.relation_runs import OpenRun
from etl.storage.relation_state import RelationFile
from etl.storage.relation_version import OpenVersion


def problems(version: OpenVersion) -> Iterator[StorageError]:
    """All that is wrong with the log, and with the files that this version names, each with the name of the file."""
    yield from _log_problems(version)
    for run in version.state.load_runs:
        yield from _caught(lambda run=run: _check_run(version, run))  # type: ignore[misc]
    whole = True
    for file in version.state.files:
        for problem in _caught(lambda file=file: _check_file(version, file)):  # type: ignore[misc]
            whole = False
            yield problem
    if whole:
        rows = sum(int(run.rows[live].sum()) for run, live in map(version.slices, version.state.files))
        if rows != version.state.rows:
            yield CorruptFile(
                f"relation {version.state.shape.name} holds {rows} rows in version {version.state.version}, "
                f"but its log says {version.state.rows}; restore the log from a copy"
            )


def _log_problems(version: OpenVersion) -> Iterator[StorageError]:
    log = version.parts.log
    numbers = log.versions()
    for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
        yield from _caught(lambda number=number: log.entry(number))  # type: ignore[misc]
    if version.state.version not in numbers:
        yield MissingFile(
            f"relation {version.state.shape.name}: version {version.state.version} has left the log; open a newer one"
        )


def _caught(check: Callable[[], object]) -> Iterator[StorageError]:
    try:
        check()
    except StorageError as error:
        yield error
    except HeadraceError as error:
        yield CorruptFile(str(error))


def _check_run(version: OpenVersion, run: RunName) -> None:
    reader = version.parts.runs.open(run)
    try:
        rows = sum(reader.rows_in_block(number) for number in range(len(reader)))
    finally:
        reader.close()
    if rows != run.rows:
        raise CorruptFile(
            f"run {run.name} of relation {version.state.shape.name} holds {rows} rows, but version "
            f"{version.state.version} names {run.rows}: restore it from a copy"
        )


def _check_file(version: OpenVersion, file: RelationFile) -> None:
    _check_run(version, file.run)
    reader = version.parts.runs.open(file.run, check_content=False)
    try:
        run = OpenRun(reader, version.state.shape, file.run)
        live = file.live(run.first_coordinate)
        for number, block in enumerate(run.blocks):
            _check_block(version, run, number, block, live[run.block == number])
    finally:
        reader.close()


def _check_block(version: OpenVersion, run: OpenRun, number: int, block: pa.RecordBatch, live: np.ndarray) -> None:
    """What a checksum cannot tell: that the rows stand where a probe looks for them."""
    state = version.state
    keys = state.shape.keys_of_stored(block)
    hashes = hash_columns(keys.views).hashes
    encoded = block.column(SLICE_COLUMN)
    starts = np.concatenate([[0], encoded.run_ends.to_numpy()[:-1]])
    ascends = np.concatenate([[True], hashes[1:] >= hashes[:-1]])
    ascends[starts] = True
    slice_of_row = np.repeat(np.arange(starts.size), np.diff(np.append(starts, block.num_rows)))
    expected = state.partitioning.segment_at(encoded.values.to_numpy())[slice_of_row]
    in_place = (state.partitioning.segment_of(keys) == expected) | ~live[slice_of_row]
    words = run.filter(number)
    filtered = may_hold(
        np.array([0, 1]),
        np.array([words.ctypes.data], np.uint64),
        np.array([words.size]),
        np.zeros(hashes.size, np.int32),
        hashes,
    )
    for fault, right in (
        ("their key hash differs from the stored one", hashes == block.column(HASH_COLUMN).to_numpy()),
        ("they are not sorted by key hash", ascends),
        ("they lie in the wrong relation segment", in_place),
        ("the filter does not know them", filtered),
    ):
        if not right.all():
            raise CorruptFile(
                f"run {run.name} of relation {state.shape.name}: {int((~right).sum())} rows of block {number} "
                f"cannot be found, {fault}; restore it from a copy"
            )
