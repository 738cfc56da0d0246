"""The virtual-clock simulation of a hybrid join: what is charged, what is stamped, and what counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.papers.hybrid_simulation import (
    STREAM,
    Machine,
    Measured,
    Window,
    pooled,
    simulate,
    stream_rows,
)
from etl import joins
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.streams.arrival_models import Arrivals

LOOKUP = pa.schema([pa.field("number", pa.int64(), nullable=False)])
DISK_ONLY = Machine(
    access_seconds=2.0, bytes_per_second=1e12, seconds_per_row=0.0, handover_seconds=0.5, most_rows_at_once=100
)
TO_THE_END = Window(0.0, 100.0)


def lookup(numbers: Sequence[int], theta: int = 1000) -> Relation:
    batch = pa.record_batch([pa.array(numbers, pa.int64())], schema=LOOKUP)
    return create_memory_relation("lookup", LOOKUP, ["number"], [batch], theta=theta)


def arriving(*rows: tuple[float, int]) -> pa.RecordBatch:
    return stream_rows(Arrivals(np.array([at for at, _ in rows]), np.array([key for _, key in rows], np.int64)))


def eager(relation: Relation, **settings: object) -> joins.Operator:
    return joins.build(
        "hash-partitioned",
        sides=[STREAM],
        relation=relation,
        on=[("key", "number")],
        filter_share=0.0,
        cache_share=0.0,
        **settings,  # type: ignore[arg-type]
    )


def test_a_stream_row_has_the_size_of_the_thesis() -> None:
    assert arriving((0.0, 1), (1.0, 2)).nbytes == 2 * 64


def test_a_row_waits_for_its_handover_and_its_disk_read() -> None:
    relation = lookup([7])
    measured = simulate(eager(relation), relation, arriving((10.0, 7)), DISK_ONLY, TO_THE_END)
    assert measured.results == 1
    assert measured.mean_delay == pytest.approx(0.5 + 2.0, abs=1e-6)
    assert measured.disk_seconds == pytest.approx(2.0, abs=1e-6)


def test_a_segment_in_memory_costs_no_second_read() -> None:
    relation = lookup([7])
    measured = simulate(eager(relation), relation, arriving((10.0, 7), (20.0, 7)), DISK_ONLY, TO_THE_END)
    assert measured.results == 2
    assert measured.disk_seconds == pytest.approx(2.0, abs=1e-6)
    assert measured.delay_seconds == pytest.approx(2.5 + 0.5, abs=1e-6)


def test_rows_that_arrive_during_a_read_are_buffered() -> None:
    relation = lookup([7])
    rows = arriving((10.0, 7), *((11.0 + 0.1 * number, 7) for number in range(5)))
    measured = simulate(eager(relation), relation, rows, DISK_ONLY, TO_THE_END)
    assert measured.most_buffered == 5
    assert measured.results == 6


def test_rows_touched_take_processor_time() -> None:
    relation = lookup([7, 8, 9])
    machine = Machine(0.0, 1e12, seconds_per_row=1.0, handover_seconds=0.0, most_rows_at_once=100)
    measured = simulate(eager(relation), relation, arriving((10.0, 7)), machine, TO_THE_END)
    assert measured.processor_seconds == pytest.approx(1 + 3 + 1), "a row taken, three read, one result"


def test_only_results_inside_the_window_are_measured_but_all_are_answers() -> None:
    relation = lookup([7])
    rows = arriving((10.0, 7), (50.0, 7), (98.0, 7), (99.9, 7))
    measured = simulate(eager(relation), relation, rows, DISK_ONLY, Window(20.0, 99.0))
    assert measured.results == 4
    assert measured.results_in_window == 2, "those that came at 50.5 and 98.5"
    assert measured.delay_seconds == pytest.approx(0.5 + 0.5, abs=1e-6)
    assert measured.row_number_sum == 0 + 1 + 2 + 3


def test_results_still_owed_at_the_end_are_known() -> None:
    relation = lookup([7])
    rows = arriving((10.0, 7), (70.0, 7))
    measured = simulate(eager(relation, invocation_rows=9), relation, rows, DISK_ONLY, TO_THE_END)
    assert (measured.results_in_window, measured.owed_results) == (0, 2)
    assert measured.mean_delay_with_owed == pytest.approx((90 + 30) / 2)


def test_rows_that_wait_for_company_wait_until_the_threshold_is_reached() -> None:
    relation = lookup([7])
    rows = arriving((10.0, 7), (20.0, 7), (40.0, 7))
    measured = simulate(eager(relation, invocation_rows=2), relation, rows, DISK_ONLY, TO_THE_END)
    assert measured.delay_seconds == pytest.approx((22.5 - 10) + (22.5 - 20) + 0.5, abs=1e-6)


def test_the_median_is_within_a_twentieth() -> None:
    relation = lookup([7])
    rows = arriving(*((10.0 * number, 7) for number in range(1, 8)))
    measured = simulate(eager(relation), relation, rows, DISK_ONLY, TO_THE_END)
    assert 0.5 <= measured.median_delay <= 0.5 * 1.05


def test_runs_are_pooled_by_their_results() -> None:
    one = Measured(results_in_window=1, delay_seconds=10.0, disk_seconds=4.0)
    three = Measured(results_in_window=3, delay_seconds=6.0, disk_seconds=8.0)
    both = pooled([one, three])
    assert both.mean_delay == 4.0
    assert both.disk_seconds == 6.0


def test_full_size_counts_rows_as_those_that_they_stand_for() -> None:
    measured = Measured(most_buffered=3, buffered=[(1.0, 2)]).at_full_size(4.0)
    assert (measured.most_buffered, measured.buffered) == (12, [(1.0, 8)])
