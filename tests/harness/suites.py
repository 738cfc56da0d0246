"""The suites: contract, exactness, restore, memory. Each is a list of checks of a subject on a script."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from etl import joins
from etl.errors import BadInput, HeadraceError, IllegalEvent, MemoryBudgetExceeded
from etl.joins import EndOfSide, Operator, Phase, Progress, Rows, WorkBudget
from tests.harness.player import AMPLE_MEMORY, Player
from tests.harness.retained import retained_bytes
from tests.harness.subjects import Check, Subject
from tests.scripts import Script, Step

# Contract


def refusals_change_nothing(subject: Subject, script: Script) -> None:
    """Check first, change second: an event that is not legal leaves the operator as it was, and working."""
    player = Player(subject, script)
    for step in script.steps:
        before = player.operator.snapshot().to_bytes()
        for wrong in _wrong_events(player.operator, script):
            with pytest.raises((BadInput, IllegalEvent)):
                player.operator.offer(wrong, player.emit)
        assert player.operator.snapshot().to_bytes() == before, "a refused event changed the state"
        player.step(step)
    player.finish().judge()
    assert player.operator.phase is Phase.DONE
    with pytest.raises(IllegalEvent):
        player.operator.offer(joins.Tick(0), player.emit)


def _wrong_events(operator: Operator, script: Script) -> list[joins.Event]:
    empty = [schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema)] for schema in script.sides]
    wrong: list[joins.Event] = [
        Rows(len(script.sides), empty[0][0]),
        Rows(-1, empty[0][0]),
        Rows(0, pa.RecordBatch.from_pydict({"strange": [1]})),
        EndOfSide(len(script.sides)),
    ]
    ended = [side for side in range(len(script.sides)) if side not in operator._open]
    return wrong + [event for side in ended for event in (Rows(side, empty[side][0]), EndOfSide(side))]


def results_keep_the_contract(subject: Subject, script: Script) -> None:
    """Emitted batches have the promised schema, at least one row and at most `result_rows`; the counters agree."""
    player = Player(subject, script).play(script.steps).finish()
    for batch in player.results:
        assert batch.schema.equals(player.operator.plan.result_schema)
        batch.validate(full=True)
        assert 1 <= batch.num_rows <= script.result_rows
    counters = player.operator.counters
    assert counters.results == sum(batch.num_rows for batch in player.results)
    offered = [step for step in script.steps if isinstance(step, Rows)]
    assert counters.rows_in == [
        sum(step.batch.num_rows for step in offered if step.side == side) for side in range(len(script.sides))
    ]


def failure_is_final(subject: Subject, script: Script) -> None:
    """An exception half-way leaves the operator FAILED: it takes nothing more and gives no snapshot."""
    player = Player(subject, script)

    def failing(batch: pa.RecordBatch) -> None:
        raise InterruptedError

    try:
        for step in script.steps:
            if isinstance(step, joins.Rows | EndOfSide | joins.Tick | joins.Watermark | joins.Punctuation):
                player.operator.offer(step, failing)
        while player.operator.work(WorkBudget(blocks=1), failing) is Progress.MORE:
            pass
    except InterruptedError:
        assert player.operator.phase is Phase.FAILED
        for refused in (
            lambda: player.operator.offer(joins.Tick(1), player.emit),
            lambda: player.operator.work(WorkBudget(), player.emit),
            player.operator.snapshot,
        ):
            with pytest.raises(IllegalEvent):
                refused()
    player.operator.close()


def work_keeps_its_budget(subject: Subject, script: Script) -> None:
    """`work` reads at most one block more than its budget, says truly whether more is to do, and comes to an end."""
    player = Player(subject, script)
    small = [WorkBudget(blocks=0), WorkBudget(blocks=1, rows=1), WorkBudget(blocks=2), _interrupted()]
    budgets = itertools.cycle(small)
    for step in script.steps:
        if not isinstance(step, WorkBudget):
            player.step(step)
        _work_measured(player, next(budgets))
    for budget in itertools.islice(budgets, 40_000):
        if _work_measured(player, budget) is Progress.DONE:
            break
    else:
        raise AssertionError("never done in small budgets")
    assert player.operator.work(WorkBudget(), player.emit) is Progress.DONE
    player.judge()


def _work_measured(player: Player, budget: WorkBudget) -> Progress:
    read_before = player.spill.counters.blocks_read
    charged_before = player.operator.counters.blocks_read
    progress = player.operator.work(budget, player.emit)
    read = player.spill.counters.blocks_read - read_before
    charged = player.operator.counters.blocks_read - charged_before
    most = 0 if budget.blocks == 0 else 1 + (1 if budget.blocks is None else budget.blocks)
    assert read <= most, f"read {read} blocks on a budget of {budget}"
    if player.subject.entry.needs_spill:
        assert charged == read, f"read {read} blocks but charged {charged}"
    return progress


def _interrupted() -> WorkBudget:
    return WorkBudget(interrupt=lambda: True)


def idle_means_idle(subject: Subject, script: Script) -> None:
    """Without a limit, `work` ends in IDLE or DONE, and calling it again does nothing."""
    player = Player(subject, script)
    for step in script.steps:
        player.step(step)
        progress = player.operator.work(WorkBudget(), player.emit)
        assert progress is not Progress.MORE
        emitted, read = len(player.results), player.spill.counters.blocks_read
        assert player.operator.work(WorkBudget(), player.emit) is progress
        assert (emitted, read) == (len(player.results), player.spill.counters.blocks_read)
    player.finish().judge()


def closing_leaves_nothing(subject: Subject, script: Script) -> None:
    """After `close` nothing of an operator that was never snapshotted is left on disk; closing twice is harmless."""
    player = Player(subject, script).play(script.steps)
    player.operator.close()
    player.operator.close()
    assert player.operator.phase is Phase.CLOSED
    assert player.spill.runs() == []
    with pytest.raises(IllegalEvent):
        player.operator.work(WorkBudget(), player.emit)


# Exactness


def results_equal_the_oracle(subject: Subject, script: Script) -> None:
    Player(subject, script).play(script.steps).finish().judge()


def batch_cuts_do_not_matter(subject: Subject, script: Script) -> None:
    """Fed row by row, the same script gives the same results."""
    single: list[Step] = []
    for step in script.steps:
        if isinstance(step, Rows):
            single.extend(Rows(step.side, step.batch.slice(row, 1)) for row in range(step.batch.num_rows))
        else:
            single.append(step)
    Player(subject, script).play(single).finish(WorkBudget(blocks=1, rows=1)).judge()


# Restore


def restore_at_every_boundary(subject: Subject, script: Script) -> None:
    """A snapshot between any two steps restores in a new object; the rest replayed gives every result exactly once.

    The first operator works to its end before any snapshot is restored: what a snapshot names must outlive it.
    """
    first = Player(subject, script)
    points: list[tuple[Player, bytes]] = []
    for step in script.steps:
        points.append((_bystander(first), first.operator.snapshot().to_bytes()))
        first.step(step)
    points.append((_bystander(first), first.operator.snapshot().to_bytes()))
    first.finish().judge()
    for position, (record, stored) in enumerate(points):
        record.restored(stored).play(script.steps[position:]).finish().judge()


def restore_while_cleaning_up(subject: Subject, script: Script) -> None:
    """The same between small pieces of clean-up work, each time in a new object."""
    player = Player(subject, script).play(script.steps)
    for _ in range(10_000):
        player = player.restored(player.operator.snapshot().to_bytes())
        if player.operator.work(WorkBudget(blocks=1, rows=1), player.emit) is Progress.DONE:
            break
    else:
        raise AssertionError("never done when restored after each piece of work")
    player.judge()


def restore_with_other_memory(subject: Subject, script: Script) -> None:
    half = len(script.steps) // 2
    first = Player(subject, script).play(script.steps[:half])
    stored = first.operator.snapshot().to_bytes()
    for memory in (script.block_bytes, AMPLE_MEMORY):
        if memory == AMPLE_MEMORY or subject.keeps_to_any_budget:
            first.restored(stored, memory_bytes=memory).play(script.steps[half:]).finish().judge()


def _bystander(player: Player) -> Player:
    """The record up to now, without the operator that goes on."""
    copy = object.__new__(Player)
    copy.__dict__.update(player.__dict__)
    copy.results = list(player.results)
    copy.versions = list(player.versions)
    copy.arrived_at = dict(player.arrived_at)
    return copy


# Memory


def memory_stays_within_budget(subject: Subject, script: Script) -> None:
    """Never above `memory_bytes` plus one batch, by the operator's own count and by what it really holds."""
    player = Player(subject, script)
    if not subject.keeps_to_any_budget:
        _refuses_in_time(subject, script)
        return
    for step in script.steps:
        player.step(step)
        _assert_bounded(player)
    player.finish()
    _assert_bounded(player)


