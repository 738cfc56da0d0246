"""Thesis 7.6 in small: the model does its sums right, the claims that must hold do, and the report comes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.parallel import QUICK, Plan, capacity, cluster_of, main, run, tables
from benchmarks.papers.parallel_claims import Findings, claims
from benchmarks.papers.parallel_plots import write_plots
from benchmarks.papers.parallel_setting import Costs, Setting, key_shares
from benchmarks.papers.parallel_simulation import Cluster, Measured, Node, Windows

SMALL = Setting(key_levels=15, filled=True, minutes=6.0, startup_minutes=2.0)


def measured(**changed: object) -> Measured:
    return Cluster(replace(SMALL, **changed)).run()  # type: ignore[arg-type]


def test_the_shares_of_keys_and_groups_make_one_and_are_skewed() -> None:
    shares = key_shares(12, 0.7, 60, 1)
    assert shares.shares.sum() == pytest.approx(1.0)
    assert shares.by_group().sum() == pytest.approx(1.0)
    assert shares.shares.max() == pytest.approx(0.7**12)
    assert len(shares.by_group()) == 60
    with pytest.raises(ValueError, match="too few for 60 groups"):
        key_shares(3, 0.7, 60, 1)


def test_two_rows_share_a_key_as_often_as_the_model_says() -> None:
    levels = 14
    shares = key_shares(levels, 0.7, 10, 1).shares
    assert Setting(keys=2**levels).matches == pytest.approx((shares**2).sum())


def test_a_node_joins_first_come_first_served_and_counts_its_time() -> None:
    node = Node(0, SMALL)
    node.receive(0.0, 1.0, rows=100, work=2.0, arrived=-1.0)
    assert node.work_until(2.0) == 2.0
    assert (node.processor, node.idle, node.communication) == (1.0, 0.0, 1.0)
    assert node.backlog_rows == 50
    assert node.delay_seconds / node.delay_rows == pytest.approx(2.5)  # half-way through the second from 1 to 2
    node.receive(2.0, 2.5, rows=0, work=0.0, arrived=1.5)
    node.work_until(4.0)
    assert (node.processor, node.idle) == (2.0, 0.5)
    assert node.backlog_rows == 0


def test_a_node_that_has_lost_half_its_processor_takes_twice_as_long() -> None:
    node = Node(0, replace(SMALL, background=(0.5,)))
    node.receive(0.0, 0.0, rows=1, work=1.0, arrived=0.0)
    node.work_until(1.0)
    assert node.backlog_rows == pytest.approx(0.5)


def test_rows_that_wait_move_with_their_group() -> None:
    source, target = Node(0, SMALL), Node(1, SMALL)
    source.receive(0.0, 0.0, rows=90, work=3.0, arrived=-1.0)
    target.receive(0.0, 0.0, rows=10, work=1.0, arrived=-2.0)
    target.take_over(source.give_away(1 / 3))
    assert (source.backlog_rows, target.backlog_rows) == pytest.approx((60, 40))
    target.work_until(1.0)
    assert target.backlog_rows == pytest.approx(30), "older rows come first"


def test_windows_hold_what_came_in_their_time_and_buckets_keep_the_scan_short() -> None:
    setting = Setting(key_levels=12, window_seconds=20, groups=6, theta_mib=0.01, nodes=1)
    windows = Windows(setting, key_shares(12, 0.7, 6, 1))
    untuned = Windows(replace(setting, tuned=False), key_shares(12, 0.7, 6, 1))
    for _ in range(25):
        for each in (windows, untuned):
            each.arrive(np.full(6, 100.0))
    assert windows.rows.tolist() == [1000.0] * 6
    assert windows.buckets > 6 == untuned.buckets
    costs = setting.costs
    scan = untuned.work_by_row() - costs.row - 3000 * setting.matches * costs.result
    assert scan == pytest.approx(500 * costs.comparison)
    assert (windows.work_by_row() < untuned.work_by_row()).all()
    for _ in range(10):
        windows.arrive(np.zeros(6))
    assert windows.buckets == 6, "buckets merge when their rows are gone"


def test_time_is_used_up_by_work_communication_and_idleness() -> None:
    found = measured()
    spent = found.node_processor + found.node_idle + found.node_communication
    assert spent == pytest.approx(found.seconds, rel=0.02)


def test_the_calibrated_points_are_met() -> None:
    untuned = Cluster(Setting(rows_per_second=4000, tuned=False, key_levels=16)).run()
    tuned = Cluster(Setting(rows_per_second=4000, key_levels=16)).run()
    assert 35 < untuned.mean_delay < 65
    assert tuned.mean_delay < 2.5


def test_a_shared_node_is_relieved_by_moving_groups_away() -> None:
    kept, moved = (
        measured(rows_per_second=4000, background=(0.6,), balancing=way, minutes=12.0, startup_minutes=8.0)
        for way in ("none", "fitting")
    )
    assert kept.mean_delay > 10 * moved.mean_delay
    assert min(moved.window_mib) < 0.7 * max(moved.window_mib)


def test_the_adaptive_number_of_nodes_follows_the_load() -> None:
    few, many = (
        measured(nodes=8, adaptive=True, measure="work", rows_per_second=rate, minutes=8.0, startup_minutes=5.0)
        for rate in (1000, 5000)
    )
    assert few.mean_slots < 2
    assert 3 < many.mean_slots < 8
    assert max(few.mean_delay, many.mean_delay) < 4


def test_sub_groups_bring_the_masters_buffer_to_the_formula() -> None:
    rows = 2 * SMALL.rows_per_second * SMALL.distribution_seconds
    for count in (1, 2, 4):
        found = measured(subgroups=count)
        assert found.most_master_rows == pytest.approx(rows / 2 * (1 + 1 / count), rel=0.08)


def test_the_master_bounds_the_capacity_of_any_number_of_nodes() -> None:
    dear = Costs(row_sent=100e-6)
    plan = replace(QUICK, setting=replace(QUICK.setting, costs=dear))
    found = {nodes: capacity(cluster_of(plan, nodes, 4), precision=0.1) for nodes in (1, 8, 64)}
    assert found[1] < found[8] <= 0.5 / dear.row_sent
    assert found[64] < 1.2 * found[8]


def test_the_same_setting_gives_the_same_figures() -> None:
    assert measured(minutes=3.0) == measured(minutes=3.0)


TINY = Plan(
    setting=Setting(key_levels=13, minutes=3.0, startup_minutes=2.0),
    nodes=(1, 2),
    rates=(1500,),
    tuning_rates=(4000, 6000),
    declustering=(1, 2),
    epochs=(1, 2),
    subgroups=(1, 2),
    cluster_sizes=(4, 8),
    capacity_minutes=0.5,
    precision=0.5,
)


def test_the_report_has_every_table_claim_and_plot(tmp_path: Path) -> None:
    lines: list[str] = []
    findings: Findings = run(TINY, say=lines.append)
    assert len(list(tables(findings))) == 9
    found = list(claims(findings))
    assert len({claim.thesis for claim in found}) == len(found) >= 18
    plots = list(write_plots(findings, tmp_path))
    assert len(plots) == 12
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots)
    assert len(lines) == 2 + 4 + 2 + 2 + 2 + 2 + 3 + 2 + 4


@pytest.mark.slow
def test_the_quick_command_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--plots", str(tmp_path)]) == 0
    assert "What the thesis claims" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.png"))) == 12
