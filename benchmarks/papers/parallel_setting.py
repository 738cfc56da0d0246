"""The setting of thesis 7.6 (its table 7.1), its key distribution, and what things cost.

What the thesis gives: the table, 60 partition groups, rows of 64 bytes, a buffer of 1 MB a node, 20 minutes of which
the first 10 fill the windows, two streams of Poisson arrivals, keys of 10 million values by a b-model of 0.7.
What it does not give is what its machines (930 MHz, Java, MPI over a gigabit switch) took for a row. Two of its
figures tell the processor's part, with 4 nodes:
- untuned, 4,000 rows/s a stream gave a mean delay of 48 s: some 5 % more work than time. A row meets 40,000 others;
- tuned, 6,000 rows/s left no idle time. A row meets 15,000 others, its bucket's part of the other window.
That makes 10.2 ns a comparison and 93 microseconds a row, if a result takes 5. So these two figures are calibrated, and
all others are predicted. For a message to a node we took 1 ms and for a row in it 10 microseconds (what Java took to
write 64 bytes as objects), at the master and at the node; the plots it would follow from are not in the text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.joins.parallel.partition_groups import group_of
from etl.joins.parallel.rebalancing import Rebalancing
from etl.kernels.columns import view
from etl.kernels.compiling import UInt64s
from etl.kernels.hashing import hash_columns

MIB = 1024 * 1024
WORK_SUPPLY, WORK_CONSUME = 0.8, 0.6
"""Thresholds where the load is the work that came: table 7.1 has those of a buffer that is empty up to the overload."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds."""

    comparison: float = 10.2e-9
    row: float = 93e-6
    result: float = 5e-6
    message: float = 1e-3
    row_sent: float = 10e-6


@dataclass(frozen=True, slots=True)
class Setting:
    """Table 7.1, with its defaults."""

    nodes: int = 4
    rows_per_second: float = 1500.0  # of each of the two streams
    window_seconds: float = 600.0
    bias: float = 0.7
    consume_threshold: float = 0.01
    supply_threshold: float = 0.5
    theta_mib: float = 1.5
    distribution_seconds: float = 2.0
    reorganisation_seconds: float = 20.0
    groups: int = 60
    row_bytes: int = 64
    buffer_mib: float = 1.0
    minutes: float = 20.0
    startup_minutes: float = 10.0
    filled: bool = False
    """Whether the windows are full from the start; otherwise they fill in the start-up."""
    tuned: bool = True
    adaptive: bool = False
    balancing: Literal["fitting", "random", "none"] = "fitting"
    yielded_groups: int = 1
    measure: Literal["buffer", "work"] = "buffer"
    """A node's load: the rows that wait in its buffer (the thesis), or the work that came over the time there was."""
    subgroups: int = 1
    keys: float = 10e6
    key_levels: int = 23
    """Shares of groups and buckets are those of 2**key_levels keys; 23 is nearest to the thesis' 10 million."""
    background: tuple[float, ...] = ()
    """Shares of their processors that nodes have lost to somebody else, from node 0 on."""
    costs: Costs = Costs()
    seed: int = 1

    @property
    def theta_rows(self) -> float:
        return self.theta_mib * MIB / self.row_bytes

    @property
    def buffer_rows(self) -> float:
        return self.buffer_mib * MIB / self.row_bytes

    @property
    def matches(self) -> float:
        """The probability that two rows have one key, by the b-model."""
        return float((self.bias**2 + (1 - self.bias) ** 2) ** math.log2(self.keys))

    @property
    def rebalancing(self) -> Rebalancing:
        by_work = self.measure == "work"
        return Rebalancing(
            supply_threshold=WORK_SUPPLY if by_work else self.supply_threshold,
            consume_threshold=WORK_CONSUME if by_work else self.consume_threshold,
            fewest_slots=1 if self.adaptive else self.nodes,
            most_slots=self.nodes,
            epoch_length=max(1, round(self.reorganisation_seconds / self.distribution_seconds)),
            choose="random" if self.balancing == "random" else "fitting",
            yielded_groups=self.yielded_groups,
        )


class KeyShares(NamedTuple):
    """The keys of all groups: `hashes[starts[g]:starts[g + 1]]` are group g's, `shares` their parts of the stream."""

    hashes: UInt64s
    shares: Floats
    starts: NDArray[np.int64]

    def of_group(self, group: int) -> tuple[UInt64s, Floats]:
        """The hashes of a group's keys and their parts of the *group's* rows."""
        chosen = slice(self.starts[group], self.starts[group + 1])
        shares = self.shares[chosen]
        return self.hashes[chosen], shares / shares.sum()

    def by_group(self) -> Floats:
        """Each group's part of the stream."""
        return np.add.reduceat(self.shares, self.starts[:-1])


@lru_cache(maxsize=2)
def key_shares(levels: int, bias: float, groups: int, seed: int) -> KeyShares:
    """A b-model over the key range, by its probabilities; the groups are those of the real partition function."""
    generator = np.random.default_rng(seed)
    shares: Floats = np.ones(1)
    for _ in range(levels):
        larger = np.where(generator.random(shares.size) < 0.5, bias, 1 - bias)
        shares = np.stack([shares * larger, shares * (1 - larger)], axis=1).ravel()
    keys = hash_columns([view(pa.array(np.arange(shares.size)))])
    group = group_of(keys, groups)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(groups + 1))
    if (np.diff(starts) == 0).any():
        raise ValueError(f"2**{levels} keys are too few for {groups} groups: a group has none; raise key_levels")
    return KeyShares(keys.hashes[order], shares[order], starts)
