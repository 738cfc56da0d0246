"""The one way to benchmark: subjects side by side, answers checked, medians with their spread, peak memory.

A benchmark module defines `cases(quick)`, which yields cases; `python -m benchmarks` finds it by that name:

    def cases(quick: bool) -> Iterator[Case]:
        rows = 10_000 if quick else 10_000_000
        yield Case("sort", partial(sorting, rows), rows=rows)

    def sorting(rows: int) -> Subjects:
        keys = np.random.default_rng(1).permutation(rows)
        return {"ours": lambda: our_sort(keys), "numpy": lambda: np.sort(keys)}

    if __name__ == "__main__":
        sys.exit(main(cases))

- A subject is a callable that does one run and returns its answer. Answers must be equal across subjects, or
  equal to `expected`; `digest` boils them down outside the timed part. A wrong answer makes the exit code 1.
- A subject that measures something of its own returns it beside the answer:
  `Outcome(answer, {"time_to_first_result": Measure(0.01, "s")})`.
- Each subject runs twice to warm up; then they take turns (A B C A B C ...), so that a slow spell of the
  machine hits all alike. A turn repeats a quick subject until it can be timed; it counts as one sample.
- Peak memory is that of one run in a fresh process which has imported the module and made the input: the
  highest resident set during the run, minus the resident set before it. What a library loads on its first use
  is part of it. It needs /proc/self/clear_refs (Linux), and is left out elsewhere or with `--no-memory`.
- A benchmark that has to measure in another way, such as batch by batch along a stream, yields questions of its own:
  see `Question`.
- `--json FILE` writes a list of objects with the keys case, subject, metric, value and unit.

Benchmarks never fail on time: a machine that is busy is not a bug.
"""

import argparse
import gc
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol, cast

import numpy as np
from rich.console import Console
from rich.table import Table

__all__ = [
    "Case",
    "Cases",
    "Measure",
    "Measurement",
    "Outcome",
    "Question",
    "Subject",
    "Subjects",
    "WrongAnswer",
    "main",
    "measure",
    "reset_peak_memory",
    "status_bytes",
    "times",
]

Subject = Callable[[], object]
Subjects = Mapping[str, Subject]
Cases = Callable[[bool], Iterable["Question"]]


class Measure(NamedTuple):
    """A value that a subject measured itself."""

    value: float
    unit: str


class Outcome(NamedTuple):
    """An answer with measures of the subject's own beside it."""

    answer: object
    measures: Mapping[str, Measure]


def _itself(answer: object) -> object:
    return answer


@dataclass(frozen=True)
class Case:
    """One question put to several subjects. The others are compared with the first."""

    name: str
    subjects: Subjects | Callable[[], Subjects]
    """The subjects, or a function that makes their input and returns them: input then lives as long as its case."""
    rows: int | None = None
    """Rows that one run handles, for the throughput."""
    expected: object = None
    """The right answer, after `digest`; None takes the first subject's."""
    digest: Callable[..., object] = _itself
    """Makes answers comparable: a count, a checksum, a sorted copy. Not timed."""

    def prepare(self) -> Subjects:
        """The subjects, with their input made."""
        return self.subjects() if callable(self.subjects) else self.subjects

    def measure(self, rounds: int) -> list["Measurement"]:
        """Its subjects in turns."""
        return measure(self, rounds)


@dataclass(frozen=True)
class Measurement:
    """One line of the JSON file."""

    case: str
    subject: str
    metric: str
    value: float
    unit: str


class WrongAnswer(Exception):
    """A subject that answers wrong has not been measured at all."""


class Question(Protocol):
    """What a benchmark yields: a `Case`, or something that measures its subjects in a way of its own."""

    @property
    def name(self) -> str: ...

    def measure(self, rounds: int) -> list[Measurement]:
        """One list for one table; raises WrongAnswer."""


