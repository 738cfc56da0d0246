"""The experiment of thesis 7.6 on a virtual clock, and the same cluster with up to 1,000 nodes.

    python -m benchmarks.papers.parallel          some minutes, most of them for the capacities of large clusters
    python -m benchmarks.papers.parallel --quick  does it run?

Prints one table for each figure, then the thesis' claims beside what we see, and writes the plots. The rules are the
real ones (`etl.joins.parallel`), time is made up: `parallel_simulation` says how, `parallel_setting` from which costs.
The mean delay is that of the rows joined after the start-up, as in the thesis: in an overloaded system it says how long
the run was. Times are seconds of the ten minutes measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.papers.hybrid_claims import Claim
from benchmarks.papers.parallel_claims import Capacities, Findings, Sweep, claims
from benchmarks.papers.parallel_plots import write_plots
from benchmarks.papers.parallel_setting import Setting
from benchmarks.papers.parallel_simulation import Cluster, Measured

PLOTS = Path("build/papers/parallel")
GROUPS_PER_NODE = 10
BACKGROUND = 0.6
"""What a shared node has lost of its processor to somebody else."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The points of each figure. 4,000 and 6,000 rows/s must be among the tuned ones."""

    setting: Setting
    nodes: tuple[int, ...] = (1, 2, 3, 4, 5)
    rates: tuple[float, ...] = (1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000, 5500, 6000, 6500, 7000)
    tuning_rates: tuple[float, ...] = (1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000, 5500, 6000)
    declustering: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
    epochs: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 4)
    subgroups: tuple[int, ...] = (1, 4, 16)
    cluster_sizes: tuple[int, ...] = (1, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512, 1000)
    capacity_minutes: float = 2.0
    precision: float = 0.04


QUICK = Plan(
    setting=Setting(key_levels=15, minutes=11.0),
    nodes=(1, 4),
    rates=(1500, 4000),
    tuning_rates=(1500, 4000, 6000),
    declustering=(1, 4),
    epochs=(0.5, 2),
    subgroups=(1, 8),
    cluster_sizes=(4, 32, 100),
    capacity_minutes=1.0,
    precision=0.25,
)

Say = Callable[[str], None]
Measure = Callable[[str, float, Setting], Measured]
Rows = dict[tuple[str, ...], Measured]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=150)
    findings = run(QUICK if options.quick else Plan(setting=Setting()), say=lambda line: print(line, file=sys.stderr))
    for table in tables(findings):
        console.print(table)
    console.print(_claims_table(claims(findings)))
    options.plots.mkdir(parents=True, exist_ok=True)
    for path in write_plots(findings, options.plots):
        console.print(f"plot: {path}", highlight=False)
    return 0


def run(plan: Plan, say: Say) -> Findings:
    """All simulations of a plan."""
    base = plan.setting

    def measured(figure: str, x: float, setting: Setting) -> Measured:
        found = Cluster(setting).run()
        say(f"{figure} {x:g}: delay {found.mean_delay:.2f} s, processor {found.node_processor:.0f} s a node")
        return found

    def sweep(figure: str, settings: Mapping[float, Setting]) -> Sweep:
        return {x: measured(figure, x, setting) for x, setting in settings.items()}

    def by_rate(setting: Setting, rates: Sequence[float]) -> Sweep:
        label = f"{setting.nodes} node(s){'' if setting.tuned else ' untuned'}, rate"
        return sweep(label, {rate: replace(setting, rows_per_second=rate) for rate in rates})

    adaptive = replace(base, adaptive=True, rows_per_second=2000)
    by_work = replace(adaptive, measure="work")
    many = replace(cluster_of(plan, 32, 1), rows_per_second=20_000)
    return Findings(
        setting=base,
        by_rate={nodes: by_rate(replace(base, nodes=nodes), plan.rates) for nodes in plan.nodes},
        by_tuning={tuned: by_rate(replace(base, tuned=tuned), plan.tuning_rates) for tuned in (True, False)},
        by_nodes=sweep("nodes", {nodes: replace(base, nodes=nodes) for nodes in plan.declustering}),
        adaptive=sweep("most nodes", {nodes: replace(adaptive, nodes=nodes) for nodes in plan.declustering}),
        adaptive_by_work=sweep("most nodes", {nodes: replace(by_work, nodes=nodes) for nodes in plan.declustering}),
        by_epoch=sweep("epoch", {t: replace(base, nodes=3, distribution_seconds=t) for t in plan.epochs}),
        shared_node=_shared_node(base, measured),
        by_subgroups=sweep("sub-groups", {count: replace(many, subgroups=count) for count in plan.subgroups}),
        capacities=_capacities(plan, say),
    )


def _shared_node(base: Setting, measured: Measure) -> dict[str, Measured]:
    """One node of four has lost a part of its processor: what balancing makes of it."""
    ways: tuple[Literal["none", "random", "fitting"], ...] = ("none", "random", "fitting")
    setting = replace(base, rows_per_second=4000, background=(BACKGROUND,))
    return {way: measured(f"shared node, {way}", BACKGROUND, replace(setting, balancing=way)) for way in ways}


def _capacities(plan: Plan, say: Say) -> Capacities:
    found: Capacities = {count: {} for count in plan.subgroups}
    for nodes in plan.cluster_sizes:
        for count in plan.subgroups:
            setting = cluster_of(plan, nodes, count)
            found[count][nodes] = capacity(setting, plan.precision)
            say(f"capacity of {nodes} nodes, {count} sub-group(s): {found[count][nodes]:,.0f} rows/s a stream")
    return found


