"""Bad input: each mistake gets the right error with the culprit's name, before anything is changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from etl import joins
from etl.errors import BadInput, HeadraceError, IllegalEvent, StorageError
from etl.joins import EndOfSide, Operator, Progress, Punctuation, RelationVersion, Rows, Tick, Watermark, WorkBudget
from etl.storage.memory_relation import create_memory_relation
from etl.storage.memory_runs import MemoryRuns
from etl.storage.relation import Relation
from etl.storage.run_files import RunFiles
from tests.harness.flush_all import FlushAll, entered
from tests.oracle import inner_join, rows_of

LEFT = pa.schema([("key", pa.int64()), ("text", pa.string()), ("price", pa.float64())])
RIGHT = pa.schema([("key", pa.int64()), ("small", pa.int32()), ("tags", pa.list_(pa.string()))])
STREAMS: dict[str, object] = {"sides": [LEFT, RIGHT], "on": [("key", "key")]}


def customers(version: int = 1) -> Relation:
    """A relation keyed by (country, number), moved on to a version."""
    schema = pa.schema([("country", pa.string()), ("number", pa.int64()), ("surrogate", pa.int64())])
    relation = create_memory_relation("customers", schema, ("country", "number"))
    for number in range(1, version):
        relation = relation.append(pa.RecordBatch.from_pylist([], schema), f"load-{number}", highest=0)
    return relation


LOOKUP: dict[str, object] = {
    "sides": [pa.schema([("land", pa.string()), ("nr", pa.int64())])],
    "on": [("land", "country"), ("nr", "number")],
}


# Building


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("symetric-hash", {}, "there is no join named 'symetric-hash': did you mean 'symmetric-hash'?"),
        ("nested", {}, "there is no join named 'nested': it takes 'auto', 'bucketed-window', "),
        ("symmetric-hash", {"on": [("nr", "key")]}, "side 0 has no key column 'nr': it has 'key', 'text', 'price'"),
        ("symmetric-hash", {"on": [("key", "nr")]}, "side 1 has no key column 'nr': it has 'key', 'small', 'tags'"),
        ("symmetric-hash", {"on": [("key", "small")]}, "side 0 column 'key' is int64, side 1 column 'small' is int32"),
        ("symmetric-hash", {"on": [("price", "key")]}, "side 0 key column 'price' is double: floats do not compare"),
        ("symmetric-hash", {"on": [("key", "tags")]}, "side 1 key column 'tags' is list<"),
        ("symmetric-hash", {"on": []}, "on is empty"),
        ("symmetric-hash", {"on": [("key",)]}, "on[0] is ('key',): it names 1 columns for 2 inputs"),
        ("symmetric-hash", {"memory_bytes": 65_535}, "memory_bytes is 65535, below one block of 65536 bytes"),
        ("symmetric-hash", {"memory_bytes": 99, "block_bytes": 100}, "memory_bytes is 99, below one block of 100"),
        ("symmetric-hash", {"block_bytes": 0}, "block_bytes is 0"),
        ("symmetric-hash", {"result_rows": 0}, "result_rows is 0: an emitted batch holds at least one row"),
        ("symmetric-hash", {"fan_in": 4}, "symmetric-hash has no setting 'fan_in': it takes none"),
        ("symmetric-hash", {"sides": [LEFT]}, "symmetric-hash joins 2 stream side(s), sides names 1"),
        ("symmetric-hash", {"sides": [LEFT] * 3}, "symmetric-hash joins 2 stream side(s), sides names 3"),
        ("symmetric-hash", {"relation": customers()}, "symmetric-hash joins streams only: it takes no relation"),
        ("symmetric-hash", {"how": "left"}, "symmetric-hash: how is 'left', it can be 'inner'"),
        ("symmetric-hash", {"suffixes": ["", ""]}, "result column 'key' repeats: choose other suffixes than ['', '']"),
        ("symmetric-hash", {"suffixes": ["_1"]}, "suffixes has 1 entries for 2 inputs"),
    ],
)
def test_a_stream_join_that_cannot_be_built(name: str, changed: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        joins.build(name, **(STREAMS | changed))  # type: ignore[arg-type]
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"relation": None}, "hash-partitioned joins a stream with a relation: give relation="),
        ({"sides": [LEFT, RIGHT]}, "hash-partitioned joins 1 stream side(s), sides names 2"),
        ({"how": "outer"}, "hash-partitioned: how is 'outer', it can be 'inner' or 'left'"),
        ({"on": [("land", "country")]}, "relation customers is keyed by 'country', 'number', on names 'country': name"),
        ({"on": []}, "on names nothing: name each key column once"),
        ({"on": [()]}, "on names nothing: name each key column once"),
        ({"on": [("land", "country"), ("nr", "surrogate")]}, "keyed by 'country', 'number', on names 'country', 'surr"),
        ({"on": [("land", "country"), ("nr", "number"), ("nr", "number")]}, "name each key column once"),
        (
            {"on": [("land", "country"), ("land", "number")]},
            "side 0 column 'land' is string, relation customers column",
        ),
        ({"on": [("land", "country"), ("no", "number")]}, "side 0 has no key column 'no': it has 'land', 'nr'"),
        ({"suffixes": ["", "", ""]}, "suffixes has 3 entries for 2 inputs"),
        ({"memory_bytes": 1}, "memory_bytes is 1, below one block"),
        ({"rows": 4}, "hash-partitioned has no setting 'rows': it takes 'invocation_rows', 'freed_share', 'rho', "),
        ({"deadlines": 4}, "hash-partitioned has no setting 'deadlines': did you mean 'deadline'?"),
    ],
)
def test_a_lookup_that_cannot_be_built(changed: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        joins.build("hash-partitioned", **(LOOKUP | {"relation": customers()} | changed))  # type: ignore[arg-type]
    assert message in str(refusal.value)


def test_a_join_that_spills_asks_for_somewhere_to_spill() -> None:
    with entered(FlushAll) as name, pytest.raises(BadInput, match=r"flush-all spills all rows: give spill=RunFiles\("):
        joins.build(name, **STREAMS)  # type: ignore[arg-type]


def test_a_spill_folder_that_cannot_be_written_is_refused_before_a_join_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=f"cannot write to folder {tmp_path / 'file' / 'spill'}: .*; name a folder"):
        joins.build("symmetric-hash", spill=RunFiles(tmp_path / "file" / "spill"), **STREAMS)  # type: ignore[arg-type]
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_work_budget_below_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="a work budget of -1 blocks"):
        WorkBudget(blocks=-1)


def test_columns_in_another_order_than_the_relations_key_are_no_mistake() -> None:
    operator = joins.build("hash-partitioned", relation=customers(), **(LOOKUP | {"on": LOOKUP["on"][::-1]}))  # type: ignore
    assert operator.plan.on == (("land", "country"), ("nr", "number"))


# Restoring


def test_a_snapshot_is_not_restored_with_less_than_one_block() -> None:
    snapshot = joins.build("symmetric-hash", **STREAMS).snapshot()  # type: ignore[arg-type]
    for memory_bytes in (0, 1):
        with pytest.raises(BadInput, match=f"memory_bytes is {memory_bytes}, below one block of 65536 bytes"):
            joins.restore(snapshot, memory_bytes=memory_bytes)


def test_a_snapshot_of_a_lookup_needs_its_relation() -> None:
    snapshot = joins.build("hash-partitioned", relation=customers(), **LOOKUP).snapshot()  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="hash-partitioned joins a stream with a relation"):
        joins.restore(snapshot)


def test_a_snapshot_of_a_join_that_does_not_exist_is_refused() -> None:
    with entered(FlushAll) as name:
        snapshot = joins.build(name, spill=MemoryRuns(), **STREAMS).snapshot()  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="there is no join named 'flush-all'"):
        joins.restore(snapshot, spill=MemoryRuns())


# Events


def test_wrong_events_on_streams_change_nothing() -> None:
    left = [pa.record_batch([[1, 2, None], ["a", None, "c"], [0.5, 1.5, 2.5]], schema=LEFT)] * 2
    right = [pa.record_batch([[2, 1, 1], [1, 2, 3], [["x"], [], None]], schema=RIGHT)] * 2
    results: list[pa.RecordBatch] = []
    operator = joins.build("symmetric-hash", **STREAMS)  # type: ignore[arg-type]
    _offer_wrong(operator, results, _wrong_on_streams())
    operator.offer(Rows(0, left[0]), results.append)
    operator.offer(Rows(1, right[0]), results.append)
    _offer_wrong(operator, results, _wrong_on_streams())
    operator.offer(Rows(0, left[1]), results.append)
    operator.offer(EndOfSide(0), results.append)
    ended = "symmetric-hash: {} on side 0, which has ended"
    _offer_wrong(
        operator,
        results,
        [
            (Rows(0, left[0]), IllegalEvent, ended.format("Rows")),
            (EndOfSide(0), IllegalEvent, ended.format("EndOfSide")),
            (Watermark(0, 5), IllegalEvent, ended.format("Watermark")),
            (Punctuation(0, {}), IllegalEvent, ended.format("Punctuation")),
            *_wrong_on_streams(open_side=1),
        ],
    )
    operator.offer(Rows(1, right[1]), results.append)
    operator.offer(EndOfSide(1), results.append)
    _offer_wrong(
        operator,
        results,
        [(Rows(1, right[0]), IllegalEvent, "symmetric-hash: Rows is not legal, the operator is cleaning-up")],
    )
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert Counter(rows_of(results)) == inner_join(rows_of(left), rows_of(right), on=[(0, 0)])
    with pytest.raises(IllegalEvent, match="symmetric-hash: Tick is not legal, the operator is done"):
        operator.offer(Tick(1), results.append)


def _wrong_on_streams(open_side: int = 0) -> list[tuple[joins.Event, type[HeadraceError], str]]:
    other = (LEFT, RIGHT)[1 - open_side]
    return [
        (Rows(2, _empty(LEFT)), BadInput, "there is no side 2, sides are 0 to 1"),
        (Rows(-1, _empty(LEFT)), BadInput, "there is no side -1, sides are 0 to 1"),
        (EndOfSide(2), BadInput, "there is no side 2"),
        (Watermark(7, 1), BadInput, "there is no side 7"),
        (Rows(open_side, _empty(other)), BadInput, f"symmetric-hash: side {open_side} was built for key: int64, "),
        (Rows(open_side, _empty(other)), BadInput, "the batch has key: int64, "),
        (RelationVersion(customers()), IllegalEvent, "symmetric-hash joins streams only: it takes no RelationVersion"),
    ]


def test_wrong_events_on_a_lookup_change_nothing() -> None:
    relation = customers()
    known = pa.record_batch([["se", "no"], [1, 2], [10, 20]], schema=relation.schema)
    relation = relation.append(known, "load", highest=20)
    operator = joins.build("hash-partitioned", relation=relation, **LOOKUP)  # type: ignore[arg-type]
    asked = pa.record_batch([["se", "se", None], [1, 2, 1]], schema=operator.plan.sides[0])
    other_key = create_memory_relation("customers", relation.schema, ("number",))
    other_cut = create_memory_relation("customers", relation.schema, relation.key, partition="range")
    other_name = create_memory_relation("products", relation.schema, relation.key)
    other_relation = "hash-partitioned was built for relation customers, the event brings another one"
    wrong: list[tuple[joins.Event, type[HeadraceError], str]] = [
        (Rows(1, asked), BadInput, "hash-partitioned: there is no side 1, sides are 0 to 0"),
        (Rows(0, _empty(LEFT)), BadInput, "hash-partitioned: side 0 was built for land: string, nr: int64, the batch"),
        (RelationVersion(relation.at(1)), BadInput, "version 1 of relation customers is older than version 2"),
        *((RelationVersion(other), BadInput, other_relation) for other in (other_key, other_cut, other_name)),
    ]
    results: list[pa.RecordBatch] = []
    _offer_wrong(operator, results, wrong)
    operator.offer(Rows(0, asked), results.append)
    _offer_wrong(operator, results, wrong)
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert rows_of(results) == [("se", 1, "se", 1, 10, "load", 2)]


def test_a_closed_operator_says_so() -> None:
    operator = joins.build("symmetric-hash", **STREAMS)  # type: ignore[arg-type]
    operator.close()
    with pytest.raises(IllegalEvent, match="Rows is not legal, the operator is closed"):
        operator.offer(Rows(0, _empty(LEFT)), list[object]().append)
    with pytest.raises(IllegalEvent, match="symmetric-hash: cannot work, the operator is closed"):
        operator.work(WorkBudget(), list[object]().append)
    with pytest.raises(IllegalEvent, match="symmetric-hash: no snapshot of an operator that is closed"):
        operator.snapshot()


def _offer_wrong(
    operator: Operator,
    results: list[pa.RecordBatch],
    wrong: list[tuple[joins.Event, type[HeadraceError], str]],
) -> None:
    """Each is refused for its reason, and neither state nor results have changed after."""
    before, emitted = operator.snapshot().to_bytes(), len(results)
    for event, error, message in wrong:
        with pytest.raises(error) as refusal:
            operator.offer(event, results.append)
        assert message in str(refusal.value)
        assert operator.snapshot().to_bytes() == before
        assert len(results) == emitted


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def test_view_columns_are_refused_when_the_join_is_built() -> None:
    """Arrow 26 has no `take` for them: before this check a join failed in the middle of its run."""
    left = pa.schema([("k", pa.int64()), ("text", pa.string_view())])
    right = pa.schema([("k", pa.int64())])
    with pytest.raises(BadInput, match="side 0 column 'text' is string_view: cast it"):
        joins.build("symmetric-hash", sides=[left, right], on=[("k", "k")])