def main(*benchmarks: Cases, arguments: Sequence[str] | None = None) -> int:
    """Run all cases of the given benchmarks as the command line says; returns the exit code."""
    options = _parser().parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=_PRINTED_WIDTH)
    measurements: list[Measurement] = []
    failures = 0
    for cases in benchmarks:
        for case in cases(options.quick):
            try:
                measured = case.measure(rounds=3 if options.quick else 7)
            except WrongAnswer as wrong:
                failures += 1
                console.print(f"[bold red]wrong answer[/] {wrong}", highlight=False)
                continue
            if isinstance(case, Case) and not options.no_memory:
                measured += _peak_memory(cases, measured, options.quick)
            measurements += measured
            console.print(_table(case.name, measured))
    if options.json:
        text = json.dumps([asdict(measurement) for measurement in measurements], indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 1 if failures else 0


def measure(case: Case, rounds: int) -> list[Measurement]:
    """Time all subjects of a case in turns; raises WrongAnswer."""
    judge = _Judge(case)
    subjects = case.prepare()
    samples = {name: _Samples(_calls_per_sample(subject, name, judge)) for name, subject in subjects.items()}
    for _ in range(rounds):
        for name, subject in subjects.items():
            outcome = samples[name].take(subject)
            judge.check(name, outcome)
    first = samples[next(iter(samples))]
    return [line for name in samples for line in _lines(case, name, samples[name], median(first.seconds))]


_SHORTEST_SAMPLE_SECONDS = 0.01
_PRINTED_WIDTH = 120
_SECONDS = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")]
_MULTIPLES = [(1e9, "G "), (1e6, "M "), (1e3, "k "), (1.0, "")]
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_MEMORY_OF = "--memory-of"
_PEAK_MARK = Path("/proc/self/clear_refs")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Our parts beside their peers.")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: does it run, is it right?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE")
    parser.add_argument("--no-memory", action="store_true", help="skip the fresh process per subject for its memory")
    return parser


class _Judge:
    """Holds the right answer of a case and compares the others with it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._right = case.expected
        self._source = "expected"

    def check(self, subject: str, outcome: Outcome) -> None:
        answer = self._case.digest(outcome.answer)
        if self._right is None:
            self._right, self._source = answer, subject
        elif not _same(answer, self._right):
            found, right = (f"{value!r:.200}" for value in (answer, self._right))
            raise WrongAnswer(f"in {self._case.name!r}: {subject} says {found}, {self._source} says {right}")


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other))
    return bool(one == other)


@dataclass
class _Samples:
    calls: int
    seconds: list[float] = field(default_factory=list)
    measures: dict[str, list[Measure]] = field(default_factory=dict)

    def take(self, subject: Subject) -> Outcome:
        """One sample: as many calls as make it long enough; the garbage collector stays out of it."""
        gc.collect()
        gc.disable()
        try:
            start = time.perf_counter()
            for _ in range(self.calls):
                answer = subject()
            self.seconds.append((time.perf_counter() - start) / self.calls)
        finally:
            gc.enable()
        outcome = _outcome(answer)
        for name, value in outcome.measures.items():
            self.measures.setdefault(name, []).append(value)
        return outcome


def _outcome(answer: object) -> Outcome:
    return answer if isinstance(answer, Outcome) else Outcome(answer, {})


def _calls_per_sample(subject: Subject, name: str, judge: _Judge) -> int:
    """Warm up, see that the answer is right, and see how long a call takes when warm."""
    judge.check(name, _outcome(subject()))
    start = time.perf_counter()
    subject()
    return max(1, round(_SHORTEST_SAMPLE_SECONDS / (time.perf_counter() - start)))


def times(
    case: str, subject: str, seconds: Sequence[float], first_seconds: float, rows: int | None
) -> Iterator[Measurement]:
    """Lines about samples of one subject; the first subject takes `first_seconds`, a sample handles `rows` rows."""
    typical = median(seconds)
    yield Measurement(case, subject, "time_median", typical, "s")
    yield Measurement(case, subject, "time_min", min(seconds), "s")
    yield Measurement(case, subject, "time_max", max(seconds), "s")
    yield Measurement(case, subject, "time_ratio", typical / first_seconds, "x")
    if rows is not None:
        yield Measurement(case, subject, "throughput", rows / typical, "rows/s")


def _lines(case: Case, subject: str, samples: _Samples, first_seconds: float) -> Iterator[Measurement]:
    yield from times(case.name, subject, samples.seconds, first_seconds, case.rows)
    for name, measures in samples.measures.items():
        yield Measurement(case.name, subject, name, median(m.value for m in measures), measures[0].unit)


def _peak_memory(cases: Cases, measured: Sequence[Measurement], quick: bool) -> list[Measurement]:
    """One line for each subject that was measured."""
    lines = []
    for case, subject in dict.fromkeys((line.case, line.subject) for line in measured):
        command = [sys.executable, "-m", "benchmarks.runner", _MEMORY_OF, _module_of(cases), case, subject]
        size = "quick" if quick else "full"
        child = subprocess.run([*command, size], cwd=_PACKAGE_ROOT, capture_output=True, text=True, check=False)
        if child.returncode:
            raise RuntimeError(f"the memory run of {subject!r} in {case!r} failed:\n{child.stderr}")
        if child.stdout.strip():
            lines.append(Measurement(case, subject, "peak_memory", float(child.stdout), "bytes"))
    return lines


def _module_of(cases: Cases) -> str:
    """The importable name of a benchmark, also when it runs as `python -m benchmarks.name`."""
    module = sys.modules[cases.__module__]
    return module.__spec__.name if module.__spec__ else f"benchmarks.{Path(str(module.__file__)).stem}"


def _measure_memory_here(module: str, case_name: str, subject_name: str, size: str) -> None:
    """In the fresh process: make the input, run one subject once, print what it added to the resident set."""
    cases: Cases = importlib.import_module(module).cases
    case = next(case for case in cases(size == "quick") if case.name == case_name)
    subject = cast(Case, case).prepare()[subject_name]
    if not _PEAK_MARK.exists():
        return
    before = reset_peak_memory()
    subject()
    print(max(status_bytes("VmHWM") - before, 0))


def reset_peak_memory() -> int:
    """Forget the highest resident set of this process so far; returns the present one."""
    gc.collect()
    reset_the_highest = "5"
    _PEAK_MARK.write_text(reset_the_highest, encoding="ascii")
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    """A size that Linux keeps about this process, such as VmHWM, its highest resident set."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024


