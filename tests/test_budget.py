"""Work and memory are metered against what was granted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.budget import MemoryMeter, WorkBudget, WorkMeter, check_memory
from etl.errors import BadInput


@pytest.mark.parametrize("limit", ["blocks", "rows"])
def test_a_negative_budget_is_refused(limit: str) -> None:
    with pytest.raises(BadInput, match=f"a work budget of -1 {limit}: give zero or more, or None for no limit"):
        WorkBudget(**{limit: -1})  # type: ignore[arg-type]  # blocks or rows, both integers


def test_a_budget_without_limits_is_never_spent() -> None:
    meter = WorkMeter(WorkBudget())
    meter.charge(blocks=10**9, rows=10**12)
    assert not meter.spent


def test_a_budget_of_nothing_is_spent_at_once() -> None:
    assert WorkMeter(WorkBudget(blocks=0)).spent
    assert WorkMeter(WorkBudget(rows=0)).spent


@given(
    st.none() | st.integers(0, 20),
    st.none() | st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
)
def test_a_budget_is_spent_when_the_first_limit_is_reached(
    blocks: int | None, rows: int | None, charges: list[tuple[int, int]]
) -> None:
    meter = WorkMeter(WorkBudget(blocks=blocks, rows=rows))
    for charged_blocks, charged_rows in charges:
        meter.charge(blocks=charged_blocks, rows=charged_rows)
    total = [sum(charge[0] for charge in charges), sum(charge[1] for charge in charges)]
    assert [meter.blocks, meter.rows] == total
    limits = [blocks, rows]
    assert meter.spent == any(limit is not None and done >= limit for done, limit in zip(total, limits, strict=True))


def test_an_interrupt_ends_the_budget_when_it_says_so() -> None:
    answers = iter([False, True])
    meter = WorkMeter(WorkBudget(blocks=5, interrupt=lambda: next(answers)))
    assert [meter.spent, meter.spent] == [False, True]


def test_the_peak_remembers_what_passed() -> None:
    meter = MemoryMeter(100)
    for used in (10, 70, 30):
        meter.set(used)
    assert (meter.used, meter.peak) == (30, 70)
    meter.peak_at(90)
    meter.peak_at(80)
    assert (meter.used, meter.peak, meter.limit) == (30, 90, 100)


def test_memory_holds_at_least_one_block() -> None:
    check_memory(64, 64)
    with pytest.raises(
        BadInput, match="memory_bytes is 63, below one block of 64 bytes: give more memory or a smaller"
    ):
        check_memory(63, 64)
    with pytest.raises(BadInput, match="block_bytes is 0: a block holds at least one byte"):
        check_memory(64, 0)
