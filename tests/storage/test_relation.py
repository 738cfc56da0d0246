"""Relations: one suite for the fake and the lookup store."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etl.errors import BadInput, CommitRace, MissingFile
from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns
from etl.storage.lookup_store import create_relation
from etl.storage.memory_relation import create_memory_relation
from etl.storage.ports import RelationStore, keys_of
from etl.storage.relation import Relation
from tests.storage.relations import KEY, SCHEMA, Row, all_rows, keys_in, numbered, probe_all, rows_of

Create = Callable[..., Relation]


PARTITIONS = ("hash", "range")


@pytest.fixture(params=["memory", "files"])
def create(request: pytest.FixtureRequest, tmp_path: Path) -> Create:
    """Creates a relation; each call makes another one."""
    made = iter(range(10**6))

    def create_one(schema: pa.Schema = SCHEMA, key: tuple[str, ...] = KEY, **settings: object) -> Relation:
        if request.param == "memory":
            return create_memory_relation("customers", schema, key, **settings)  # type: ignore[arg-type]
        return create_relation(tmp_path / f"{next(made)}", "customers", schema, key, **settings)  # type: ignore[arg-type]

    return create_one


def test_both_are_relation_stores(create: Create) -> None:
    relation: RelationStore = create()
    assert (relation.version, relation.rows, relation.highest, relation.segments) == (1, 0, 0, 1)
    assert relation.schema.equals(SCHEMA)
    assert relation.key == KEY


keys = st.tuples(st.sampled_from(["", "a", "ab", "ünï", "x" * 30]), st.integers(-3, 3))
stored_rows = st.lists(st.tuples(keys, st.integers(0, 9)).map(lambda pair: (*pair[0], pair[1])), max_size=30)
probing_keys = st.lists(
    st.tuples(st.none() | keys.map(lambda key: key[0]), st.none() | st.integers(-3, 3)), max_size=30
)


@given(
    base=stored_rows,
    loads=st.lists(stored_rows, max_size=3),
    probing=probing_keys,
    partition=st.sampled_from(PARTITIONS),
    theta=st.sampled_from([1, 2, 5, 100]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_probe_finds_what_the_definition_of_the_join_finds(
    create: Create,
    base: list[Row],
    loads: list[list[Row]],
    probing: list[tuple[str | None, int | None]],
    partition: str,
    theta: int,
) -> None:
    relation = create(partition=partition, theta=theta, batches=[rows_of(base)])
    for number, load in enumerate(loads):
        relation = relation.append(rows_of(load), f"load {number}", 0)
    stored = [(*row, "") for row in base]
    stored += [(*row, f"load {number}") for number, load in enumerate(loads) for row in load]
    expected = Counter(
        (position, row) for position, key in enumerate(probing) for row in stored if key == row[:2] and None not in key
    )
    columns = [pa.array([k[0] for k in probing], pa.string()), pa.array([k[1] for k in probing], pa.int32())]
    assert probe_all(relation, columns) == expected
    assert all_rows(relation) == sorted(stored)


def test_keys_that_share_a_hash_are_told_apart(create: Create) -> None:
    schema = pa.schema([("first", pa.uint64()), ("second", pa.uint64())])
    twins = [(1, 10), (2, _second_with_the_same_hash(1, 10, 2))]
    columns = [pa.array(column, pa.uint64()) for column in zip(*twins, strict=True)]
    hashes = hash_columns([view(column) for column in columns]).hashes
    assert hashes[0] == hashes[1], "the premise: different keys, one hash"
    relation = create(schema, ("first", "second"), batches=[pa.record_batch(columns, schema=schema)])
    assert probe_all(relation, columns) == {(0, (*twins[0], "")): 1, (1, (*twins[1], "")): 1}


def test_a_null_does_not_match_the_key_whose_hash_it_shares(create: Create) -> None:
    schema = pa.schema([("key", pa.uint64())])
    key = pa.array([_undo_permute(0)], pa.uint64())
    assert hash_columns([view(key)]).hashes[0] == 0, "the premise: the hash that nulls are given"
    relation = create(schema, ("key",), batches=[pa.record_batch([key], schema=schema)])
    assert probe_all(relation, [pa.array([None, key[0].as_py()], pa.uint64())]).keys() == {(1, (key[0].as_py(), ""))}


def test_a_probe_with_matches_beyond_one_chunk_stays_bounded(create: Create) -> None:
    schema = pa.schema([("key", pa.int64())])
    same = pa.record_batch([pa.array(np.zeros(400, np.int64))], schema=schema)
    relation = create(schema, ("key",), batches=[same])
    keys = keys_of(same.columns)
    sizes = [len(pairs.row) for pairs in relation.block_table().probe(relation.segment_of(keys), keys, 1000)]
    assert sum(sizes) == 160_000
    assert max(sizes) <= 1000


@pytest.mark.parametrize(
    ("arrow_type", "one", "other"),
    [
        (pa.int8(), -1, 1),
        (pa.uint64(), 2**64 - 1, 0),
        (pa.large_string(), "", "other"),
        (pa.binary(), b"\x00", b""),
        (pa.decimal128(12, 2), Decimal("1.10"), Decimal("-1.10")),
        (pa.date32(), date(1969, 12, 31), date(2024, 2, 29)),
        (pa.timestamp("us"), datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
        (pa.bool_(), True, False),
    ],
    ids=str,
)
def test_keys_of_every_kind_are_found(create: Create, arrow_type: pa.DataType, one: object, other: object) -> None:
    column = pa.array([one, other, one], arrow_type)
    schema = pa.schema([("key", arrow_type)])
    relation = create(schema, ("key",), batches=[pa.record_batch([column], schema=schema)])
    expected = {(0, (one, "")): 2, (1, (other, "")): 1, (2, (one, "")): 2}
    assert probe_all(relation, [column]) == expected


def test_a_reader_keeps_its_version(create: Create) -> None:
    first = create(batches=[numbered(range(5))], highest=5)
    second = first.append(numbered(range(5, 8)), "load 1", 8)
    third = second.append(pa.Table.from_batches([numbered([8]), numbered([9])]), "load 2", 10)
    assert [r.version for r in (first, second, third)] == [1, 2, 3]
    assert [r.rows for r in (first, second, third)] == [5, 8, 10]
    assert [r.highest for r in (first, second, third)] == [5, 8, 10]
    assert {row[1] for row in all_rows(first)} == set(range(5))
    assert {(row[1], row[3]) for row in all_rows(third) if row[3]} == {
        (5, "load 1"), (6, "load 1"), (7, "load 1"), (8, "load 2"), (9, "load 2"),
    }  # fmt: skip
    assert first.at(2).version == 2
    assert first.at().version == 3
    assert all_rows(third.at(2)) == all_rows(second)
    with pytest.raises(MissingFile, match=r"00000004\.json"):
        first.at(4)
    with pytest.raises(MissingFile, match="no version 0"):
        first.at(0)


def test_a_load_makes_one_version_however_often_it_is_replayed(create: Create) -> None:
    first = create()
    made = first.append(numbered([1]), "load 1", 1)
    made.append(numbered([2]), "load 2", 2)
    for handle in (first, made, first.at()):
        again = handle.append(numbered([1]), "load 1", 1)
        assert again.version == 2
        assert all_rows(again) == all_rows(made)
        assert (handle.find("load 1"), handle.find("load 2"), handle.find("load 3")) == (2, 3, None)
    assert first.at().version == 3


def test_a_load_without_new_rows_is_remembered_too(create: Create) -> None:
    relation = create(batches=[numbered([1])]).append(numbered([]), "load 1", 0)
    assert (relation.version, relation.rows, relation.find("load 1")) == (2, 1, 2)


def test_the_loser_of_a_race_is_told_and_can_try_again(create: Create) -> None:
    start = create(batches=[numbered([0])])
    loser = start.at()
    start.append(numbered([1]), "load 1", 1)
    with pytest.raises(CommitRace, match="customers: load load 1 made a version after version 1 before load load 2"):
        loser.append(numbered([2]), "load 2", 2)
    assert loser.at().rows == 2
    assert loser.at().append(numbered([2]), "load 2", 2).version == 3


def test_a_compaction_does_not_make_a_load_lose(create: Create) -> None:
    stale = create(batches=[numbered(range(20))], theta=4).append(numbered([100]), "load 1", 5)
    stale.compact()
    after = stale.append(numbered([101]), "load 2", 6)
    assert (after.version, after.rows, after.highest) == (4, 22, 6)
    after.verify()


def test_the_description_names_version_load_and_time(create: Create) -> None:
    times = iter([datetime(2020, 1, day, 12, tzinfo=UTC) for day in (1, 2, 4)])
    relation = create(clock=lambda: next(times)).append(numbered([1, 2]), "orders/7", 2)
    described = relation.describe()
    assert (described.created_at, described.age_seconds) == ("2020-01-02T12:00:00.000+00:00", 2 * 86_400)
    assert (described.name, described.version, described.load_id) == ("customers", 2, "orders/7")
    assert (described.rows, described.highest, described.segments, described.files) == (2, 2, 1, 1)
    assert (described.delta_files, described.delta_rows, described.oldest_version) == (1, 2, 1)
    assert described.bytes > 2 * 8
    relation.verify()


def test_blocks_and_bytes_of_segments_that_are_read_are_counted(create: Create) -> None:
    relation = create(batches=[numbered(range(1000))]).append(numbered([2000]), "load 1", 0)
    before = relation.counters
    assert relation.count_reads([0]) == 2
    spent = relation.counters.since(before)
    assert (spent.blocks_read, spent.blocks_written) == (2, 0)
    assert spent.bytes_read > 1000 * (8 + 9 + 4 + 8)


def test_a_load_s_rows_are_found_again_whatever_was_folded_and_compacted(create: Create) -> None:
    relation = create(batches=[numbered(range(100))], theta=4)
    loads = {f"load {n}": [1000 + 3 * n, 1001 + 3 * n] for n in range(50)}
    for load_id, numbers in loads.items():
        relation = relation.append(numbered(numbers), load_id, 0)
    for version in (relation, relation.compact()):
        for load_id, numbers in loads.items():
            brought = version.brought(load_id)
            assert brought.schema.equals(SCHEMA)
            assert sorted(brought.column("number").to_pylist()) == numbers
        assert version.brought("another load").num_rows == 0
    assert relation.at(3).brought("load 40").num_rows == 0


def test_every_load_is_remembered_however_many_there_are(create: Create) -> None:
    relation = create()
    for number in range(100):
        relation = relation.append(numbered([]), f"load {number}", 0)
    assert [relation.find(f"load {number}") for number in range(100)] == list(range(2, 102))
    assert relation.at(1).find("load 99") == 101
    assert relation.find("load 100") is None


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_look_up_keeps_rows_and_order(create: Create, partition: str) -> None:
    relation = create(partition=partition, theta=3, batches=[numbered(range(20)), rows_of([("x", 1, 7), ("x", 1, 8)])])
    asked = pa.table({"c": ["x", None, "country 3", "no"], "n": pa.array([1, 1, 3, 3], pa.int32())})
    found = relation.look_up(asked, [("n", "number"), ("c", "country")])
    assert found.schema.names == ["c", "n", "surrogate", "_created_by"]
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("x", 1, 7, ""), ("x", 1, 8, ""), (None, 1, None, None), ("country 3", 3, 3, ""), ("no", 3, None, None),
    ]  # fmt: skip
    assert relation.look_up(asked.slice(0, 0), [("n", "number"), ("c", "country")]).num_rows == 0


def test_a_look_up_that_makes_no_sense_is_refused(create: Create) -> None:
    relation = create()
    asked = pa.table({"country": ["x"], "n": pa.array([1], pa.int32()), "long": pa.array([1], pa.int64())})
    with pytest.raises(BadInput, match="pair each of these columns"):
        relation.look_up(asked, [("n", "number")])
    with pytest.raises(BadInput, match="no column 'm'"):
        relation.look_up(asked, [("m", "number"), ("country", "country")])
    with pytest.raises(BadInput, match=r"'long' of the rows is int64, but key column 'number'.*int32: cast"):
        relation.look_up(asked, [("long", "number"), ("country", "country")])
    with pytest.raises(BadInput, match="have a column 'surrogate', as relation customers"):
        relation.look_up(asked.append_column("surrogate", asked.column("n")), [("n", "number"), ("country", "country")])


def test_the_hashes_of_new_rows_are_told(create: Create) -> None:
    first = create(batches=[numbered(range(10))])
    third = first.append(numbered([10, 11]), "load 1", 0).append(numbered([12]), "load 2", 0)
    hashes = keys_of(keys_in(numbered([10, 11, 12]))).hashes.tolist()
    assert sorted(_told(third, 1)) == sorted(hashes)
    assert _told(third, 2) == hashes[2:]
    assert _told(third, 3) == []
    assert third.compact().hashes_added_since(2) is None
    assert _told(third.compact(), 3) == []


def _told(relation: Relation, version: int) -> list[int]:
    hashes = relation.hashes_added_since(version)
    assert hashes is not None
    return list(hashes.tolist())


def test_a_closed_relation_opens_its_files_again(create: Create) -> None:
    relation = create(batches=[numbered(range(5))])
    before = all_rows(relation)
    relation.close()
    assert all_rows(relation) == before


# --- bad input


@pytest.mark.parametrize(
    ("schema", "key", "settings", "message"),
    [
        (SCHEMA, ("missing",), {}, "customers has no key column 'missing'"),
        (SCHEMA, (), {}, "key \\(\\) is empty"),
        (SCHEMA, ("number", "number"), {}, "names a column twice"),
        (SCHEMA, KEY, {"theta": 0}, "customers: theta is 0"),
        (SCHEMA, KEY, {"partition": "round"}, "partition is 'round'; choose 'hash' or 'range'"),
        (SCHEMA, KEY, {"range_by": "number"}, "range_by='number' needs partition='range'"),
        (SCHEMA, KEY, {"partition": "range", "range_by": "surrogate"}, "range_by='surrogate' is no key column"),
        (SCHEMA, KEY, {"highest": "none"}, "customers has no column 'none' to take the highest key from"),
        (
            pa.schema([("k", pa.decimal128(30))]),
            ("k",),
            {"partition": "range"},
            "column 'k' is decimal128.*, which has no ranges to partition by",
        ),
        (pa.schema([("k", pa.int8()), ("v", pa.list_(pa.int8()))]), ("k",), {}, "customers, column 'v': .*list"),
        (pa.schema([("k", pa.float64())]), ("k",), {}, "customers, column 'k': .*double"),
        (pa.schema([("_hash", pa.int64())]), ("_hash",), {}, "'_hash' repeats or is reserved"),
        (
            pa.schema([("_created_by", pa.int64())]),
            ("_created_by",),
            {},
            "'_created_by' repeats or is reserved",
        ),
        (pa.schema([("k", pa.int64()), ("k", pa.int64())]), ("k",), {}, "'k' repeats"),
        (pa.schema([("k", pa.dictionary(pa.int32(), pa.string()))]), ("k",), {}, "'k' is dictionary-encoded"),
    ],
)
def test_a_relation_that_cannot_be_is_refused(
    create: Create, schema: pa.Schema, key: tuple[str, ...], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        create(schema, key, **settings)


def test_rows_that_do_not_fit_are_refused_and_change_nothing(create: Create) -> None:
    relation = create(highest=3)
    with pytest.raises(BadInput, match=r"customers has the columns \(country: string, .*the rows have \(other: int8\)"):
        relation.append(pa.record_batch({"other": pa.array([1], pa.int8())}), "load 1", 3)
    with pytest.raises(BadInput, match="customers: key column 'number' is null in 1 rows"):
        relation.append(rows_of([("a", 1, 1), ("a", None, 2)]), "load 1", 3)
    with pytest.raises(BadInput, match="customers, load load 1: highest surrogate key 2 is below 3 of version 1"):
        relation.append(numbered([1]), "load 1", 2)
    with pytest.raises(BadInput, match="customers: rows need the id of the load"):
        relation.append(numbered([1]), "", 3)
    assert relation.at().version == 1
    assert relation.counters.runs_written == 0


def test_a_probe_that_makes_no_sense_is_refused_at_the_call(create: Create) -> None:
    relation = create()
    keys = keys_of([pa.array([1])])
    with pytest.raises(BadInput, match=r"customers has the key \('country', 'number'\), but the probe has 1"):
        relation.block_table().probe(np.zeros(1, np.int32), keys)
    for segment in (-1, 1):
        with pytest.raises(BadInput, match=f"customers has no segment {segment}: it has 1"):
            relation.read_segment(segment)


_WORD = 2**64
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_COMBINING_FACTOR = 0x082EFA98EC4E6C89


def _second_with_the_same_hash(first: int, second: int, other_first: int) -> int:
    """An integer's hash can be undone, so some second column makes up for another first one."""
    difference = (_permute(first) - _permute(other_first)) * _COMBINING_FACTOR
    return _undo_permute((difference + _permute(second)) % _WORD)


def _permute(word: int) -> int:
    word = (word + _STEP) % _WORD
    word = (word ^ (word >> 30)) * _FACTORS[0] % _WORD
    word = (word ^ (word >> 27)) * _FACTORS[1] % _WORD
    return word ^ (word >> 31)


def _undo_permute(word: int) -> int:
    word = _undo_shift(word, 31) * pow(_FACTORS[1], -1, _WORD) % _WORD
    word = _undo_shift(word, 27) * pow(_FACTORS[0], -1, _WORD) % _WORD
    return (_undo_shift(word, 30) - _STEP) % _WORD


def _undo_shift(word: int, shift: int) -> int:
    original = word
    for _ in range(64 // shift + 1):
        original = word ^ (original >> shift)
    return original
