"""Streams of the benchmarks: keys as described, right answers known, digests that a wrong answer changes."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.key_streams import KeyStream, digest, relation_batches

ROWS = 50_000
KINDS = ("uniform", "zipf", "locality")


def relation() -> pa.Table:
    return pa.Table.from_batches(relation_batches(ROWS, batch_rows=7_001))


def test_relation_keys_are_as_described() -> None:
    table = relation()
    table.validate(full=True)
    assert table.column("key").to_pylist() == [f"customer-{2 * number:08d}" for number in range(ROWS)]
    assert table.column("source").to_pylist() == [number % 4 for number in range(ROWS)]
    assert table.column("surrogate").to_pylist() == list(range(1, ROWS + 1))


def test_more_rows_than_digits_are_refused() -> None:
    with pytest.raises(ValueError, match="60,000,000"):
        next(relation_batches(60_000_000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("miss_ratio", [0.0, 0.1, 1.0])
def test_the_expected_digest_is_that_of_the_join(kind: str, miss_ratio: float) -> None:
    table = relation()
    keys = zip(table.column("source").to_pylist(), table.column("key").to_pylist(), strict=True)
    surrogate_of = dict(zip(keys, table.column("surrogate").to_pylist(), strict=True))
    for rows, expected in KeyStream(kind, ROWS, miss_ratio).batches(1_000, 3):
        asked = zip(rows.column("source").to_pylist(), rows.column("key").to_pylist(), strict=True)
        found = pa.array([surrogate_of.get(key) for key in asked], pa.int64())
        assert digest(rows.column("row"), found) == expected
        assert expected.misses == found.null_count == pytest.approx(1_000 * miss_ratio, abs=60)


@given(
    surrogates=st.lists(st.none() | st.integers(1, 2**40), min_size=1, max_size=50),
    seed=st.integers(0, 100),
    data=st.data(),
)
def test_a_digest_knows_no_order_but_every_pair(surrogates: list[int | None], seed: int, data: st.DataObject) -> None:
    rows = pa.array(np.arange(len(surrogates)) + 7)
    answer = pa.array(surrogates, pa.int64())
    whole = digest(rows, answer)

    order = pa.array(np.random.default_rng(seed).permutation(len(rows)))
    shuffled_rows, shuffled = rows.take(order), answer.take(order)
    cut = len(rows) // 2
    pieces = [digest(shuffled_rows[start:end], shuffled[start:end]) for start, end in pairwise((0, cut, len(rows)))]
    assert pieces[0].plus(pieces[1]) == whole

    wrong = list(surrogates)
    at = data.draw(st.integers(0, len(wrong) - 1))
    wrong[at] = (wrong[at] or 0) + 1
    assert digest(rows, pa.array(wrong, pa.int64())) != whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_rows(kind: str) -> None:
    one, again, other = (list(KeyStream(kind, ROWS, seed=seed).batches(500, 3)) for seed in (1, 1, 2))
    assert [batch.rows for batch in one] == [batch.rows for batch in again]
    assert [batch.rows for batch in one] != [batch.rows for batch in other]


def test_zipf_has_its_frequencies_and_no_order() -> None:
    numbers = asked_numbers("zipf")
    keys, counts = np.unique(numbers, return_counts=True)
    harmonic = np.log(ROWS) + 0.577
    assert counts.max() / len(numbers) == pytest.approx(1 / harmonic, rel=0.1)
    most_frequent = keys[np.argsort(-counts)[:20]]
    assert most_frequent.max() - most_frequent.min() > ROWS / 2


def test_locality_keeps_four_rows_in_five_in_a_twentieth() -> None:
    numbers = asked_numbers("locality")
    busiest = np.bincount(numbers * 20 // ROWS, minlength=20).max() / len(numbers)
    assert busiest == pytest.approx(0.8 + 0.2 / 20, abs=0.03)


def test_the_hot_range_drifts() -> None:
    *_, last = KeyStream("locality", ROWS).batches(100_000, 21)
    digits = np.array([int(key[-8:]) // 2 for key in last.rows.column("key").to_pylist()[:20_000]])
    shares = np.bincount(digits * 20 // ROWS, minlength=20) / len(digits)
    assert shares.argmax() == 1


def asked_numbers(kind: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    (batch,) = KeyStream(kind, ROWS).batches(40_000, 1)
    return np.array([int(key[-8:]) // 2 for key in batch.rows.column("key").to_pylist()])