def _refuses_in_time(subject: Subject, script: Script) -> None:
    """An operator that cannot spill refuses rows that do not fit, with nothing changed, and never holds more."""
    entry = subject.entry
    operator = joins.build(
        entry.name,
        sides=script.sides,
        on=script.on,
        memory_bytes=script.memory_bytes,
        block_bytes=script.block_bytes,
        **script.settings,  # type: ignore[arg-type]  # the operator's own
        **subject.settings,  # type: ignore[arg-type]
    )
    for step in script.steps:
        if isinstance(step, WorkBudget):
            continue
        before = operator.snapshot().to_bytes()
        try:
            operator.offer(step, lambda batch: None)  # type: ignore[arg-type]  # no Grow without a relation
        except MemoryBudgetExceeded as refusal:
            _assert_names(refusal, script.memory_bytes)
            assert operator.snapshot().to_bytes() == before
        except HeadraceError as unexpected:
            raise AssertionError(f"refused for another reason: {unexpected}") from unexpected
        assert retained_bytes(operator) <= script.memory_bytes + _SLACK
        assert operator.counters.peak_memory_bytes <= script.memory_bytes + _SLACK


def _assert_names(refusal: Exception, memory_bytes: int) -> None:
    assert str(memory_bytes) in str(refusal), f"the refusal does not say how much memory there is: {refusal}"


