"""Models of how rows arrive: how many, when, and with which keys. For experiments, benchmarks and tests.

- `b_model`: bursty volumes. Each half of an interval gets `bias` or `1 - bias` of its rows, at random, and so on down:
  bursts within bursts, as network and disk traffic shows them. (Wang, Madhyastha, Chan, Papadimitriou, Faloutsos: "Data
  mining meets performance evaluation: fast algorithms for modeling bursty traffic", ICDE 2002.)
- `pqrs`: the same idea in two dimensions, time and place. Each square of time by place sends its rows to its four
  quadrants with probabilities p, q, r and s; when p * s differs from q * r, place depends on time: the stream dwells on
  a part of the keys and moves on. (Wang, Ailamaki, Faloutsos: "Capturing the spatio-temporal behavior of real traffic
  data", Performance Evaluation 49, 2002.)
- `poisson_arrivals`, `zipf_keys`: the independent classics.
- `bursty_stream`: the traces of the thesis (3.5.1, 6.4.1): the b-model says how many rows each mini-interval gets, PQRS
  when inside it and with which keys.

Everything is drawn from the seed alone: the same arguments give the same arrays. Nothing is done row by row in Python.

Limits: hot places do not move between mini-intervals, only within each one, as in the thesis; a model has no memory of
real traces beyond its bias (`bias_of` measures that of a real one).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etl.errors import BadInput

Counts = NDArray[np.int64]
Numbers = NDArray[np.int64]
Instants = NDArray[np.float64]

_MOST_INTERVAL_LEVELS = 20
"""A million mini-intervals: each further level doubles the memory that the b-model takes."""
_MOST_PLACE_LEVELS = 30
"""A place times the number of keys must fit into 64 bits."""


class Quadrants(NamedTuple):
    """PQRS' four probabilities: p, q, r and s, in this order. They add up to 1."""

    early_low: float
    late_low: float
    early_high: float
    late_high: float


class Points(NamedTuple):
    """Rows in time and place: a time in [0, 1) and the number of a place for each; in no order."""

    times: Instants
    places: Numbers


class Arrivals(NamedTuple):
    """Rows in the order of their arrival: the instant of each, in seconds, and its key."""

    instants: Instants
    keys: Numbers


MODERATE_LOCALITY = Quadrants(0.5, 0.1, 0.1, 0.3)
"""Both margins are b-models of bias 0.6, and a row is early and low, or late and high, four times out of five."""

HOT_PLACES = Quadrants(0.55, 0.25, 0.05, 0.15)
"""Time is a b-model of bias 0.6, place one of 0.8 (four fifths of the rows go to half of the places, and so on down);
early rows are low eleven times out of twelve, late ones five times out of eight."""

EVERYWHERE_ALWAYS = Quadrants(0.25, 0.25, 0.25, 0.25)
"""Neither bursts nor hot places."""


def b_model(total: int, bias: float, levels: int, *, seed: int) -> Counts:
    """Rows in each of `2**levels` mini-intervals, `total` of them altogether.

    A bias of 0.5 is even; towards 1 ever more rows fall into ever fewer mini-intervals.
    """
    _check_rows("b_model", total)
    _check_bias("b_model", bias)
    _check_levels("b_model", levels, _MOST_INTERVAL_LEVELS)
    generator = np.random.default_rng(seed)
    counts: Counts = np.array([total], np.int64)
    for _ in range(levels):
        # Rows come whole: a fraction is rounded up as often as its size says, so that small counts keep the bias too.
        larger = np.minimum(np.floor(bias * counts + generator.random(counts.size)).astype(np.int64), counts)
        halves = np.stack([larger, counts - larger], axis=1)
        swapped = generator.random(counts.size) < 0.5
        halves[swapped] = halves[swapped][:, ::-1]
        counts = halves.ravel()
    return counts


def bias_of(counts: Counts) -> float:
    """The bias of the b-model whose volumes are as uneven as these: of a power of two of equal intervals.

    The entropy of a b-model grows with each level by the entropy of one split; the bias is read off that slope. Counts
    of a few rows look more uneven than they are: aggregate until most intervals have dozens.
    """
    levels = int(counts.size).bit_length() - 1
    if counts.size < 2 or counts.size != 1 << levels:
        raise BadInput(f"bias_of: {counts.size} counts; give a power of two of them, two or more")
    if counts.min() < 0 or counts.sum() == 0:
        raise BadInput("bias_of: counts are zero or more, and some are above zero")
    shares = counts[counts > 0] / counts.sum()
    return _bias_with_entropy(float(-(shares * np.log2(shares)).sum()) / levels)


def pqrs(rows: int, quadrants: Quadrants, levels: int, *, seed: int) -> Points:
    """So many rows over one unit of time and `2**levels` places."""
    _check_rows("pqrs", rows)
    _check_levels("pqrs", levels, _MOST_PLACE_LEVELS)
    _check_quadrants(quadrants)
    generator = np.random.default_rng(seed)
    borders = np.cumsum(quadrants)[:3]
    cell_in_time = np.zeros(rows, np.int64)
    places = np.zeros(rows, np.int64)
    for _ in range(levels):
        drawn = generator.random(rows)
        first, second, third = (drawn >= border for border in borders)
        cell_in_time = 2 * cell_in_time + (first ^ second ^ third)  # late: in the second or the fourth quadrant
        places = 2 * places + second  # high: in the third or the fourth
    times = (cell_in_time + generator.random(rows)) * 0.5**levels
    return Points(np.minimum(times, np.nextafter(1.0, 0.0)), places)


