"""Which segments stay in memory: equations 6.1 and 6.2 of the thesis, and the cases that it leaves open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.joins.hybrid.join_memory import ArrivalFrequency, JoinMemory


def memory(capacity: int, held: dict[int, int], rho: float = 0.25) -> JoinMemory:
    """A memory that holds these segments, with their sizes."""
    chosen = JoinMemory(capacity, rho)
    chosen.held = dict(held)
    chosen.used = sum(held.values())
    return chosen


def considered(chosen: JoinMemory, candidates: list[int], frequency: Sequence[float], size: list[int]) -> set[int]:
    before = set(chosen.held)
    changed = chosen.consider(np.array(candidates, np.intp), np.array(frequency, float), np.array(size, np.int64))
    assert changed == (set(chosen.held) != before)
    assert chosen.used == sum(chosen.held.values())
    return set(chosen.held)


# Empty places


def test_an_empty_memory_takes_what_fits_and_has_had_arrivals() -> None:
    assert considered(memory(100, {}), [0, 1, 2], [5, 0, 1], [60, 10, 40]) == {0, 2}


def test_the_most_in_demand_for_its_size_comes_first() -> None:
    assert considered(memory(60, {}), [0, 1], [5, 4], [60, 30]) == {1}


def test_a_segment_larger_than_the_memory_never_enters() -> None:
    assert considered(memory(100, {}), [0], [1e9], [101]) == set()
    assert considered(memory(100, {1: 100}), [0], [1e9, 1], [101, 100]) == {1}
    assert considered(memory(0, {}), [0], [1e9], [1]) == set()


def test_a_segment_that_is_there_stays_as_it_is() -> None:
    assert considered(memory(100, {0: 60}), [0], [5], [60]) == {0}


# Equation 6.1


@pytest.mark.parametrize(("frequency", "wins"), [(12.49, False), (12.5, True), (13, True)])
def test_a_segment_of_the_same_size_must_be_in_more_demand_by_rho(frequency: float, wins: bool) -> None:
    assert considered(memory(100, {1: 100}), [0], [frequency, 10], [100, 100]) == ({0} if wins else {1})


@pytest.mark.parametrize(("frequency", "wins"), [(24.9, False), (25, True)])
def test_demand_is_measured_for_the_size(frequency: float, wins: bool) -> None:
    """Twice the size needs twice the arrivals: 10 * 2 * 1.25."""
    assert considered(memory(128, {1: 64}), [0], [frequency, 10], [128, 64]) == ({0} if wins else {1})


def test_equals_stay() -> None:
    for rho in (0.0, 0.25):
        assert considered(memory(100, {1: 100}, rho), [0], [10, 10], [100, 100]) == {1}
    assert considered(memory(100, {1: 100}, rho=0.0), [0], [11, 10], [100, 100]) == {0}


def test_a_segment_that_nobody_asks_for_any_more_goes() -> None:
    assert considered(memory(100, {1: 100}), [0], [1, 0], [100, 100]) == {0}


def test_what_was_replaced_does_not_come_back_for_a_little_more_demand() -> None:
    chosen, size = memory(64, {0: 64}), [64, 64]
    assert considered(chosen, [1], [8, 10], size) == {1}
    assert considered(chosen, [0], [12, 10], size) == {1}, "20 % more is not enough"
    assert considered(chosen, [0], [12.5, 10], size) == {0}


# Equation 6.2


def test_the_one_that_goes_must_make_enough_room() -> None:
    """Segment 1 is in the least demand but too small to make room; segment 2 goes."""
    frequency, size = [90, 1, 20], [60, 30, 60]
    assert considered(memory(100, {1: 30, 2: 60}), [0], frequency, size) == {0, 1}


def test_two_are_never_driven_out_by_one() -> None:
    assert considered(memory(100, {1: 50, 2: 50}), [0], [1000, 1, 1], [80, 50, 50]) == {1, 2}


def test_free_room_counts() -> None:
    assert considered(memory(100, {1: 50}), [0], [100, 1], [80, 50]) == {0}


def test_the_least_in_demand_goes_and_among_equals_the_lowest_number() -> None:
    frequency, size = [9, 3, 2, 2], [50, 50, 50, 50]
    assert considered(memory(150, {1: 50, 2: 50, 3: 50}), [0], frequency, size) == {0, 1, 3}


def test_candidates_do_not_drive_out_what_came_in_with_more_demand() -> None:
    assert considered(memory(100, {0: 100}), [1, 2], [1, 20, 30], [100, 100, 100]) == {2}


# Growth


def test_a_held_segment_that_grew_is_counted_with_its_new_size() -> None:
    chosen = memory(100, {0: 40, 1: 40})
    chosen.fit(100, np.array([1.0, 1.0]), np.array([60, 40]))
    assert (chosen.held, chosen.used) == ({0: 60, 1: 40}, 100)


def test_when_the_held_no_longer_fit_the_least_in_demand_for_their_size_leave() -> None:
    chosen = memory(120, {0: 40, 1: 40, 2: 40})
    chosen.fit(120, np.array([9.0, 4.0, 5.0]), np.array([60, 40, 40]))
    assert (chosen.held, chosen.used) == ({0: 60, 2: 40}, 100)
    chosen.fit(60, np.array([9.0, 4.0, 6.0]), np.array([60, 40, 40]))
    assert chosen.held == {2: 40}, "equal for their size: the lower number goes first"
    chosen.fit(10, np.array([9.0, 4.0, 5.0]), np.array([60, 40, 40]))
    assert (chosen.held, chosen.used) == ({}, 0)


# Against the definition


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, dict[int, int], int, list[float], list[int]]:
    """A capacity, what is held, one candidate, frequencies and sizes."""
    count = draw(st.integers(1, 6))
    frequency = draw(st.lists(st.integers(0, 8).map(float), min_size=count, max_size=count))
    size = draw(st.lists(st.sampled_from([8, 16, 32, 64]), min_size=count, max_size=count))
    held = {segment: size[segment] for segment in range(1, count) if draw(st.booleans())}
    return sum(held.values()) + draw(st.integers(0, 64)), held, 0, frequency, size


@given(situations(), st.sampled_from([0.0, 0.25, 1.0]))
@settings(max_examples=300, deadline=None)
def test_one_candidate_is_treated_as_algorithm_9_says(
    situation: tuple[int, dict[int, int], int, list[float], list[int]], rho: float
) -> None:
    capacity, held, candidate, frequency, size = situation
    free = capacity - sum(held.values())
    density = [frequency[segment] / size[segment] for segment in range(len(size))]
    may_go = [
        other
        for other in held
        if density[candidate] >= (1 + rho) * density[other]
        and density[candidate] > density[other]
        and free + size[other] >= size[candidate]
    ]
    expected = set(held)
    if frequency[candidate] > 0 and size[candidate] <= free:
        expected |= {candidate}
    elif may_go:
        expected = expected - {min(may_go, key=lambda other: (density[other], other))} | {candidate}
    assert considered(memory(capacity, held, rho), [candidate], frequency, size) == expected


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=1, max_size=12),
    st.integers(0, 200),
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True), max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_the_capacity_is_never_exceeded(
    segments: list[tuple[int, int]], capacity: int, rounds: list[list[int]]
) -> None:
    chosen = JoinMemory(capacity, 0.25)
    frequency, size = [float(each[1]) for each in segments], [each[0] for each in segments]
    for candidates in rounds:
        known = [candidate for candidate in candidates if candidate < len(segments)]
        if known:
            held = considered(chosen, known, frequency, size)
            assert sum(size[segment] for segment in held) <= capacity


# Arrival frequency


def test_frequencies_fade_at_the_end_of_every_epoch() -> None:
    frequency = ArrivalFrequency(3, decay=0.5, epoch_rows=10)
    frequency.arrive(np.array([0] * 4 + [2] * 5, np.int32))
    assert frequency.counts.tolist() == [4, 0, 5]
    frequency.arrive(np.array([1], np.int32))
    assert frequency.counts.tolist() == [2, 0.5, 2.5], "the tenth row ends the epoch"
    frequency.arrive(np.array([0] * 9, np.int32))
    assert frequency.counts.tolist() == [11, 0.5, 2.5]
    frequency.arrive(np.array([0] * 11, np.int32))
    assert frequency.counts.tolist() == [5.5, 0.125, 0.625], "two epochs end"


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 10), st.sampled_from([0.25, 0.5, 1.0]))
@settings(max_examples=100, deadline=None)
def test_row_by_row_it_is_the_thesis_sum(arrivals: list[int], epoch: int, decay: float) -> None:
    """An arrival weighs decay to the power of the epochs that have ended since."""
    frequency = ArrivalFrequency(4, decay, epoch)
    for segment in arrivals:
        frequency.arrive(np.array([segment], np.int32))
    ended = len(arrivals) // epoch
    expected = [0.0] * 4
    for position, segment in enumerate(arrivals):
        expected[segment] += decay ** (ended - position // epoch)
    assert frequency.counts.tolist() == pytest.approx(expected)