def _assert_bounded(player: Player) -> None:
    limit = player.script.memory_bytes + player.script.largest_batch
    counters = player.operator.counters
    held = retained_bytes(player.operator)
    assert counters.peak_memory_bytes <= limit, f"counted {counters.peak_memory_bytes} bytes, allowed {limit}"
    assert held <= limit + _SLACK, f"holds {held} bytes, allowed {limit}"


def memory_is_counted_honestly(subject: Subject, script: Script) -> None:
    """What the operator says it holds covers what can be reached from it."""
    player = Player(subject, script)
    for step in script.steps:
        player.step(step)
        counted, held = player.operator.counters.memory_bytes, retained_bytes(player.operator)
        assert held <= counted + _SLACK, f"holds {held} bytes but counts {counted}"


_SLACK = 2048
"""Fixed-size scratch that does not grow with the rows, such as the smallest arrays of an empty table."""


CONTRACT: list[Check] = [
    refusals_change_nothing,
    results_keep_the_contract,
    failure_is_final,
    work_keeps_its_budget,
    idle_means_idle,
    closing_leaves_nothing,
]
EXACTNESS: list[Check] = [results_equal_the_oracle, batch_cuts_do_not_matter]
RESTORE: list[Check] = [restore_at_every_boundary, restore_while_cleaning_up, restore_with_other_memory]
MEMORY: list[Check] = [memory_stays_within_budget, memory_is_counted_honestly]
SUITES = {"contract": CONTRACT, "exactness": EXACTNESS, "restore": RESTORE, "memory": MEMORY}
