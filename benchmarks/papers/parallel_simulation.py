"""The parallel join of thesis 7 on a virtual clock: a master, its nodes, and the rules of `etl.joins.parallel`.

What is real: the partition function, the placement, `reorganise` (suppliers, consumers, number of slots) and each
group's extendible directory, split and merged by the sizes that its keys give it. What is made up is time: `Costs`
says what a row, a comparison and a message take. Arrivals are Poisson by group. Nothing is sampled by row, so 1,000
nodes are a matter of seconds.

Once in a distribution epoch a node stops its work and contacts the master, at the start of its sub-group's slot. The
master serves nodes one after the other, in one order: a message, and the rows that came for the node's groups. Until
it is served the node waits; that and the message are its communication time. Then it joins what it has, first come
first served, until the next contact. Moving a group takes both nodes a message with all rows of its windows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from benchmarks.papers.parallel_setting import Floats, KeyShares, Setting, key_shares
from etl.joins.parallel.extendible_directory import ExtendibleDirectory
from etl.joins.parallel.partition_groups import Placement
from etl.joins.parallel.rebalancing import GroupLoad, reorganise
from etl.kernels.compiling import Int64s


@dataclass(slots=True)
class Measured:
    """What the run showed after its start-up. By node: nodes that were never active are left out."""

    seconds: float
    delay_rows: float = 0.0
    delay_seconds: float = 0.0
    processor: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    communication: list[float] = field(default_factory=list)
    window_mib: list[float] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    master_busy: float = 0.0
    most_master_rows: float = 0.0
    owed_rows: float = 0.0
    moves: int = 0
    buckets: int = 0

    @property
    def mean_delay(self) -> float:
        return self.delay_seconds / self.delay_rows if self.delay_rows else float("inf")

    @property
    def mean_slots(self) -> float:
        return sum(self.slots) / len(self.slots)

    @property
    def node_processor(self) -> float:
        return sum(self.processor) / self.mean_slots

    @property
    def node_idle(self) -> float:
        return sum(self.idle) / self.mean_slots

    @property
    def node_communication(self) -> float:
        """The mean over the nodes that were active at the time."""
        return sum(self.communication) / self.mean_slots


class Cluster:
    """One run. `run` goes to the end; what happens in an epoch is in `_epoch`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._generator = np.random.default_rng(setting.seed)
        keys = key_shares(setting.key_levels, setting.bias, setting.groups, setting.seed)
        self._windows = Windows(setting, keys)
        self.placement = Placement.even(setting.groups, setting.nodes)
        self._nodes = [Node(number, setting) for number in range(setting.nodes)]
        self._master_free = 0.0
        self._work_seen: Floats = np.zeros(setting.groups)
        self._slot_of = np.array(self.placement.slot_of)
        self.measured = Measured(60 * (setting.minutes - setting.startup_minutes))

    def run(self) -> Measured:
        setting, measured = self.setting, self.measured
        epoch_seconds = setting.distribution_seconds
        epochs = round(60 * setting.minutes / epoch_seconds)
        first = round(60 * setting.startup_minutes / epoch_seconds)
        for epoch in range(epochs):
            if epoch == first:
                self._forget_startup()
            self._epoch(epoch)
            if epoch >= first:
                measured.slots.append(self.placement.slots)
            if setting.balancing != "none" and setting.rebalancing.due(epoch):
                self._reorganise(epoch)
        used = [node for node in self._nodes if node.was_active]
        measured.processor = [node.processor for node in used]
        measured.idle = [node.idle for node in used]
        measured.communication = [node.communication for node in used]
        measured.delay_rows = sum(node.delay_rows for node in used)
        measured.delay_seconds = sum(node.delay_seconds for node in used)
        measured.owed_rows = sum(node.backlog_rows for node in used) + self._late_at_master(epochs * epoch_seconds)
        rows = np.bincount(self._slot_of, weights=self._windows.rows, minlength=self.placement.slots)
        measured.window_mib = (rows * setting.row_bytes / 2**20).tolist()
        measured.buckets = self._windows.buckets
        return measured

    def _epoch(self, epoch: int) -> None:
        """Rows of one epoch arrive, and every node gets its part."""
        setting, slots = self.setting, self.placement.slots
        span = setting.distribution_seconds
        arrived = self._generator.poisson(2 * setting.rows_per_second * span * self._windows.shares).astype(float)
        self._windows.arrive(arrived)
        work = self._windows.work_by_row()
        self._work_seen += arrived * work
        rows = np.bincount(self._slot_of, weights=arrived, minlength=slots)
        seconds = np.bincount(self._slot_of, weights=arrived * work, minlength=slots)
        # Nodes in turn over the sub-groups' slots, each in its own order: always the same one, as the thesis advises.
        turns = np.arange(slots) * setting.subgroups // slots
        for node, turn in zip(self._nodes[:slots], turns.tolist(), strict=True):
            scheduled = (epoch + 1 + turn / setting.subgroups) * span
            self._serve(node, scheduled, float(rows[node.number]), float(seconds[node.number]))
        self._note_master_buffer(turns, rows / span)

    def _serve(self, node: Node, scheduled: float, rows: float, work: float) -> None:
        contact = node.work_until(scheduled)
        begun = max(contact, self._master_free)
        costs = self.setting.costs
        sending = costs.message + rows * costs.row_sent
        self._master_free = begun + sending
        self.measured.master_busy += sending
        node.receive(contact, self._master_free, rows, work, arrived=scheduled - self.setting.distribution_seconds / 2)

    def _reorganise(self, epoch: int) -> None:
        loads = [GroupLoad(group, work) for group, work in enumerate(self._group_works().tolist())]
        outcome = reorganise(self.placement, loads, self.setting.rebalancing, epoch)
        for node in self._nodes[self.placement.slots : outcome.placement.slots]:
            node.ready_at = self._nodes[0].ready_at
        for move in outcome.moves:
            self._move(move.group, self._nodes[move.source], self._nodes[move.target])
        self.measured.moves += len(outcome.moves)
        self.placement = outcome.placement
        self._slot_of = np.array(self.placement.slot_of)

    def _group_works(self) -> Floats:
        """What each group asked of its node in the reorganisation epoch that ends, as a share of what a node has."""
        setting, active = self.setting, self._nodes[: self.placement.slots]
        buffered = np.array([node.mean_backlog() for node in active]) / setting.buffer_rows
        if setting.measure == "work":
            works = self._work_seen / (setting.rebalancing.epoch_length * setting.distribution_seconds)
        else:
            # What waits at a node is its groups' by their parts of the rows.
            node_shares = np.bincount(self._slot_of, weights=self._windows.shares, minlength=len(active))
            works = buffered[self._slot_of] * self._windows.shares / node_shares[self._slot_of]
        self._work_seen = np.zeros(setting.groups)
        return works

    def _move(self, group: int, source: Node, target: Node) -> None:
        """State and waiting rows of a group go over; both nodes are busy with it."""
        held = self._windows.shares[self._slot_of == source.number].sum()
        costs = self.setting.costs
        seconds = costs.message + float(self._windows.rows[group]) * costs.row_sent
        begun = max(source.ready_at, target.ready_at)
        for node in (source, target):
            node.communication += begun + seconds - node.ready_at
            node.ready_at = begun + seconds
        target.take_over(source.give_away(float(self._windows.shares[group] / held) if held else 0.0))
        self._slot_of[group] = target.number

    def _note_master_buffer(self, turns: Int64s, rates: Floats) -> None:
        """Rows at the master right before each slot: what came for each node since its own slot."""
        span, count = self.setting.distribution_seconds, self.setting.subgroups
        for turn in range(count):
            since = (turn - turns - 1) % count + 1
            self.measured.most_master_rows = max(
                self.measured.most_master_rows, float((rates * since).sum() * span / count)
            )

    def _late_at_master(self, end: float) -> float:
        """Rows that the master should have sent by now: it lags behind by what it is busy beyond the end."""
        lag = max(0.0, self._master_free - end - 2 * self.setting.distribution_seconds)
        return lag * 2 * self.setting.rows_per_second

    def _forget_startup(self) -> None:
        for node in self._nodes:
            node.forget()
        self.measured.master_busy = self.measured.most_master_rows = 0.0
        self.measured.moves = 0


