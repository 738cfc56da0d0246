"""A process that reaches the named crash point is killed there and then; all others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from etl.crash_points import VARIABLE, CrashPoint

ROOT = Path(__file__).parents[1]
PROGRAM = """
from etl.crash_points import CrashPoint, reached
for point in CrashPoint:
    for _ in range(2):
        reached(point)
        print(point, flush=True)
"""
ALL = [point.value for point in CrashPoint for _ in range(2)]


def passed_by(crash_at: str | None) -> tuple[int, list[str]]:
    environment = {**os.environ, **({} if crash_at is None else {VARIABLE: crash_at})}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)
    return run.returncode, run.stdout.split()


@pytest.mark.parametrize(
    ("crash_at", "passed"),
    [
        ("before-publish", ALL[: ALL.index("before-publish")]),
        ("before-publish:1", ALL[: ALL.index("before-publish")]),
        ("before-publish:2", ALL[: ALL.index("before-publish") + 1]),
    ],
)
def test_a_process_dies_where_it_was_told_to(crash_at: str, passed: list[str]) -> None:
    assert passed_by(crash_at) == (-signal.SIGKILL, passed)


@pytest.mark.parametrize("crash_at", [None, "before-publish:3"])
def test_a_point_that_is_not_named_or_not_reached_so_often_is_passed(crash_at: str | None) -> None:
    assert passed_by(crash_at) == (0, ALL)


def test_with_a_mark_only_one_process_dies(tmp_path: Path) -> None:
    crash_at = f"after-snapshot:1:{tmp_path / 'died'}"
    assert passed_by(crash_at)[0] == -signal.SIGKILL
    assert passed_by(crash_at) == (0, ALL)


def test_an_unknown_name_is_no_silent_pass() -> None:
    code, passed = passed_by("before-lunch")
    assert (code, passed) == (1, [])


def test_every_point_is_in_the_product() -> None:
    """That each is really reached is shown where loads are killed; here, that none was forgotten."""
    files = [path for room in ("etl", "jobs") for path in (ROOT / room).glob("**/*.py")]
    source = "\n".join(path.read_text() for path in files if path.name != "crash_points.py")
    assert [point.name for point in CrashPoint if f"CrashPoint.{point.name})" not in source] == []
