"""Scripts: what can happen to an operator, as data, and Hypothesis strategies that make them up.

A script is a list of steps: events as the operator takes them, and work budgets that stand for a pause in which it
may work. Every row carries a number that no other row of its side has, so that a lost, doubled or made-up pair shows.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from hypothesis import strategies as st

from etl.joins import EndOfSide, Event, Exactly, Punctuation, Rows, Tick, Watermark, WorkBudget


@dataclass(frozen=True, eq=False)
class Grow:
    """The relation gets these rows and the operator learns of the new version."""

    rows: pa.RecordBatch


Step = Event | WorkBudget | Grow


@dataclass(frozen=True)
class Script:
    """One life of an operator. `sides` are the stream sides; `relation` is the relation's first content, if any."""

    sides: tuple[pa.Schema, ...]
    on: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    memory_bytes: int
    block_bytes: int
    result_rows: int
    relation: pa.RecordBatch | None = None
    how: str = "inner"
    windows: tuple[int, int] | None = None

    @property
    def settings(self) -> dict[str, object]:
        """What an operator must be told of the script: where event times are, and how long its windows are."""
        return {} if self.windows is None else {"event_times": (EVENT_TIME, EVENT_TIME), "windows": self.windows}

    @property
    def largest_batch(self) -> int:
        """Bytes of the largest batch, for the bound 'memory_bytes plus one batch'."""
        return max((step.batch.get_total_buffer_size() for step in self.steps if isinstance(step, Rows)), default=0)

    def __repr__(self) -> str:
        lines = [f"Script(on={self.on}, memory={self.memory_bytes}, block={self.block_bytes}, rows={self.result_rows}"]
        if self.relation is not None:
            lines.append(f"  relation {self.relation.to_pylist()}, how={self.how}")
        if self.windows is not None:
            lines.append(f"  windows {self.windows}")
        return "\n".join([*lines, *(f"  {_shown(step)}" for step in self.steps)]) + ")"


def _shown(step: Step) -> str:
    if isinstance(step, Rows):
        return f"Rows({step.side}, {[tuple(row.values()) for row in step.batch.to_pylist()]})"
    if isinstance(step, Grow):
        return f"Grow({step.rows.to_pylist()})"
    return repr(step)


@dataclass(frozen=True)
class KeyShape:
    """The key columns of a script: their types, and how a small integer becomes a value of each."""

    types: tuple[pa.DataType, ...]
    values: tuple[tuple[object, ...], ...]

    def columns(self, keys: Sequence[int | None]) -> list[pa.Array]:
        return [
            pa.array([None if key is None else column[key % len(column)] for key in keys], type_)
            for type_, column in zip(self.types, self.values, strict=True)
        ]


def _days(number: int) -> datetime.date:
    return datetime.date(1969, 12, 31) + datetime.timedelta(days=number)


KEY_SHAPES: dict[str, KeyShape] = {
    "int64": KeyShape((pa.int64(),), ((0, -1, 2**63 - 1, -(2**63), 7),)),
    "int8": KeyShape((pa.int8(),), ((0, -1, 127, -128, 7),)),
    "uint32": KeyShape((pa.uint32(),), ((0, 2**32 - 1, 5, 6, 7),)),
    "bool": KeyShape((pa.bool_(),), ((False, True),)),
    "string": KeyShape((pa.string(),), (("", "a", "ab", "seventeen bytes!!", "päron"),)),
    "large_string": KeyShape((pa.large_string(),), (("", "a", "ab", "b", "a longer key than one block of it"),)),
    "binary": KeyShape((pa.binary(),), ((b"", b"\0", b"\0\0", b"\xff", b"k"),)),
    "date": KeyShape((pa.date32(),), (tuple(_days(n) for n in range(5)),)),
    "timestamp": KeyShape((pa.timestamp("us", "UTC"),), ((0, 1, -1, 10**15, 2),)),
    "decimal": KeyShape((pa.decimal128(20, 2),), (tuple(decimal.Decimal(n) / 4 for n in range(-2, 3)),)),
    "string+int32": KeyShape((pa.string(), pa.int32()), (("a", "ab", "b", "a", "ab"), (1, 1, 1, 2, 2))),
    "int64+int64": KeyShape((pa.int64(), pa.int64()), ((0, 1, 0, 1, 2), (0, 0, 1, 1, 0))),
}


ORDERED_SHAPES = tuple(name for name in KEY_SHAPES if name not in ("bool", "decimal"))
"""Keys that a relation can be partitioned by in ranges."""


