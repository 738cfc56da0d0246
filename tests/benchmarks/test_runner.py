"""The benchmark runner: answers are checked, turns are taken, measurements come out as promised."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import discovered
from benchmarks.runner import Case, Measure, Measurement, Outcome, WrongAnswer, main, measure

ALLOCATED = 32 * 2**20


def cases(quick: bool) -> Iterator[Case]:
    """One subject allocates; the fresh process that measures memory finds this function by its name."""
    size = 1000 if quick else 2000
    subjects = {"small": lambda: size, "large": lambda: size + int(np.ones(ALLOCATED, np.uint8)[-1]) - 1}
    yield Case("allocate", subjects, rows=size)


def test_every_measurement_reaches_the_file_and_memory_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "measured.json"
    assert main(cases, arguments=["--quick", "--json", str(file)]) == 0
    lines = json.loads(file.read_text(encoding="utf-8"))
    assert {tuple(line) for line in lines} == {("case", "subject", "metric", "value", "unit")}
    found = {(line["subject"], line["metric"]): line["value"] for line in lines}
    for subject in ("small", "large"):
        assert found[subject, "time_min"] <= found[subject, "time_median"] <= found[subject, "time_max"]
        assert found[subject, "throughput"] == pytest.approx(1000 / found[subject, "time_median"])
    assert found["small", "time_ratio"] == 1
    # The kernel counts resident pages in batches, so the figure may be a few pages short.
    assert found["small", "peak_memory"] < ALLOCATED / 4 < 0.9 * ALLOCATED < found["large", "peak_memory"]
    assert "allocate" in capsys.readouterr().out


def test_a_wrong_answer_fails_the_run_but_not_the_other_cases(capsys: pytest.CaptureFixture[str]) -> None:
    def some_wrong(_quick: bool) -> Iterator[Case]:
        yield Case("disputed", {"ours": lambda: 1, "peer": lambda: 2})
        yield Case("agreed", {"ours": lambda: 1, "peer": lambda: 1})

    assert main(some_wrong, arguments=["--quick", "--no-memory"]) == 1
    printed = capsys.readouterr().out
    assert "'disputed': peer says 2, ours says 1" in printed
    assert "agreed" in printed


def test_an_answer_that_turns_wrong_later_is_caught() -> None:
    answers = iter([1, 1, 1, 2])

    def fickle() -> int:
        pause()
        return next(answers)

    with pytest.raises(WrongAnswer, match="ours says 2, expected says 1"):
        measure(Case("fickle", {"ours": fickle}, expected=1), rounds=2)


def test_arrays_are_compared_by_value_after_the_digest() -> None:
    subjects = {"ours": lambda: np.array([2, 1]), "peer": lambda: [1, 2]}
    measure(Case("sorted", subjects, digest=np.sort), rounds=1)
    with pytest.raises(WrongAnswer):
        measure(Case("in order", subjects), rounds=1)


def test_subjects_take_turns() -> None:
    turns: list[str] = []

    def take(name: str) -> None:
        pause()
        turns.append(name)

    measure(Case("turns", {name: partial(take, name) for name in ("A", "B")}), rounds=3)
    assert "".join(turns) == "AABB" + "ABABAB"


def test_a_subject_adds_measures_of_its_own() -> None:
    values = iter([9.0, 9.0, 1.0, 5.0, 3.0])

    def subject() -> Outcome:
        pause()
        return Outcome(7, {"time_to_first_result": Measure(next(values), "s")})

    lines = measure(Case("own", {"ours": subject}, expected=7), rounds=3)
    own = next(line for line in lines if line.metric == "time_to_first_result")
    assert (own.value, own.unit) == (3.0, "s")


def test_a_question_may_measure_in_a_way_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Counted:
        name = "counted"

        def measure(self, rounds: int) -> list[Measurement]:
            return [Measurement(self.name, "ours", "files", 12, "files")]

    file = tmp_path / "measured.json"
    assert main(lambda _quick: [Counted()], arguments=["--json", str(file)]) == 0
    assert json.loads(file.read_text(encoding="utf-8")) == [
        {"case": "counted", "subject": "ours", "metric": "files", "value": 12, "unit": "files"}
    ]
    printed = capsys.readouterr().out
    assert "12.0 files" in printed
    assert "min .. max" not in printed


def test_benchmark_modules_are_discovered() -> None:
    assert {"benchmarks.hybrid", "benchmarks.kernels"} <= {found.__module__ for found in discovered()}


def pause() -> None:
    """Longer than the shortest sample, so that a sample is one call."""
    time.sleep(0.02)
