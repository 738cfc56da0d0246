"""Plots of the parallel experiment, one for each of the thesis' figures, and the capacity of large clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: no display is asked for

from matplotlib import pyplot as plt

from benchmarks.papers.parallel_claims import Findings, Sweep
from benchmarks.papers.parallel_simulation import Measured

Value = Callable[[Measured], float]


def write_plots(findings: Findings, folder: Path) -> Iterator[Path]:
    """Write all plots; gives their paths."""
    rate, nodes, epoch = "rows/s of each stream", "nodes", "distribution epoch (s)"
    tuning = {"tuned" if tuned else "untuned": sweep for tuned, sweep in findings.by_tuning.items()}
    by_rate = {f"{count} node(s)": sweep for count, sweep in findings.by_rate.items()}
    yield _curves(folder / "7_07_delay.png", by_rate, rate, "mean delay (s)", _delay, log=True)
    yield _curves(folder / "7_08a_processor.png", tuning, rate, "processor time a node (s)", _processor)
    yield _curves(folder / "7_08b_delay.png", tuning, rate, "mean delay (s)", _delay, log=True)
    yield _curves(folder / "7_09_idle.png", tuning, rate, "idle time a node (s)", lambda point: point.node_idle)
    yield _ranges(folder / "7_10_communication.png", findings.by_tuning[True], rate, "communication time (s)", _spent)
    yield _ranges(folder / "7_11_windows.png", findings.by_tuning[True], rate, "windows (MiB)", _windows)
    yield _curves(
        folder / "7_12_processor.png", {"": findings.by_nodes}, nodes, "processor time a node (s)", _processor
    )
    yield _ranges(folder / "7_13_communication.png", findings.by_nodes, nodes, "communication time (s)", _spent)
    both = {"all, 1,500 rows/s": findings.by_nodes, "adaptive, 2,000 rows/s": findings.adaptive}
    both["adaptive by work, 2,000 rows/s"] = findings.adaptive_by_work
    yield _curves(folder / "7_14_communication.png", both, nodes, "communication time a node (s)", _communication)
    yield _curves(folder / "7_15a_delay.png", {"": findings.by_epoch}, epoch, "mean delay (s)", _delay)
    yield _curves(
        folder / "7_15b_communication.png", {"": findings.by_epoch}, epoch, "communication (s)", _communication
    )
    yield _capacities(folder / "capacity.png", findings)


def _delay(point: Measured) -> float:
    return point.mean_delay


def _processor(point: Measured) -> float:
    return point.node_processor


def _communication(point: Measured) -> float:
    return point.node_communication


def _spent(point: Measured) -> list[float]:
    return point.communication


def _windows(point: Measured) -> list[float]:
    return point.window_mib


def _curves(
    path: Path, sweeps: Mapping[str, Sweep], x_label: str, y_label: str, value: Value, log: bool = False
) -> Path:
    _, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, points in sweeps.items():
        xs = sorted(points)
        axes.plot(xs, [value(points[x]) for x in xs], marker="o", label=name)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if len(sweeps) > 1:
        axes.legend()
    return _saved(path)


def _ranges(path: Path, points: Sweep, x_label: str, y_label: str, values: Callable[[Measured], list[float]]) -> Path:
    """The least, the mean and the most over the nodes."""
    _, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    xs = sorted(points)
    by_x = [values(points[x]) for x in xs]
    axes.fill_between(xs, [min(each) for each in by_x], [max(each) for each in by_x], alpha=0.25, label="least to most")
    axes.plot(xs, [sum(each) / len(each) for each in by_x], marker="o", label="mean of the nodes")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend()
    return _saved(path)


def _capacities(path: Path, findings: Findings) -> Path:
    _, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for count, rates in findings.capacities.items():
        axes.plot(list(rates), list(rates.values()), marker="o", label=f"{count} sub-group(s)")
    costs, epoch = findings.setting.costs, findings.setting.distribution_seconds
    sizes = sorted(next(iter(findings.capacities.values())))
    ceiling = [max(0.0, (epoch - nodes * costs.message) / (2 * epoch * costs.row_sent)) for nodes in sizes]
    axes.plot(sizes, ceiling, linestyle="--", color="grey", label="what the master can send")
    axes.set_xscale("log")
    axes.set_xlabel("nodes")
    axes.set_ylabel("highest rate (rows/s of each stream)")
    axes.legend()
    return _saved(path)


def _saved(path: Path) -> Path:
    plt.savefig(path, dpi=120)
    plt.close()
    return path