class Windows:
    """Rows in the windows of each group, both streams together, and what its buckets make of a scan."""

    def __init__(self, setting: Setting, keys: KeyShares) -> None:
        self._setting = setting
        self._keys = keys
        self.shares = keys.by_group()
        epochs = max(1, round(setting.window_seconds / setting.distribution_seconds))
        each = 2 * setting.rows_per_second * setting.distribution_seconds * self.shares if setting.filled else 0.0
        self._history: Floats = np.zeros((epochs, setting.groups)) + each
        self.rows: Floats = self._history.sum(axis=0)
        self._oldest = 0
        self._directories = [ExtendibleDirectory(setting.theta_rows, most_depth=12) for _ in range(setting.groups)]
        self._bucket_shares: list[Floats] = [np.ones(1) for _ in range(setting.groups)]
        self._largest: Floats = np.ones(setting.groups)
        self._scanned: Floats = np.ones(setting.groups)
        self._tune()

    @property
    def buckets(self) -> int:
        return sum(len(directory.buckets) for directory in self._directories)

    def arrive(self, arrived: Floats) -> None:
        """One epoch's rows come in, those of the epoch that leaves the windows go."""
        self.rows += arrived - self._history[self._oldest]
        self._history[self._oldest] = arrived
        self._oldest = (self._oldest + 1) % len(self._history)
        self._tune()

    def work_by_row(self) -> Floats:
        """Seconds of work for a row of each group: its bucket's part of the other stream's window is scanned."""
        costs, other = self._setting.costs, self.rows / 2
        results = float(other.sum()) * self._setting.matches * costs.result
        return costs.row + results + costs.comparison * other * self._scanned

    def _tune(self) -> None:
        if not self._setting.tuned:
            return
        theta = self._setting.theta_rows
        # Most groups are as they should be: only those that may not be are looked at bucket by bucket.
        split = self.rows * self._largest > 2 * theta
        merge = (self.rows < 2 * theta) & (self._scanned < 1)
        for group in np.flatnonzero(split | merge).tolist():
            self._tune_group(group)

    def _tune_group(self, group: int) -> None:
        directory, rows = self._directories[group], self.rows[group]
        hashes, shares = self._keys.of_group(group)

        def parts() -> Floats:
            return np.bincount(directory.bucket_of(hashes), weights=shares, minlength=directory.numbers).astype(float)

        while large := directory.overfull((parts() * rows).astype(np.int64)):
            for bucket in large:
                directory.split(bucket)
        while (pair := directory.next_merge((parts() * rows).astype(np.int64))) is not None:
            directory.merge(*pair)
        now = parts()
        self._largest[group], self._scanned[group] = now.max(), (now**2).sum()