def cluster_of(plan: Plan, nodes: int, subgroups: int) -> Setting:
    """A cluster of any size. Groups and key values grow with it: a group's windows and a row's results do not."""
    base = plan.setting
    return replace(
        base,
        nodes=nodes,
        subgroups=min(subgroups, nodes),
        groups=max(base.groups, GROUPS_PER_NODE * nodes),
        keys=base.keys * max(1.0, nodes / 4),
        filled=True,
        minutes=plan.capacity_minutes,
        startup_minutes=plan.capacity_minutes / 2,
    )


def capacity(setting: Setting, precision: float) -> float:
    """The highest rate, to this precision, at which rows do not pile up."""
    low, high = 0.0, 2500.0 * setting.nodes
    # No more than the master could send if it had nothing else to do.
    high = min(high, 0.5 / setting.costs.row_sent)
    while high - low > precision * high:
        rate = (low + high) / 2
        if _keeps_up(replace(setting, rows_per_second=rate)):
            low = rate
        else:
            high = rate
    return low


def _keeps_up(setting: Setting) -> bool:
    epoch_rows = 2 * setting.rows_per_second * setting.distribution_seconds
    return Cluster(setting).run().owed_rows < 2.5 * epoch_rows


def tables(findings: Findings) -> Iterable[Table]:
    """One table for each of the thesis' figures, or for several that show the same runs."""
    by_rate: Rows = {(f"{r:g}", str(n)): m for n, points in findings.by_rate.items() for r, m in points.items()}
    yield _table("Delay by stream rate (figure 7.7)", ("rows/s", "nodes"), dict(sorted(by_rate.items(), key=_numbers)))
    tuning: Rows = {
        (f"{rate:g}", "tuned" if tuned else "untuned"): points[rate]
        for rate in findings.by_tuning[True]
        for tuned, points in findings.by_tuning.items()
    }
    yield _table("Tuning with 4 nodes (figures 7.8 to 7.11)", ("rows/s", "buckets are"), tuning)
    yield _table("Nodes at 1,500 rows/s (figures 7.12, 7.13)", ("nodes",), _keyed(findings.by_nodes))
    yield _table("Adaptive number of nodes at 2,000 rows/s (figure 7.14)", ("at most",), _keyed(findings.adaptive))
    yield _table("(ours) The same by the work that came", ("at most",), _keyed(findings.adaptive_by_work))
    yield _table("Distribution epoch, 3 nodes (figure 7.15)", ("seconds",), _keyed(findings.by_epoch))
    yield _table("Sub-groups, 32 nodes at 20,000 rows/s (7.5.2)", ("sub-groups",), _keyed(findings.by_subgroups))
    shared: Rows = {(way,): measured for way, measured in findings.shared_node.items()}
    yield _table("(ours) One node of 4 has lost 60 % of its processor, 4,000 rows/s", ("yielded group",), shared)
    yield _capacity_table(findings)


def _numbers(item: tuple[tuple[str, ...], object]) -> list[float]:
    return [float(part) for part in item[0]]


def _keyed(sweep: Sweep) -> Rows:
    return {(f"{x:g}",): measured for x, measured in sweep.items()}


def _table(title: str, keys: Sequence[str], rows: Rows) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in keys:
        table.add_column(heading, no_wrap=True)
    for heading in (
        "mean delay s",
        "processor s",
        "idle s",
        "communication s (least, mean, most)",
        "window MiB (least, most)",
        "active",
        "moves",
        "buckets",
        "master busy",
    ):
        table.add_column(heading, justify="right")
    for key, point in rows.items():
        table.add_row(
            *key,
            f"{point.mean_delay:.2f}",
            f"{point.node_processor:.0f}",
            f"{point.node_idle:.0f}",
            f"{min(point.communication):.1f}  {point.node_communication:.1f}  {max(point.communication):.1f}",
            f"{min(point.window_mib):.0f}  {max(point.window_mib):.0f}",
            f"{point.mean_slots:.1f}",
            f"{point.moves}",
            f"{point.buckets}",
            f"{point.master_busy / point.seconds:.0%}",
        )
    return table


def _capacity_table(findings: Findings) -> Table:
    table = Table(title="(ours) Highest rate by nodes, rows/s a stream", title_justify="left")
    for heading in ("nodes", *(f"{count} sub-group(s)" for count in findings.capacities)):
        table.add_column(heading, justify="right")
    for nodes in next(iter(findings.capacities.values())):
        table.add_row(f"{nodes:,}", *(f"{rates[nodes]:,.0f}" for rates in findings.capacities.values()))
    return table


def _claims_table(found: Iterable[Claim]) -> Table:
    table = Table(title="What the thesis claims, and what we see", title_justify="left", show_lines=True)
    for heading in ("thesis 7.5, 7.6", "here", "", "why"):
        table.add_column(heading)
    for claim in found:
        table.add_row(claim.thesis, claim.here, "holds" if claim.holds else "does not hold", claim.why)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.parallel", description="Thesis 7.6, again.")
    parser.add_argument("--quick", action="store_true", help="few points, few keys: does it run?")
    parser.add_argument("--plots", type=Path, default=PLOTS, metavar="FOLDER", help="where the plots go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
