"""Arrival models: totals are exact, parameters can be measured back, and the seed decides everything."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.streams.arrival_models import (
    EVERYWHERE_ALWAYS,
    MODERATE_LOCALITY,
    Quadrants,
    b_model,
    bias_of,
    bursty_stream,
    interval_levels,
    poisson_arrivals,
    pqrs,
    zipf_keys,
)

seeds = st.integers(0, 2**32)
biases = st.floats(0.5, 1.0)


@st.composite
def quadrants(draw: st.DrawFn) -> Quadrants:
    weights = np.array(draw(st.lists(st.integers(1, 20), min_size=4, max_size=4)), np.float64)
    return Quadrants(*(weights / weights.sum()).tolist())


# The b-model


@given(st.integers(0, 10**7), biases, st.integers(0, 8), seeds)
def test_the_volumes_add_up_to_the_total(total: int, bias: float, levels: int, seed: int) -> None:
    counts = b_model(total, bias, levels, seed=seed)
    assert counts.shape == (2**levels,)
    assert counts.sum() == total
    assert counts.min() >= 0


@given(st.floats(0.5, 0.8), seeds)
def test_every_split_has_the_bias_up_to_one_row(bias: float, seed: int) -> None:
    counts = b_model(10**9, bias, 5, seed=seed)
    while counts.size > 1:
        halves = counts.reshape(-1, 2)
        assert np.abs(halves.max(axis=1) - bias * halves.sum(axis=1)).max() <= 1
        counts = halves.sum(axis=1)


@pytest.mark.parametrize("bias", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_the_bias_is_measured_back(bias: float) -> None:
    assert bias_of(b_model(10**12, bias, 8, seed=3)) == pytest.approx(bias, abs=1e-3)


def test_small_counts_keep_the_bias_on_average() -> None:
    larger = [b_model(3, 0.8, 1, seed=seed).max() for seed in range(4000)]
    assert np.mean(larger) == pytest.approx(0.8 * 3, abs=0.05)


def test_the_larger_half_is_on_either_side_alike() -> None:
    first_is_larger = [b_model(1000, 0.7, 1, seed=seed)[0] == 700 for seed in range(1000)]
    assert 420 < sum(first_is_larger) < 580


@pytest.mark.parametrize("counts", [[], [1], [1, 2, 3], [0, 0], [3, -1]])
def test_counts_that_have_no_bias_are_refused(counts: list[int]) -> None:
    with pytest.raises(BadInput, match="bias_of"):
        bias_of(np.array(counts, np.int64))


# PQRS


@given(st.integers(0, 2000), quadrants(), st.integers(0, 20), seeds)
def test_points_lie_inside_the_square(rows: int, shape: Quadrants, levels: int, seed: int) -> None:
    points = pqrs(rows, shape, levels, seed=seed)
    assert points.times.shape == points.places.shape == (rows,)
    assert ((points.times >= 0) & (points.times < 1)).all()
    assert ((points.places >= 0) & (points.places < 2**levels)).all()


@given(quadrants(), seeds)
def test_each_quadrant_gets_its_share_at_every_level(shape: Quadrants, seed: int) -> None:
    rows, levels = 20_000, 3
    points = pqrs(rows, shape, levels, seed=seed)
    cell_in_time = (points.times * 2**levels).astype(np.int64)
    for level in range(levels):
        late, high = (cell_in_time >> level) & 1, (points.places >> level) & 1
        shares = np.bincount(late + 2 * high, minlength=4) / rows
        # Five standard deviations of a share near a half.
        assert shares == pytest.approx(np.array(shape), abs=5 * 0.5 / math.sqrt(rows))


def test_place_follows_time_where_the_quadrants_say_so() -> None:
    points = pqrs(50_000, MODERATE_LOCALITY, 16, seed=1)
    even = pqrs(50_000, EVERYWHERE_ALWAYS, 16, seed=1)
    assert np.corrcoef(points.times, points.places)[0, 1] > 0.5
    assert abs(np.corrcoef(even.times, even.places)[0, 1]) < 0.03


def test_both_margins_of_the_moderate_locality_are_b_models_of_bias_six_tenths() -> None:
    points = pqrs(400_000, MODERATE_LOCALITY, 8, seed=1)
    for cells in (points.places, (points.times * 256).astype(np.int64)):
        assert bias_of(np.bincount(cells, minlength=256)) == pytest.approx(0.6, abs=0.005)


# Poisson and Zipf


def test_poisson_arrivals_come_in_order_with_independent_gaps() -> None:
    instants = poisson_arrivals(500, 200, seed=5)
    gaps = np.diff(instants)
    assert gaps.min() >= 0
    assert instants[0] >= 0
    assert instants[-1] <= 200
    assert instants.size == pytest.approx(100_000, abs=5 * math.sqrt(100_000))
    assert gaps.mean() == pytest.approx(1 / 500, rel=0.02)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03), "as an exponential distribution has it"
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.02


@given(st.integers(0, 500), st.integers(1, 1000), st.floats(0, 5), seeds)
def test_zipf_keys_lie_in_their_range(rows: int, keys: int, exponent: float, seed: int) -> None:
    drawn = zipf_keys(rows, keys, exponent, seed=seed)
    assert drawn.shape == (rows,)
    assert ((drawn >= 0) & (drawn < keys)).all()


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.0])
def test_zipf_keys_come_as_often_as_their_rank_says(exponent: float) -> None:
    rows, keys = 200_000, 50
    weights = np.arange(1, keys + 1) ** -exponent
    shares = np.bincount(zipf_keys(rows, keys, exponent, seed=2), minlength=keys) / rows
    assert shares == pytest.approx(weights / weights.sum(), abs=5 * 0.5 / math.sqrt(rows))


# The thesis' combination


@given(st.integers(0, 5000), st.floats(0.5, 0.8), quadrants(), st.integers(1, 1000), seeds)
def test_a_bursty_stream_has_all_rows_in_order(total: int, bias: float, shape: Quadrants, keys: int, seed: int) -> None:
    stream = bursty_stream(total, 60.0, keys, seed=seed, bias=bias, quadrants=shape, most_per_interval=500)
    assert stream.instants.shape == stream.keys.shape == (total,)
    assert (np.diff(stream.instants) >= 0).all()
    assert ((stream.instants >= 0) & (stream.instants <= 60)).all()
    assert ((stream.keys >= 0) & (stream.keys < keys)).all()


def test_the_volumes_of_the_mini_intervals_have_the_bias() -> None:
    stream = bursty_stream(1_000_000, 256.0, 1000, seed=4, bias=0.7, most_per_interval=60_000)
    intervals = 2 ** interval_levels(1_000_000, 0.7, 60_000)
    assert intervals == 256
    counts = np.histogram(stream.instants, bins=intervals, range=(0, 256.0))[0]
    assert counts.max() <= 60_000
    assert bias_of(counts.astype(np.int64)) == pytest.approx(0.7, abs=0.005)


def test_inside_a_mini_interval_the_keys_move_with_time() -> None:
    stream = bursty_stream(200_000, 64.0, 2**16, seed=4, bias=0.5, most_per_interval=200_000 // 64)
    inside = stream.instants % 1.0
    assert np.corrcoef(inside, stream.keys)[0, 1] > 0.5
    assert abs(np.corrcoef(stream.instants, stream.keys)[0, 1]) < 0.05


@given(st.integers(1, 10**8), st.floats(0.5, 0.9), st.integers(1, 10**6))
def test_no_expected_volume_is_above_the_bound_and_no_level_too_many(total: int, bias: float, most: int) -> None:
    try:
        levels = interval_levels(total, bias, most)
    except BadInput:
        assert total * bias**20 > most
        return
    assert total * bias**levels <= most * (1 + 1e-9)
    assert levels == 0 or total * bias ** (levels - 1) > most * (1 - 1e-9)


# Seeds and bad input


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: b_model(10_000, 0.7, 6, seed=seed),
        lambda seed: np.concatenate(pqrs(1000, MODERATE_LOCALITY, 10, seed=seed)),
        lambda seed: poisson_arrivals(100, 10, seed=seed),
        lambda seed: zipf_keys(1000, 100, 1.0, seed=seed),
        lambda seed: np.concatenate(bursty_stream(1000, 10, 100, seed=seed, most_per_interval=100)),
    ],
    ids=["b_model", "pqrs", "poisson_arrivals", "zipf_keys", "bursty_stream"],
)
def test_the_seed_decides_everything(draw: Callable[[int], np.ndarray]) -> None:
    assert np.array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))


@pytest.mark.parametrize(
    ("draw", "culprit"),
    [
        (lambda: b_model(-1, 0.6, 3, seed=1), "-1 rows"),
        (lambda: b_model(10, 0.4, 3, seed=1), "bias is 0.4"),
        (lambda: b_model(10, math.nan, 3, seed=1), "bias is nan"),
        (lambda: b_model(10, 0.6, 21, seed=1), "21 levels"),
        (lambda: pqrs(10, Quadrants(0.5, 0.5, 0.5, -0.5), 3, seed=1), "add up to 1"),
        (lambda: pqrs(10, Quadrants(0.3, 0.3, 0.3, 0.3), 3, seed=1), "add up to 1"),
        (lambda: poisson_arrivals(-1, 3, seed=1), "-1 rows/s"),
        (lambda: zipf_keys(10, 0, 1.0, seed=1), "0 keys"),
        (lambda: zipf_keys(10, 5, -1.0, seed=1), "exponent -1.0"),
        (lambda: bursty_stream(10, 0, 5, seed=1), "in 0 s"),
        (lambda: bursty_stream(10, 1, 5, seed=1, most_per_interval=0), "most_per_interval is 0"),
        (lambda: bursty_stream(10**6, 1, 5, seed=1, bias=0.95, most_per_interval=9), "above 20"),
        (lambda: pqrs(10, MODERATE_LOCALITY, 31, seed=1), "31 levels"),
        (lambda: bursty_stream(10, 1, 5, seed=1, bias=1.0, most_per_interval=2), "bias 1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(draw: Callable[[], object], culprit: str) -> None:
    with pytest.raises(BadInput, match=culprit):
        draw()