@dataclass(slots=True)
class _Waiting:
    """Rows that came together: when on average, how many, and the seconds of work that they are."""

    arrived: float
    rows: float
    work: float


class Node:
    def __init__(self, number: int, setting: Setting) -> None:
        self.number = number
        self._speed = 1.0 - (setting.background[number] if number < len(setting.background) else 0.0)
        self._queue: deque[_Waiting] = deque()
        self.ready_at = 0.0
        self.was_active = False
        self._backlogs: list[float] = []
        self.forget()

    def forget(self) -> None:
        self.processor = self.idle = self.communication = 0.0
        self.delay_rows = self.delay_seconds = 0.0

    @property
    def backlog_rows(self) -> float:
        return sum(waiting.rows for waiting in self._queue)

    def work_until(self, instant: float) -> float:
        """Join what waits until then; when the node is free for the master, which is later if it was kept busy."""
        now = self.ready_at
        while self._queue and now < instant:
            first = self._queue[0]
            wanted = first.work / self._speed
            done = min(1.0, (instant - now) / wanted) if wanted else 1.0
            took = done * wanted
            self.delay_rows += done * first.rows
            self.delay_seconds += done * first.rows * (now + took / 2 - first.arrived)
            self.processor += took
            now += took
            if done == 1.0:
                self._queue.popleft()
            else:
                first.rows *= 1 - done
                first.work *= 1 - done
        self.idle += max(0.0, instant - now)
        self._backlogs.append(self.backlog_rows)
        return max(instant, now)

    def receive(self, contact: float, end: float, rows: float, work: float, arrived: float) -> None:
        self.was_active = True
        self.communication += end - contact
        self.ready_at = end
        self._queue.append(_Waiting(arrived, rows, work))

    def mean_backlog(self) -> float:
        """Over the reorganisation epoch that ends here; the next one starts."""
        backlogs, self._backlogs = self._backlogs, []
        return sum(backlogs) / len(backlogs) if backlogs else 0.0

    def give_away(self, share: float) -> list[_Waiting]:
        """This share of what waits."""
        given = [_Waiting(waiting.arrived, share * waiting.rows, share * waiting.work) for waiting in self._queue]
        for waiting in self._queue:
            waiting.rows *= 1 - share
            waiting.work *= 1 - share
        return given

    def take_over(self, given: list[_Waiting]) -> None:
        merged = sorted([*self._queue, *given], key=lambda waiting: waiting.arrived)
        self._queue = deque(waiting for waiting in merged if waiting.rows > 0)
