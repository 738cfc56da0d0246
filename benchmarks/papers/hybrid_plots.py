"""Plots of the hybrid experiment, one for each of the thesis' figures that we make again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: no display is asked for

from matplotlib import pyplot as plt

from benchmarks.papers.hybrid_claims import Findings, Sweep
from benchmarks.papers.hybrid_simulation import Measured


def write_plots(findings: Findings, folder: Path) -> Iterator[Path]:
    """Write all plots; gives their paths."""
    delay, disk = "mean production delay (s)", "disk time (s)"
    yield _curves(folder / "delay_by_rate.png", findings.by_rate, "stream rate (rows/s)", delay, _delay)
    yield _curves(folder / "disk_by_rate.png", findings.by_rate, "stream rate (rows/s)", disk, _disk)
    yield _curves(folder / "delay_by_memory.png", findings.by_memory, "memory (MiB)", delay, _delay)
    yield _curves(folder / "delay_by_bias.png", findings.by_bias, "bias of the b-model", delay, _delay)
    yield _curves(
        folder / "delay_by_threshold.png", findings.by_threshold, "invocation threshold (rows)", delay, _delay
    )
    yield _buffered(folder / "buffered_rows.png", findings.by_rate)


def _delay(point: Measured) -> float:
    return point.mean_delay


def _disk(point: Measured) -> float:
    return point.disk_seconds


def _curves(path: Path, sweep: Sweep, x_label: str, y_label: str, value: Callable[[Measured], float]) -> Path:
    _, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, points in sweep.items():
        xs = sorted(points)
        axes.plot(xs, [value(points[x]) for x in xs], marker="o", label=name)
    # The thesis' figures have it too: MESHJOIN is far above the others.
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend()
    return _saved(path)


def _buffered(path: Path, by_rate: Sweep) -> Path:
    """Rows that queue before each join over time, at the highest rate."""
    rate = max(next(iter(by_rate.values())))
    _, rows = plt.subplots(len(by_rate), sharex=True, figsize=(6, 6), layout="constrained", squeeze=False)
    for axes, (name, points) in zip(rows[:, 0], by_rate.items(), strict=True):
        axes.plot(*zip(*points[rate].buffered, strict=True), linewidth=0.5)
        axes.set_ylabel(f"{name}:\nbuffered rows")
    rows[-1, 0].set_xlabel(f"seconds, at {rate:g} rows/s")
    return _saved(path)


def _saved(path: Path) -> Path:
    plt.savefig(path, dpi=120)
    plt.close()
    return path