def poisson_arrivals(rows_per_second: float, seconds: float, *, seed: int) -> Instants:
    """The instants of rows that come independently of each other, in order."""
    if not rows_per_second >= 0 or not seconds >= 0:
        raise BadInput(f"poisson_arrivals: {rows_per_second} rows/s for {seconds} s; both are zero or more")
    generator = np.random.default_rng(seed)
    # Given their number, the arrivals of a Poisson process are uniform over the interval.
    return np.sort(generator.random(generator.poisson(rows_per_second * seconds)) * seconds)


def zipf_keys(rows: int, keys: int, exponent: float, *, seed: int) -> Numbers:
    """Keys from 0 to `keys - 1`; key k comes in proportion to 1 / (k + 1) ** exponent. Exponent 0 is uniform."""
    _check_rows("zipf_keys", rows)
    if keys < 1 or not exponent >= 0:
        raise BadInput(f"zipf_keys: {keys} keys with exponent {exponent}; give one key or more, an exponent from 0")
    cumulative = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    drawn = np.random.default_rng(seed).random(rows) * cumulative[-1]
    ranks: Numbers = np.searchsorted(cumulative, drawn, side="right").astype(np.int64)
    # A product that is rounded up to the last sum lies behind the last key.
    return np.minimum(ranks, keys - 1)


def bursty_stream(
    total: int,
    seconds: float,
    keys: int,
    *,
    seed: int,
    bias: float = 0.6,
    quadrants: Quadrants = MODERATE_LOCALITY,
    most_per_interval: int = 70_000,
) -> Arrivals:
    """The thesis' traces: `total` rows in `seconds`, with keys from 0 to `keys - 1`.

    There are as many mini-intervals as it takes to bring the largest expected volume down to `most_per_interval`: a
    smaller bound gives shorter intervals, and so a stream that moves through the keys more often.
    """
    if keys < 1 or not seconds > 0:
        raise BadInput(f"bursty_stream: {keys} keys in {seconds} s; give one key or more, and a duration above zero")
    volumes = b_model(total, bias, interval_levels(total, bias, most_per_interval), seed=seed)
    levels = max(1, (keys - 1).bit_length())
    # Rows of all mini-intervals are drawn at once: inside its interval each is a point of the same model.
    points = pqrs(total, quadrants, levels, seed=seed + 1)
    interval = np.repeat(np.arange(volumes.size), volumes)
    instants = (interval + points.times) * (seconds / volumes.size)
    order = np.argsort(instants, kind="stable")
    return Arrivals(instants[order], (points.places[order] * keys) >> levels)


def interval_levels(total: int, bias: float, most_per_interval: int) -> int:
    """How often the b-model halves the time until its largest volume is within the bound."""
    _check_rows("interval_levels", total)
    _check_bias("interval_levels", bias)
    if most_per_interval < 1:
        raise BadInput(f"interval_levels: most_per_interval is {most_per_interval}; give one row or more")
    if total <= most_per_interval:
        return 0
    if bias == 1.0:
        raise BadInput("interval_levels: with bias 1 all rows stay in one interval, however short; give less")
    levels = math.ceil(math.log(most_per_interval / total) / math.log(bias))
    if levels > _MOST_INTERVAL_LEVELS:
        raise BadInput(
            f"interval_levels: {total} rows of bias {bias} come down to {most_per_interval} an interval after {levels} "
            f"halvings, above {_MOST_INTERVAL_LEVELS}: give a larger most_per_interval or a smaller bias"
        )
    return levels


def _bias_with_entropy(bits_per_split: float) -> float:
    """The larger share of a split into two with this entropy: the entropy falls from 0.5 to 1, so halve the range."""
    low, high = 0.5, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        entropy = -middle * math.log2(middle) - (1 - middle) * math.log2(1 - middle)
        low, high = (middle, high) if entropy > bits_per_split else (low, middle)
    return low


def _check_rows(who: str, rows: int) -> None:
    if rows < 0:
        raise BadInput(f"{who}: {rows} rows; give zero or more")


def _check_bias(who: str, bias: float) -> None:
    if not 0.5 <= bias <= 1:
        raise BadInput(f"{who}: bias is {bias}; the larger half gets from 0.5 (even) to 1 (all) of the rows")


def _check_levels(who: str, levels: int, most: int) -> None:
    if not 0 <= levels <= most:
        raise BadInput(f"{who}: {levels} levels; give 0 to {most}, each one halves the cells")


def _check_quadrants(quadrants: Quadrants) -> None:
    if min(quadrants) < 0 or not math.isclose(sum(quadrants), 1):
        raise BadInput(f"pqrs: {quadrants} add up to {sum(quadrants)}; give four probabilities that add up to 1")
