"""Thesis 6.4 in small: what holds at any size, and that the report comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.papers.hybrid import QUICK, Plan, main, run, tables
from benchmarks.papers.hybrid_claims import Findings, claims
from benchmarks.papers.hybrid_plots import write_plots
from benchmarks.papers.hybrid_setting import (
    AS_PRINTED,
    MESHJOIN,
    Laboratory,
    Setting,
    hash_partitioned,
    range_partitioned,
)
from benchmarks.papers.hybrid_simulation import Measured
from benchmarks.runner import WrongAnswer

SMALL = Setting(scale=32.0, hours=0.4, startup_minutes=6.0, handover_seconds=0.1)
"""A thirty-second of the rows and bytes, for half of the time; with small batches, so that delays are not blurred."""


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    made = Laboratory(tmp_path_factory.mktemp("relations"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def as_printed(laboratory: Laboratory) -> dict[str, Measured]:
    return {contender.name: laboratory.run(contender, SMALL) for contender in AS_PRINTED}


def test_all_joins_give_the_same_answer(as_printed: dict[str, Measured]) -> None:
    answers = {measured.answer for measured in as_printed.values()}
    assert len(answers) == 1
    assert next(iter(answers))[0] > 40_000


def test_the_memory_budget_is_kept(as_printed: dict[str, Measured]) -> None:
    budget = SMALL.memory_mib * 2**20 / SMALL.scale
    batch = 64 * SMALL.machine.most_rows_at_once
    assert all(measured.peak_memory_bytes <= budget + 2 * batch for measured in as_printed.values())


def test_range_partitions_save_disk_time_and_delay(as_printed: dict[str, Measured]) -> None:
    assert as_printed["range"].disk_seconds < 0.8 * as_printed["hash"].disk_seconds
    assert as_printed["range"].mean_delay < as_printed["hash"].mean_delay


def test_the_partitioned_joins_answer_long_before_meshjoin(
    laboratory: Laboratory, as_printed: dict[str, Measured]
) -> None:
    mesh = as_printed["MESHJOIN"].mean_delay
    assert mesh > 5 * as_printed["hash"].mean_delay
    for contender in (hash_partitioned(300), range_partitioned(300)):
        assert mesh > 10 * laboratory.run(contender, SMALL).mean_delay


@pytest.mark.slow
def test_more_memory_makes_meshjoin_slower(laboratory: Laboratory, as_printed: dict[str, Measured]) -> None:
    half = laboratory.run(MESHJOIN, replace(SMALL, memory_mib=SMALL.memory_mib / 2))
    assert half.mean_delay < 0.7 * as_printed["MESHJOIN"].mean_delay


def test_the_same_setting_gives_the_same_figures(laboratory: Laboratory, as_printed: dict[str, Measured]) -> None:
    again = laboratory.run(range_partitioned(3000), SMALL)
    assert again.delay_seconds == as_printed["range"].delay_seconds
    assert again.disk_seconds == as_printed["range"].disk_seconds


def test_a_wrong_answer_stops_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laboratory = Laboratory(tmp_path)
    setting = replace(SMALL, hours=0.01, startup_minutes=0.0)
    laboratory.run(MESHJOIN, setting)
    # A left join answers rows without a match too: not what the others gave.
    build = "benchmarks.papers.hybrid_setting.joins.build"
    from etl.joins import build as real_build

    monkeypatch.setattr(build, lambda *given, **named: real_build(*given, how="left", **named))
    with pytest.raises(WrongAnswer, match="hash-partitioned gives"):
        laboratory.run(hash_partitioned(3000), replace(setting))
    laboratory.close()


TINY = Plan(
    setting=Setting(scale=256.0, hours=0.1, startup_minutes=1.0, handover_seconds=0.02),
    rates=(1000,),
    biases=(0.5,),
    memories_mib=(40,),
    thresholds=(300,),
    seeds=(1, 2),
    eager_hours=0.02,
    eager_startup_minutes=0.2,
)


def test_the_report_has_every_table_claim_and_plot(tmp_path: Path) -> None:
    (tmp_path / "relations").mkdir()
    lines: list[str] = []
    findings: Findings = run(TINY, tmp_path / "relations", say=lines.append)
    assert len(list(tables(findings))) == 5
    found = list(claims(findings))
    assert len({claim.thesis for claim in found}) == len(found) >= 10
    plots = list(write_plots(findings, tmp_path))
    assert len(plots) == 6
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots)
    assert len(lines) == 3 + 3 + (1 + 3 * 2) + 2 + 3


@pytest.mark.slow
def test_the_quick_command_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--plots", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "What the thesis claims" in printed
    assert len(list(tmp_path.glob("*.png"))) == 6
    assert QUICK.setting.scale > 1
