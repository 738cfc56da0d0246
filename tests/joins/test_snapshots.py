"""Snapshots: what is written is what is read, damage is named, and files of every format restore for ever.

The golden files in `tests/data/snapshots` hold one snapshot a join, as format 1 wrote it. `python -m
tests.joins.test_snapshots` writes the missing ones: for a join that is new, or after the format has moved on. A file
that exists is never written again.
"""

from __future__ import annotations

import decimal
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from etl import joins
from etl.errors import BadInput, CorruptFile, ForeignFormat
from etl.joins import EndOfSide, Operator, Progress, Rows, Snapshot, Tick, WorkBudget
from etl.joins.snapshots import FORMAT
from etl.storage.memory_relation import create_memory_relation
from etl.storage.memory_runs import MemoryRuns
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from tests.harness.flush_all import FlushAll, entered
from tests.harness.player import Player
from tests.harness.subjects import Subject, prove, subjects
from tests.oracle import Row, inner_join, rows_of
from tests.scripts import Script

GOLDEN = Path(__file__).parents[1] / "data" / "snapshots"


# What is written is what is read.


@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_every_state_survives_the_round_trip(subject: Subject) -> None:
    prove(_round_trips, subject, examples=30)


def test_the_names_of_runs_survive_the_round_trip() -> None:
    with entered(FlushAll) as name:
        prove(_round_trips, Subject(name), examples=20)


def _round_trips(subject: Subject, script: Script) -> None:
    player = Player(subject, script)
    for step in script.steps:
        player.step(step)
        snapshot = player.operator.snapshot()
        stored = snapshot.to_bytes()
        read = Snapshot.from_bytes(stored)
        assert read.to_bytes() == stored
        assert (read.operator, read.sides, read.lifecycle) == (snapshot.operator, snapshot.sides, snapshot.lifecycle)
        assert read.arguments == snapshot.arguments
        assert read.relation_version == snapshot.relation_version
        assert (read.state.values, read.state.runs) == (snapshot.state.values, snapshot.state.runs)
        assert _rows_by_table(read) == _rows_by_table(snapshot)


@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_a_snapshot_stays_true_while_the_operator_goes_on(subject: Subject) -> None:
    prove(_stays_true, subject, examples=20)


def _stays_true(subject: Subject, script: Script) -> None:
    player = Player(subject, script)
    taken: list[tuple[Snapshot, bytes]] = []
    for step in script.steps:
        snapshot = player.operator.snapshot()
        taken.append((snapshot, snapshot.to_bytes()))
        player.step(step)
    player.finish()
    player.operator.close()
    assert all(snapshot.to_bytes() == stored for snapshot, stored in taken)


def test_a_mapped_file_is_read_without_copying_it_first(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(_half_way("symmetric-hash").snapshot().to_bytes())
    with pa.memory_map(str(path)) as mapped:
        assert Snapshot.from_bytes(mapped.read_buffer(), origin=str(path)).operator == "symmetric-hash"


# Damage is named.


@pytest.mark.parametrize("name", ["symmetric-hash", "hash-partitioned", "meshjoin"])
def test_a_change_of_any_byte_is_found(name: str) -> None:
    stored = _half_way(name).snapshot().to_bytes()
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 1 << position % 8
        with pytest.raises((CorruptFile, ForeignFormat), match=r"^group 7 "):
            Snapshot.from_bytes(bytes(damaged), origin="group 7")


@pytest.mark.parametrize("name", ["symmetric-hash", "hash-partitioned", "meshjoin"])
def test_a_cut_at_any_length_is_found(name: str) -> None:
    stored = _half_way(name).snapshot().to_bytes()
    for length in range(len(stored)):
        with pytest.raises((CorruptFile, ForeignFormat), match=r"^group 7 "):
            Snapshot.from_bytes(stored[:length], origin="group 7")
    with pytest.raises(CorruptFile, match="group 7 does not match its checksum"):
        Snapshot.from_bytes(stored + b"\0", origin="group 7")


def test_another_file_is_told_from_a_damaged_one() -> None:
    stored = _half_way("symmetric-hash").snapshot().to_bytes()
    with pytest.raises(ForeignFormat, match=r"notes\.txt is not a Headrace snapshot"):
        Snapshot.from_bytes(b"some notes of somebody else, longer than any header", origin="notes.txt")
    with pytest.raises(CorruptFile, match="group 7 is truncated: 20 bytes"):
        Snapshot.from_bytes(stored[:20], origin="group 7")


def test_a_newer_format_is_refused() -> None:
    newer = _with_format(_half_way("symmetric-hash").snapshot().to_bytes(), FORMAT + 1)
    with pytest.raises(
        ForeignFormat, match=f"group 7 has snapshot format {FORMAT + 1}; this Headrace reads up to {FORMAT}"
    ):
        Snapshot.from_bytes(newer, origin="group 7")
    same = _with_format(newer, FORMAT)
    assert Snapshot.from_bytes(same).operator == "symmetric-hash", "nothing but the format was wrong with it"


def _with_format(stored: bytes, number: int) -> bytes:
    """The same snapshot under another format number, with a checksum that fits."""
    magic, body = stored[:8], stored[8:-16]
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length]) | {"format": number}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    changed = magic + len(encoded).to_bytes(8, "little") + encoded + body[8 + length :]
    return changed + xxhash.xxh3_128_digest(changed)


