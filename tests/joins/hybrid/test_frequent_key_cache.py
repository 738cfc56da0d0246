"""The frequent-key cache: whole answers or none, within its capacity, and never from before a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from etl import joins
from etl.joins import Operator, Progress, RelationVersion, WorkBudget
from etl.joins.hybrid.frequent_key_cache import FrequentKeyCache, Lesson
from etl.storage.ports import CREATED_BY_COLUMN, Keys, keys_of
from etl.storage.relation import Relation
from tests.harness.retained import retained_bytes
from tests.joins.hybrid.lookups import Sink, asking, blocks_read, built, customers, named, no_results, stored

SCHEMA = pa.schema([("name", pa.string()), ("number", pa.int64()), (CREATED_BY_COLUMN, pa.string())])


def cache_of(capacity: int = 1 << 16, frequent_after: int = 1) -> FrequentKeyCache:
    return FrequentKeyCache(SCHEMA, (0,), capacity, frequent_after)


def keys(*names: str | None) -> Keys:
    return keys_of([pa.array(names, pa.string())])


def rows(*members: tuple[str, int]) -> pa.RecordBatch:
    names, numbers = [name for name, _ in members], [number for _, number in members]
    return pa.record_batch([pa.array(names, pa.string()), numbers, ["load"] * len(members)], schema=SCHEMA)


def everybody(asked: Keys) -> NDArray[np.bool_]:
    return np.ones(len(asked.hashes), np.bool_)


def learn(cache: FrequentKeyCache, *members: tuple[str, int]) -> None:
    cache.learn(rows(*members), keys(*(name for name, _ in members)).hashes)


def found(cache: FrequentKeyCache, *names: str | None, limit: int = 100) -> list[tuple[int, int]]:
    """(position, number) of every answer."""
    return [
        pair
        for positions, related in cache.answers(keys(*names), limit)
        for pair in zip(positions.tolist(), related[1].to_pylist(), strict=True)
    ]


# The cache itself


def test_a_key_is_answered_with_all_its_rows_to_everybody_who_asks() -> None:
    cache = cache_of()
    learn(cache, ("a", 1), ("b", 2), ("a", 3))
    assert Counter(found(cache, "a", "c", None, "a", "b")) == Counter([(0, 1), (0, 3), (3, 1), (3, 3), (4, 2)])
    assert Counter(found(cache, "a", "b", limit=1)) == Counter([(0, 1), (0, 3), (1, 2)])


def test_rare_keys_that_share_a_counter_are_not_taken_for_a_frequent_one() -> None:
    cache = cache_of(capacity=1 << 14, frequent_after=8)
    rare = keys_of([pa.array(np.arange(20_000).astype(str))])
    cache.arrive(rare)  # nearly twenty to a counter
    assert np.count_nonzero(cache.frequent(rare, everybody(rare))) < len(rare.hashes) / 10
    often = keys(*["a"] * 40)
    cache.arrive(often)
    assert cache.frequent(often, everybody(often)).any()


def test_a_key_is_frequent_when_it_was_asked_for_often_enough() -> None:
    cache = cache_of(frequent_after=3)
    asked = keys("a", "b", "a", None)
    cache.arrive(asked)
    assert not cache.frequent(asked, everybody(asked)).any()
    cache.arrive(asked)
    assert cache.frequent(asked, everybody(asked)).tolist() == [True, False, False, False], (
        "one row a key: the first that asks"
    )
    second = cache.frequent(asked, np.array([False, True, True, True]))
    assert second.tolist() == [False, False, True, False], "of those that the probe is asked for"
    learn(cache, ("a", 1))
    assert not cache.frequent(asked, everybody(asked)).any(), "it is here already"


def test_an_answer_in_several_pieces_is_learnt_whole() -> None:
    cache, asked = cache_of(), keys("a", "b", "a")
    cache.arrive(asked)
    lesson = Lesson(cache, asked, everybody(asked))
    lesson.hear(np.array([0, 1]), rows(("a", 1), ("b", 2)).columns)
    assert found(cache, "a", "b") == [], "half an answer would be a wrong one"
    lesson.hear(np.array([0, 2, 2]), rows(("a", 3), ("a", 1), ("a", 3)).columns)
    lesson.learn()
    assert Counter(found(cache, "a", "b")) == Counter([(0, 1), (0, 3), (1, 2)]), "each row once, though two asked"


def test_two_keys_with_one_hash_are_told_apart() -> None:
    """No such keys are known, so the hashes are made up."""
    alike = Keys(keys("a", "b").views, np.array([7, 7], np.uint64), None)
    cache = cache_of()
    cache.learn(rows(("a", 1)), alike.hashes[:1])
    answers = [(positions.tolist(), related[1].to_pylist()) for positions, related in cache.answers(alike, 100)]
    assert answers == [([0], [1])]
    cache.forget(alike.hashes[1:])
    assert list(cache.answers(alike, 100)) == [], "forgetting one forgets both: never too little"


def test_a_forgotten_key_is_not_answered_and_may_come_back() -> None:
    cache = cache_of()
    learn(cache, ("a", 1), ("b", 2), ("a", 3))
    cache.forget(keys("a", "nobody").hashes)
    assert found(cache, "a", "b") == [(1, 2)]
    learn(cache, ("a", 1), ("a", 3), ("a", 4))
    assert Counter(found(cache, "a")) == Counter([(0, 1), (0, 3), (0, 4)])


def test_a_full_cache_keeps_what_is_asked_for() -> None:
    cache = cache_of(capacity=1 << 16)
    often = [f"often {number}" for number in range(20)]
    for _ in range(50):
        cache.arrive(keys(*often))
    learn(cache, *((name, 0) for name in often))
    for start in range(0, 10_000, 50):
        seldom = [f"seldom {number}" for number in range(start, start + 50)]
        cache.arrive(keys(*seldom))
        learn(cache, *((name, 1) for name in seldom))
        assert cache.nbytes <= 1 << 16
    kept = {often[position] for position, _ in found(cache, *often)}
    assert kept == set(often)


def test_an_answer_that_is_larger_than_the_cache_drives_nothing_out() -> None:
    """Once it made room for what could not fit anyway: every probe of such a key cost half of the cache."""
    cache = cache_of(capacity=1 << 13)
    learn(cache, ("a", 1), ("b", 2))
    learn(cache, *(("c", number) for number in range(1000)))
    assert Counter(found(cache, "a", "b", "c")) == Counter([(0, 1), (1, 2)])


def test_of_more_than_fits_the_most_frequent_are_learnt() -> None:
    """Once a lesson that was too large was dropped whole: a small cache in front of large batches stayed empty."""
    cache = cache_of(capacity=1 << 13)
    cache.arrive(keys(*["a", "b"] * 20))
    learn(cache, *((f"key {number}", number) for number in range(500)), ("a", 1), ("a", 2), ("b", 3))
    assert Counter(found(cache, "a", "b")) == Counter([(0, 1), (0, 2), (1, 3)])
    assert cache.nbytes <= 1 << 13


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("learn"), st.lists(st.integers(0, 60), min_size=1, max_size=30, unique=True)),
            st.tuples(st.just("forget"), st.lists(st.integers(0, 60), min_size=1, max_size=10)),
        ),
        max_size=20,
    ),
    st.sampled_from([4096, 6000, 1 << 14]),
)
@settings(max_examples=100, deadline=None)
def test_it_answers_whole_or_not_at_all_within_its_capacity(steps: list[tuple[str, list[int]]], capacity: int) -> None:
    """Key n has n % 4 rows; only keys that are not there are learnt, as after a probe."""
    cache = cache_of(capacity)
    for action, numbers in steps:
        names = [f"key {number}" for number in numbers]
        if action == "forget":
            cache.forget(keys(*names).hashes)
            assert found(cache, *names) == []
        else:
            cache.arrive(keys(*names))
            lesson = Lesson(cache, keys(*names), everybody(keys(*names)))
            for place, number in enumerate(numbers):
                if number % 4:
                    answer = [(names[place], 10 * number + piece) for piece in range(number % 4)]
                    lesson.hear(np.full(len(answer), place), rows(*answer).columns)
            lesson.learn()
        assert cache.nbytes <= capacity
        assert retained_bytes(cache) <= cache.nbytes + 1024
        _assert_whole(cache, range(61))


def _assert_whole(cache: FrequentKeyCache, numbers: Sequence[int]) -> None:
    answers: dict[int, list[int]] = {}
    for place, number in found(cache, *(f"key {number}" for number in numbers)):
        answers.setdefault(numbers[place], []).append(number)
    for number, answer in answers.items():
        assert sorted(answer) == [10 * number + piece for piece in range(number % 4)]


# In front of a join


def warmed(relation: Relation, join: str = "", **settings: object) -> tuple[Operator, Sink]:
    """A join with customers 1 and 2 in its cache, found by one disk probe; neither segments nor filters are held."""
    shares = {"filter_share": 0.0, "cache_share": 0.3, "frequent_after": 2}
    if join != "meshjoin":
        shares["wait_share"] = 0.7
    operator = built(relation, join, **(shares | settings))
    results = Sink()
    operator.offer(asking(1, 2, 1, 2), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    results.clear()
    return operator, results


def test_a_cached_key_needs_no_disk_behind_any_join() -> None:
    for join in ("hash-partitioned", "meshjoin"):
        relation = customers([(1, "one"), (2, "two"), (1, "uno"), (3, "three")], theta=1)
        operator, results = warmed(relation, join)
        before = blocks_read(relation)
        operator.offer(asking(2, 1, 1), results.append)
        assert Counter(row[3] for row in results.take()) == Counter(["two", "one", "uno", "one", "uno"])
        assert operator.counters.extra["cache_hits"] == 5
        assert blocks_read(relation) == before
        operator.offer(asking(3), no_results)


def test_an_answer_that_was_emitted_in_pieces_is_cached_whole() -> None:
    relation = customers([(1, f"name {number}") for number in range(10)])
    operator, results = warmed(relation, result_rows=3)
    operator.offer(asking(1), results.append)
    assert max(batch.num_rows for batch in results) == 3
    assert Counter(row[3] for row in results.take()) == Counter(f"name {number}" for number in range(10))


def test_a_cached_key_that_got_another_row_is_asked_for_again() -> None:
    for join in ("hash-partitioned", "meshjoin"):
        older = customers([(1, "one"), (2, "two")])
        operator, results = warmed(older, join)
        newer = older.append(stored([(1, "uno"), (3, "three")]), "orders/7", highest=0)
        operator.offer(RelationVersion(newer), results.append)
        operator.offer(asking(2), results.append)
        assert results.take() == [(2, "row 0", 2, "two", "", 2)], "an answer still, from the newer version now"
        operator.offer(asking(1), no_results)
        assert operator.work(WorkBudget(), results.append) is Progress.IDLE
        assert Counter(row[2:] for row in results.take()) == Counter([(1, "one", "", 2), (1, "uno", "orders/7", 2)])


def test_after_a_compaction_the_cache_starts_anew_rather_than_answer_wrong() -> None:
    older = customers(named(range(50)), theta=5)
    operator, results = warmed(older)
    newer = older.append(stored([(1, "uno")]), "orders/7", highest=0)
    newer.append(stored(named(range(50, 200))), "orders/8", highest=0)
    operator.offer(RelationVersion(newer.compact()), results.append)
    operator.offer(asking(1), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    assert Counter(row[3] for row in results.take()) == Counter(["name 1", "uno"])


def test_a_restored_join_has_an_empty_cache() -> None:
    relation = customers([(1, "one"), (2, "two")])
    operator, _ = warmed(relation)
    restored = joins.restore(operator.snapshot(), relation=relation)
    restored.offer(asking(1), no_results)