def _table(title: str, measurements: Sequence[Measurement]) -> Table:
    """One row a subject; one column a metric, the three times in one."""
    values = {(line.subject, line.metric): _readable(line.value, line.unit) for line in measurements}
    metrics = list(dict.fromkeys(line.metric for line in measurements))
    others = [metric for metric in metrics if not metric.startswith("time_m")]
    load = f"load of the machine {os.getloadavg()[0]:.1f}"
    table = Table(title=title, title_justify="left", title_style="bold", caption=load, caption_justify="left")
    table.add_column("subject")
    timed = ("time", "min .. max") if "time_median" in metrics else ()
    for heading in (*timed, *(metric.replace("_", " ") for metric in others)):
        table.add_column(heading, justify="right")
    for subject in dict.fromkeys(line.subject for line in measurements):
        cells = [values.get((subject, metric), "") for metric in others]
        if timed:
            spread = f"{values[subject, 'time_min']} .. {values[subject, 'time_max']}"
            cells = [values[subject, "time_median"], spread, *cells]
        table.add_row(subject, *cells)
    return table


def _readable(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f} x"
    if unit == "bytes":
        return f"{value / 2**20:,.1f} MiB"
    steps = _SECONDS if unit == "s" else [(scale, prefix + unit) for scale, prefix in _MULTIPLES]
    scale, name = next((step for step in steps if value >= step[0]), steps[-1])
    digits = 0 if value >= 100 * scale else 1 if value >= 10 * scale else 2
    return f"{value / scale:.{digits}f} {name}"


if __name__ == "__main__":
    if sys.argv[1:2] != [_MEMORY_OF]:
        sys.exit("run `python -m benchmarks`, or one benchmark such as `python -m benchmarks.kernels`")
    _measure_memory_here(*sys.argv[2:])