# Versions of the relation.


def test_a_lookup_is_not_restored_with_an_older_version_than_it_has_seen() -> None:
    older = _customers("hash-partitioned")
    newer = older.append(_customer_rows([(9, 90)]), "load 2", highest=90)
    operator = _built("hash-partitioned", relation=older)
    operator.offer(joins.RelationVersion(newer), list[object]().append)
    snapshot = Snapshot.from_bytes(operator.snapshot().to_bytes())
    assert snapshot.relation_version == newer.version
    with pytest.raises(
        BadInput,
        match="the snapshot saw version 2 of relation customers, version 1 is older: open that version or a newer one",
    ):
        joins.restore(snapshot, relation=older)
    for relation in (newer, newer.append(_customer_rows([]), "load 3", highest=90)):
        assert joins.restore(snapshot, relation=relation).snapshot().relation_version == relation.version


# Files of every format restore for ever.


def test_every_join_has_a_golden_file() -> None:
    assert set(NAMES) == {path.stem.partition(".")[0] for path in _golden_files()}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*")), ids=lambda path: path.name)
def test_a_golden_file_restores_and_finishes_its_work(path: Path) -> None:
    snapshot = Snapshot.from_bytes(path.read_bytes(), origin=path.name)
    name = path.stem.partition(".")[0]
    operator = joins.restore(snapshot, relation=_customers(name) if name in LOOKUPS else None)
    before = operator.counters.results
    assert operator.counters.rows_in == ([4] if name in LOOKUPS else [4, 3])
    results = _finished(operator)
    assert Counter(rows_of(results)) == _owed(name)
    assert operator.counters.results == before + sum(batch.num_rows for batch in results)


NAMES = [entry.name for entry in joins.catalogue() if isinstance(entry.operator, type)]
"""The joins that are themselves: `auto` is a choice among them, and its snapshots are those of what it chose."""
LOOKUPS = {entry.name for entry in joins.catalogue() if entry.with_relation}


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_files_are_what_todays_code_is_asked_as_well(name: str) -> None:
    """Otherwise a wrong expectation would only show when the format changes."""
    assert Counter(rows_of(_finished(_half_way(name)))) == _owed(name)


ORDERS = pa.schema([("order_no", pa.string()), ("nr", pa.int64()), ("amount", pa.decimal128(10, 2))])
PAYMENTS = pa.schema([("order_no", pa.string()), ("nr", pa.int64()), ("tags", pa.list_(pa.string()))])
CUSTOMERS = pa.schema([("number", pa.int64()), ("surrogate", pa.int64())])

PRICE = decimal.Decimal("19.90")
EARLY_ORDERS: list[Row] = [("a", 1, PRICE), ("b", 1, None), ("a", 2, -PRICE), (None, 1, PRICE)]
LATE_ORDERS: list[Row] = [("c", 3, None), ("a", 1, 2 * PRICE)]
EARLY_PAYMENTS: list[Row] = [("a", 1, ("x", "y")), ("c", 3, ()), ("b", None, None)]
LATE_PAYMENTS: list[Row] = [("a", 2, None), ("a", 1, ("z",))]


