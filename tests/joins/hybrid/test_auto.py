"""`auto`: each rule picks what it says, tells why, and the choice is an ordinary join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from etl import joins
from etl.errors import BadInput
from etl.joins import Operator
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from tests.joins.hybrid.lookups import KINDS, answered, asking, built, by_segment, named, no_results, numbered, owed

SMALL = 1 << 16
"""Far less memory than the relation takes."""


def relation_of(kind: PartitionKind = "hash") -> Relation:
    relation = numbered(5000, 100, kind)
    assert int(relation.segment_bytes.sum()) > 2 * SMALL
    return relation


def chosen(
    relation: Relation, numbers: Sequence[int | None] | None = None, memory_bytes: int = SMALL
) -> dict[str, object]:
    sample = {} if numbers is None else {"sample": asking(*numbers).batch}
    described = built(relation, "auto", memory_bytes=memory_bytes, block_bytes=4096, **sample).describe()
    settings = described["settings"]
    assert isinstance(settings, dict)
    return {"join": described["join"], "reason": described["reason"], **settings}


@pytest.mark.parametrize("kind", KINDS)
def test_a_relation_that_fits_is_held_without_filters_or_cache(kind: PartitionKind) -> None:
    choice = chosen(relation_of(kind), [1, 1, 1], memory_bytes=1 << 22)
    assert (choice["join"], choice["filter_share"], choice["cache_share"]) == (f"{kind}-partitioned", 0, 0)
    assert "the memory is 4,194,304: all of it is held in memory" in str(choice["reason"])


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_sample_there_is_a_bit_of_everything(kind: PartitionKind) -> None:
    nothing: list[int | None] = []
    for numbers in (None, nothing):
        choice = chosen(relation_of(kind), numbers)
        assert choice["join"] == f"{kind}-partitioned"
        assert float(str(choice["filter_share"])) > 0
        assert float(str(choice["cache_share"])) > 0
        assert "no sample of the stream: a bit of everything" in str(choice["reason"])


def test_batches_that_ask_for_much_of_the_relation_are_served_by_a_scan() -> None:
    choice = chosen(relation_of(), list(range(0, 5000, 2)))
    assert choice["join"] == "meshjoin"
    assert "a batch of 2,500 rows asks for much of 5,000: a scan in order serves it" in str(choice["reason"])
    assert chosen(relation_of(), list(range(0, 5000, 3)))["join"] == "hash-partitioned", "a third is not much"
    assert chosen(relation_of(), [1, 2] * 2000)["join"] == "hash-partitioned", "the same keys again and again are few"


def test_keys_that_repeat_all_over_the_relation_are_worth_a_large_cache() -> None:
    choice = chosen(relation_of(), [number for number in range(0, 5000, 25) for _ in range(2)])
    assert (choice["join"], choice["cache_share"]) == ("hash-partitioned", 0.3)
    assert "50% of the sample's rows repeat a key" in str(choice["reason"])
    assert str(choice["reason"]).endswith("a large frequent-key cache")


def test_a_stream_that_dwells_on_few_segments_is_worth_join_memory() -> None:
    """The same stream meets few segments of a relation in key ranges, and all of one in hash order."""
    local = list(range(1000, 1500))
    choice = chosen(relation_of("range"), local)
    assert (choice["join"], choice["cache_share"]) == ("range-partitioned", 0.05)
    assert str(choice["reason"]).endswith("of the segments: join memory for those")
    scattered = chosen(relation_of("hash"), local)
    assert (scattered["join"], scattered["cache_share"]) == ("hash-partitioned", 0)


def test_a_stream_without_a_pattern_gets_no_cache() -> None:
    random = np.random.default_rng(1)
    choice = chosen(relation_of(), random.choice(5000, 500, replace=False).tolist())
    assert (choice["join"], choice["cache_share"]) == ("hash-partitioned", 0)
    assert str(choice["reason"]).endswith("no pattern, so no cache")


def test_a_sample_of_nulls_is_no_reason_to_fail() -> None:
    assert chosen(relation_of(), [None, None])["join"] == "hash-partitioned"


def test_a_sample_of_another_stream_is_refused() -> None:
    other = pa.record_batch({"number": [1]})
    with pytest.raises(
        BadInput, match=r"auto: the sample has the columns \['number'\], the stream has \['nr', 'text'\]"
    ):
        built(relation_of(), "auto", memory_bytes=SMALL, sample=other)


@pytest.mark.parametrize("numbers", [list(range(0, 5000, 2)), list(range(10))], ids=["meshjoin", "partitioned"])
def test_the_choice_answers_and_its_snapshot_knows_it_by_name_and_reason(numbers: list[int]) -> None:
    relation = relation_of()
    operator = built(relation, "auto", memory_bytes=SMALL, block_bytes=4096, sample=asking(*numbers).batch)
    event = asking(*by_segment(relation, range(5000))[3][:2])
    operator.offer(event, no_results)
    snapshot = joins.Snapshot.from_bytes(operator.snapshot().to_bytes())
    assert snapshot.operator == operator.plan.name != "auto"
    restored = joins.restore(snapshot, relation=relation)
    assert restored.describe() == operator.describe()
    for going_on in (operator, restored):
        assert _answers(going_on) == owed([event, asking(7)], named(range(5000)), version=1)


def _answers(operator: Operator) -> Counter[tuple[object, ...]]:
    return answered(operator, asking(7))
