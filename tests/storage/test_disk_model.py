"""The disk model: seeks and transfers are charged exactly, and only those."""

import pyarrow as pa
import pytest

from etl.errors import BadInput
from etl.storage.disk_model import DiskModel, ModelledRuns, VirtualClock
from etl.storage.memory_runs import MemoryRuns
from etl.storage.ports import RunName, RunStore

BLOCK = pa.record_batch({"number": pa.array(range(100))})
SEEK = 0.5
SPEED = 1000.0
TRANSFER = len(BLOCK.serialize()) / SPEED


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> RunStore:
    return ModelledRuns(MemoryRuns(), DiskModel(SEEK, SPEED, clock))


def write(store: RunStore, blocks: int) -> RunName:
    writer = store.writer("run", BLOCK.schema)
    for _ in range(blocks):
        writer.append(BLOCK)
    return writer.seal()


def test_a_run_written_in_one_go_costs_one_seek(store: RunStore, clock: VirtualClock) -> None:
    write(store, 3)
    assert clock.seconds == pytest.approx(SEEK + 3 * TRANSFER)


def test_two_runs_written_in_turns_cost_a_seek_a_block(store: RunStore, clock: VirtualClock) -> None:
    writers = [store.writer("run", BLOCK.schema) for _ in range(2)]
    for _ in range(3):
        for writer in writers:
            writer.append(BLOCK)
    assert clock.seconds == pytest.approx(6 * (SEEK + TRANSFER))


def test_a_scan_costs_one_seek_and_hops_cost_one_each(store: RunStore, clock: VirtualClock) -> None:
    reader = store.open(write(store, 4))
    for numbers, seeks in [((0, 1, 2, 3), 1), ((3, 1, 2, 0), 3), ((0,), 1), ((1, 2), 0)]:
        started = clock.seconds
        for number in numbers:
            reader.block(number)
        assert clock.seconds - started == pytest.approx(seeks * SEEK + len(numbers) * TRANSFER)


def test_a_write_in_between_moves_the_head(store: RunStore, clock: VirtualClock) -> None:
    reader = store.open(write(store, 2))
    reader.block(0)
    write(store, 1)
    started = clock.seconds
    reader.block(1)
    assert clock.seconds - started == pytest.approx(SEEK + TRANSFER)


def test_stores_that_share_a_model_share_its_head(clock: VirtualClock) -> None:
    model = DiskModel(SEEK, SPEED, clock)
    stores = [ModelledRuns(MemoryRuns(), model) for _ in range(2)]
    readers = [store.open(write(store, 2)) for store in stores]
    started = clock.seconds
    for number in range(2):
        for reader in readers:
            reader.block(number)
    # The fakes name their runs alike, but these are different places of the disk.
    assert clock.seconds - started == pytest.approx(4 * (SEEK + TRANSFER))


def test_looking_at_sizes_and_deleting_cost_nothing(store: RunStore, clock: VirtualClock) -> None:
    run = write(store, 2)
    started = clock.seconds
    reader = store.open(run)
    assert (len(reader), reader.rows_in_block(1)) == (2, 100)
    store.delete(run)
    assert clock.seconds == started


def test_time_and_disks_that_cannot_be_are_refused(clock: VirtualClock) -> None:
    for seconds in (-1.0, float("nan")):
        with pytest.raises(BadInput, match="cannot advance"):
            clock.advance(seconds)
    assert clock.seconds == 0
    with pytest.raises(BadInput, match="seek_seconds is -1"):
        DiskModel(-1, SPEED, clock)
    with pytest.raises(BadInput, match="bytes_per_second is 0"):
        DiskModel(SEEK, 0, clock)