def _half_way(name: str, results: list[pa.RecordBatch] | None = None) -> Operator:
    """The life that the golden files hold, up to the snapshot: it owes results and has rows of both sides to keep.

    A lookup has had a tick, and has read one block: MESHJOIN is half-way through its cycle.
    """
    emit = [].append if results is None else results.append
    operator = _built(name, relation=_customers(name) if name in LOOKUPS else None)
    if name in LOOKUPS:
        operator.offer(Tick(3), emit)
        operator.offer(Rows(0, _batch(ORDERS, EARLY_ORDERS)), emit)
        assert operator.work(WorkBudget(blocks=1), emit) is Progress.MORE
    else:
        operator.offer(Rows(0, _batch(ORDERS, EARLY_ORDERS)), emit)
        operator.offer(Rows(1, _batch(PAYMENTS, EARLY_PAYMENTS)), emit)
    return operator


def _finished(operator: Operator) -> list[pa.RecordBatch]:
    """The rest of the life: what comes out after the snapshot."""
    results: list[pa.RecordBatch] = []
    operator.offer(Rows(0, _batch(ORDERS, LATE_ORDERS)), results.append)
    operator.offer(EndOfSide(0), results.append)
    if len(operator.plan.sides) == 2:
        operator.offer(Rows(1, _batch(PAYMENTS, LATE_PAYMENTS)), results.append)
        operator.offer(EndOfSide(1), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    return results


def _owed(name: str) -> Counter[Row]:
    """By definition, less what came before the snapshot."""
    if name in LOOKUPS:
        known: list[Row] = [(number, surrogate, "", 1) for number, surrogate in KNOWN_CUSTOMERS]
        whole = inner_join(EARLY_ORDERS + LATE_ORDERS, known, on=[(1, 0)])
    else:
        whole = inner_join(EARLY_ORDERS + LATE_ORDERS, EARLY_PAYMENTS + LATE_PAYMENTS, on=[(0, 0), (1, 1)])
    early: list[pa.RecordBatch] = []
    _half_way(name, early)
    came = Counter(rows_of(early))
    assert came <= whole
    assert whole - came, "a snapshot of a join that owes nothing proves nothing"
    return whole - came


KNOWN_CUSTOMERS = [(1, 10), (2, 20), (4, 40), (5, 50), (6, 60)]


def _customers(name: str) -> Relation:
    rows = [_customer_rows(KNOWN_CUSTOMERS)]
    partition: PartitionKind = "range" if name == "range-partitioned" else "hash"
    return create_memory_relation("customers", CUSTOMERS, ("number",), rows, theta=1, partition=partition)


def _customer_rows(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"number": number, "surrogate": key} for number, key in rows], CUSTOMERS)


def _built(name: str, relation: Relation | None) -> Operator:
    if relation is not None:
        return joins.build(name, sides=[ORDERS], on=[("nr", "number")], relation=relation)
    entry = next(entry for entry in joins.catalogue() if entry.name == name)
    return joins.build(
        name,
        sides=[ORDERS, PAYMENTS],
        on=[("order_no", "order_no"), ("nr", "nr")],
        spill=MemoryRuns() if entry.needs_spill else None,
        **({"event_times": ("nr", "nr"), "windows": (5, 5)} if Subject(name).has_windows else {}),  # type: ignore[arg-type]
    )


def _batch(schema: pa.Schema, rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _rows_by_table(snapshot: Snapshot) -> dict[str, list[Row]]:
    return {name: rows_of(batches) for name, batches in snapshot.state.tables.items()}


def _golden_files() -> list[Path]:
    return sorted(GOLDEN.glob(f"*.format-{FORMAT}.snapshot"))


def write_missing_golden_files() -> None:
    for name in NAMES:
        path = GOLDEN / f"{name}.format-{FORMAT}.snapshot"
        if not path.exists():
            path.write_bytes(_half_way(name).snapshot().to_bytes())


if __name__ == "__main__":
    write_missing_golden_files()
