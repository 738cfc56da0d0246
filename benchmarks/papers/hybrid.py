"""The experiment of thesis 6.4 on a virtual clock: MESHJOIN beside the hash- and the range-partitioned join.

    python -m benchmarks.papers.hybrid            a few minutes: a quarter of the rows and bytes, see `hybrid_setting`
    python -m benchmarks.papers.hybrid --scale 1  the thesis' own sizes
    python -m benchmarks.papers.hybrid --quick    does it run?

Prints one table for each figure, then the thesis' claims beside what we see, and writes the plots. The joins are the
real ones, over real files; `hybrid_simulation` says how time is made up. Answers of all joins are compared.

"As printed" is the thesis' setting: a disk probe in idle time only from 3,000 waiting rows on, and a MESHJOIN that
reads only when a queue segment is full. "Eager" joins spend all idle time on the disk, MESHJOIN too. The mean delay is
that of the results that came, as in the thesis; "with owed" counts those too that were still owed when the run ended.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.papers.hybrid_claims import Claim, Findings, Sweep, claims
from benchmarks.papers.hybrid_plots import write_plots
from benchmarks.papers.hybrid_setting import (
    AS_PRINTED,
    EAGER_MESHJOIN,
    MESHJOIN,
    Contender,
    Laboratory,
    Setting,
    hash_partitioned,
    range_partitioned,
)
from benchmarks.papers.hybrid_simulation import Measured, pooled

PLOTS = Path("build/papers/hybrid")


@dataclass(frozen=True, slots=True)
class Plan:
    """The points of each figure. The default rate, bias, memory and threshold must be among them."""

    setting: Setting
    rates: tuple[float, ...] = (500, 1000, 1500, 2000, 2500, 3000)
    biases: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    memories_mib: tuple[float, ...] = (20, 40, 60, 80)
    thresholds: tuple[int, ...] = (3000, 1000, 300)
    seeds: tuple[int, ...] = (1, 2, 3)
    """Burstiness is noisy: that figure takes several traces."""
    eager_hours: float = 0.1
    eager_startup_minutes: float = 2.0
    """Eager joins are in their stride after seconds."""


QUICK = Plan(
    setting=Setting(scale=64.0, hours=0.4, startup_minutes=3.0),
    rates=(1000, 3000),
    biases=(0.5, 0.6, 0.9),
    memories_mib=(20, 40),
    thresholds=(3000, 300),
    seeds=(1,),
    eager_hours=0.02,
    eager_startup_minutes=0.5,
)

Say = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    plan = QUICK if options.quick else Plan(setting=Setting(scale=options.scale))
    console = Console() if sys.stdout.isatty() else Console(width=150)
    with tempfile.TemporaryDirectory(prefix="headrace-papers-") as folder:
        findings = run(plan, Path(folder), say=lambda line: print(line, file=sys.stderr))
    for table in tables(findings):
        console.print(table)
    console.print(_claims_table(claims(findings)))
    options.plots.mkdir(parents=True, exist_ok=True)
    for path in write_plots(findings, options.plots):
        console.print(f"plot: {path}", highlight=False)
    return 0


def run(plan: Plan, folder: Path, say: Say) -> Findings:
    """All simulations of a plan; relations are made in the folder."""
    laboratory = Laboratory(folder)
    base = plan.setting

    def measured(figure: str, x: float, contender: Contender, setting: Setting) -> Measured:
        found = laboratory.run(contender, setting)
        say(f"{figure} {x:g}, {contender.label}: delay {found.mean_delay:.1f} s, disk {found.disk_seconds:.0f} s")
        return found

    def sweep(figure: str, settings: Mapping[float, Setting]) -> Sweep:
        found: Sweep = {contender.name: {} for contender in AS_PRINTED}
        for x, setting in settings.items():
            for contender in AS_PRINTED:
                found[contender.name][x] = measured(figure, x, contender, setting)
        return found

    try:
        return Findings(
            by_rate=sweep("rate", {rate: replace(base, rows_per_second=rate) for rate in plan.rates}),
            by_memory=sweep("memory", {mib: replace(base, memory_mib=mib) for mib in plan.memories_mib}),
            by_bias=_by_bias(plan, measured),
            by_threshold=_by_threshold(plan, measured),
            eager=_eager(plan, measured),
        )
    finally:
        laboratory.close()


Measure = Callable[[str, float, Contender, Setting], Measured]


def _by_bias(plan: Plan, measured: Measure) -> Sweep:
    """As printed, and the range-partitioned join with a threshold that is reached before the wait buffer is full."""
    low = min(plan.thresholds)
    contenders = (*AS_PRINTED, range_partitioned(low))
    found: Sweep = {contender.label: {} for contender in contenders}
    for bias in plan.biases:
        for contender in contenders:
            seeds = plan.seeds[:1] if contender is MESHJOIN else plan.seeds
            settings = [replace(plan.setting, bias=bias, seed=seed) for seed in seeds]
            found[contender.label][bias] = pooled([measured("bias", bias, contender, setting) for setting in settings])
    return found


def _by_threshold(plan: Plan, measured: Measure) -> Sweep:
    found: Sweep = {"hash": {}, "range": {}}
    for threshold in plan.thresholds:
        for contender in (hash_partitioned(threshold), range_partitioned(threshold)):
            found[contender.name][threshold] = measured("threshold", threshold, contender, plan.setting)
    return found


def _eager(plan: Plan, measured: Measure) -> dict[str, Measured]:
    setting = replace(plan.setting, hours=plan.eager_hours, startup_minutes=plan.eager_startup_minutes)
    contenders = (EAGER_MESHJOIN, hash_partitioned(1), range_partitioned(1))
    return {contender.name: measured("eager", 1, contender, setting) for contender in contenders}


def tables(findings: Findings) -> Iterable[Table]:
    """One table for each of the thesis' figures."""
    yield _sweep_table("Stream rate (figures 6.5 to 6.10)", "rows/s", findings.by_rate)
    yield _sweep_table("Memory (figure 6.12)", "MiB", findings.by_memory)
    yield _sweep_table("Burstiness (figure 6.13)", "bias", findings.by_bias)
    yield _sweep_table("Invocation threshold (discussed in 6.4.2)", "rows", findings.by_threshold)
    eager = {name: {1000.0: measured} for name, measured in findings.eager.items()}
    yield _sweep_table("Eager joins: all idle time goes to the disk", "rows/s", eager)