EVENT_TIME = "event_time"
TIME_TYPES = (pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
"""Types that an event time can have."""


def side_schema(shape: KeyShape, payload: pa.DataType, time_type: pa.DataType | None = None) -> pa.Schema:
    keys = [(f"k{number}", type_) for number, type_ in enumerate(shape.types)]
    times = [] if time_type is None else [(EVENT_TIME, time_type)]
    return pa.schema([*keys, ("number", pa.int64()), ("payload", payload), *times])


PAYLOADS: dict[str, tuple[pa.DataType, tuple[object, ...]]] = {
    "string": (pa.string(), ("", "x", None, "some longer text that fills a block sooner")),
    "wide": (pa.string(), ("w" * 300, None, "v" * 200)),
    "float": (pa.float64(), (0.5, None, -1.0)),
    "list": (pa.list_(pa.int32()), ([], [1, 2], None)),
    "bool": (pa.bool_(), (True, None, False)),
}


def make_batch(shape: KeyShape, payload: str, keys: Sequence[int | None], first_number: int) -> pa.RecordBatch:
    """Rows with these keys, numbered from `first_number`."""
    type_, values = PAYLOADS[payload]
    numbers = range(first_number, first_number + len(keys))
    columns = [
        *shape.columns(keys),
        pa.array(numbers, pa.int64()),
        pa.array([values[number % len(values)] for number in numbers], type_),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=side_schema(shape, type_))


def with_event_times(batch: pa.RecordBatch, times: Sequence[int | None], time_type: pa.DataType) -> pa.RecordBatch:
    return batch.append_column(EVENT_TIME, pa.array(times, time_type))


_RELATION_KEYS = st.lists(st.integers(0, 4), max_size=10)
_KEYS = st.lists(st.one_of(st.integers(0, 4), st.none(), st.just(0)), max_size=10)
_BUDGETS = st.one_of(
    st.builds(WorkBudget, blocks=st.integers(0, 4), rows=st.one_of(st.none(), st.integers(0, 20))),
    st.just(WorkBudget(blocks=1, rows=1)),
    st.just(WorkBudget()),
)
_BLOCKS = st.integers(1, 12)
_LARGE_MEMORY = 1 << 20
_WINDOWS = st.tuples(st.integers(0, 4), st.integers(0, 4)) | st.just((2**63 - 1, 2**63 - 1))
_FURTHER = st.just(0) | st.integers(0, 5)
"""How far an event time is ahead of the watermark, and a watermark of the one before it: the borders come often."""


@st.composite
def scripts(
    draw: st.DrawFn,
    sides: int = 2,
    shapes: Sequence[str] = tuple(KEY_SHAPES),
    with_relation: bool = False,
    with_windows: bool = False,
) -> Script:
    """Any arrival order, batch cut, end, pause, hint, memory budget; with a relation, any growth of it.

    With windows, rows have event times in any order, but for what a truthful watermark excludes.
    """
    shape = KEY_SHAPES[draw(st.sampled_from(shapes))]
    payloads = [draw(st.sampled_from(sorted(PAYLOADS))) for _ in range(sides)]
    time_type = draw(st.sampled_from(TIME_TYPES)) if with_windows else None
    queues = [_events_of_side(draw, side, shape, payloads[side], time_type) for side in range(sides)]
    steps: list[Step] = []
    while any(queues):
        side = draw(st.sampled_from([number for number, queue in enumerate(queues) if queue]))
        if draw(st.integers(0, 4)) == 0:
            steps.append(draw(_BUDGETS))
        steps.append(queues[side].pop(0))
    block_bytes = draw(st.sampled_from([64, 256, 1024]))
    script = Script(
        sides=tuple(side_schema(shape, PAYLOADS[payload][0], time_type) for payload in payloads),
        on=tuple((f"k{number}", f"k{number}") for number in range(len(shape.types))),
        steps=tuple(steps),
        memory_bytes=draw(st.one_of(_BLOCKS.map(lambda blocks: blocks * block_bytes), st.just(_LARGE_MEMORY))),
        block_bytes=block_bytes,
        result_rows=draw(st.sampled_from([1, 3, 65_536])),
        windows=draw(_WINDOWS) if with_windows else None,
    )
    return _with_relation(draw, script, shape) if with_relation else script


def _events_of_side(
    draw: st.DrawFn, side: int, shape: KeyShape, payload: str, time_type: pa.DataType | None
) -> list[Step]:
    events: list[Step] = []
    number = 0
    watermark = 0
    for _ in range(draw(st.integers(0, 5))):
        keys = draw(_KEYS)
        batch = make_batch(shape, payload, keys, number)
        if time_type is not None:
            times = [None if draw(st.integers(0, 15)) == 0 else watermark + draw(_FURTHER) for _ in keys]
            batch = with_event_times(batch, times, time_type)
        if draw(st.booleans()) and len(keys) > 1:
            # A slice: operators must honour Arrow's offsets.
            batch = batch.slice(1)
        events.append(Rows(side, batch))
        number += len(keys)
        if time_type is not None and draw(st.booleans()):
            watermark += draw(_FURTHER)
            events.append(Watermark(side, watermark))
        elif draw(st.integers(0, 5)) == 0:
            hint = Tick(number) if time_type is not None or draw(st.booleans()) else Watermark(side, number)
            events.append(hint)
    if draw(st.booleans()):
        # Truthful: the side has ended but for its end. Operators may use it or not; results are the same.
        events.append(Punctuation(side, {"number": Exactly(number)}))
    events.append(EndOfSide(side))
    return events


def _with_relation(draw: st.DrawFn, script: Script, shape: KeyShape) -> Script:
    steps: list[Step] = []
    number = 0
    first = make_batch(shape, "string", draw(_RELATION_KEYS), 0)
    number += first.num_rows
    for step in script.steps:
        if draw(st.integers(0, 4)) == 0:
            more = make_batch(shape, "string", draw(_RELATION_KEYS), number)
            number += more.num_rows
            steps.append(Grow(more))
        steps.append(step)
    return replace(script, steps=tuple(steps), relation=first, how=draw(st.sampled_from(["inner", "left"])))