def _sweep_table(title: str, unit: str, sweep: Sweep) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in (unit, "join"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        "mean delay s",
        "with owed s",
        "median s",
        "disk s",
        "processor s",
        "most buffered rows",
        "results",
    ):
        table.add_column(heading, justify="right")
    for x in next(iter(sweep.values())):
        for name, points in sweep.items():
            point = points[x]
            table.add_row(
                f"{x:g}",
                name,
                f"{point.mean_delay:.1f}",
                f"{point.mean_delay_with_owed:.1f}",
                f"{point.median_delay:.1f}",
                f"{point.disk_seconds:.0f}",
                f"{point.processor_seconds:.1f}",
                f"{point.most_buffered:,}",
                f"{point.results_in_window:,}",
            )
        table.add_section()
    return table


def _claims_table(found: Iterable[Claim]) -> Table:
    table = Table(title="What the thesis claims, and what we see", title_justify="left", show_lines=True)
    for heading in ("thesis 6.4", "here", "", "why"):
        table.add_column(heading)
    for claim in found:
        table.add_row(claim.thesis, claim.here, "holds" if claim.holds else "does not hold", claim.why)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.hybrid", description="Thesis 6.4, again.")
    parser.add_argument("--scale", type=float, default=4.0, help="rows and bytes that one stands for")
    parser.add_argument("--quick", action="store_true", help="few points, tiny sizes: does it run?")
    parser.add_argument("--plots", type=Path, default=PLOTS, metavar="FOLDER", help="where the plots go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
