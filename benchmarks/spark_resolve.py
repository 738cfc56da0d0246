"""The resolve host beside Spark's own joins: what does a micro-batch cost, and how does it grow with R?

Orders stream in as Parquet files; each names its customer by (int32, text). R holds 1, 10 and 50 M customers; one order
in ten is of a customer whom R does not hold. A sample is one micro-batch: Spark's time for the whole trigger. Times are
medians after warm-up; "time ratio" compares with ours, and "processor time" adds up all threads of all processes, which
is the steadier figure on a machine that others use too.

Ours does a whole load in that time: it resolves, numbers and commits the new customers, writes and publishes the load
package, and loads it into DuckDB with its ledger row. Spark's joins only join and hand over the rows. "nothing but
toArrow" is what any of them pays for Spark itself. Every subject is a process of its own, one after the other; memory
is that of the driver, its JVM and all workers together at the highest moment; "of it mapped" are pages of files, most
of all of R, which the system can take back. Ours has 256 MiB for its look-ups and a JVM of 1 GiB; Spark's joins have a
JVM of 8 GiB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.key_streams import KeyStream
from benchmarks.lookup_data import DEFAULT_FOLDER, LookupData
from benchmarks.runner import Measurement, Question, WrongAnswer, main, times
from benchmarks.spark_resolve_peers import CACHED, DEFAULT, SEMI_JOIN, SHUFFLED_HASH
from benchmarks.spark_resolve_process import (
    FLOOR,
    OURS,
    OURS_IN_TASKS,
    Job,
    Outcome,
    read_outcome,
)
from benchmarks.spark_resolve_stream import FILES_PER_BATCH, OrderStream

_ROOT = Path(__file__).resolve().parent.parent
_FOLDER = DEFAULT_FOLDER.parent / "spark"
_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True)
class Pace:
    """How many micro-batches warm a subject up, and how many are measured."""

    warm_up: int
    measured: int

    @property
    def batches(self) -> int:
        return self.warm_up + self.measured


@dataclass(frozen=True)
class Sizes:
    relation_rows: tuple[int, ...]
    batch_rows: tuple[int, ...]
    quick_pace: Pace
    """For what takes a fraction of a second."""
    slow_pace: Pace
    theta: int = 65_536
    most_cached_rows: int = 10_000_000
    """R of more rows does not fit into the memory of a machine like this as a cached table."""


FULL = Sizes((1_000_000, 10_000_000, 50_000_000), (10_000, 100_000), Pace(25, 15), Pace(2, 7))
QUICK = Sizes((20_000,), (1_000,), Pace(2, 3), Pace(1, 2), theta=4_096)

PEERS = (DEFAULT, SHUFFLED_HASH, SEMI_JOIN, CACHED)
STEPS = ("resolve", "commit relation", "publish package", "load warehouse")


def cases(quick: bool) -> Iterator[Question]:
    """A table for each size of the batches and of R."""
    sizes = QUICK if quick else FULL
    for batch_rows in sizes.batch_rows:
        for rows in sizes.relation_rows:
            yield ResolveCase(sizes, rows, batch_rows)


@dataclass(frozen=True)
class ResolveCase:
    sizes: Sizes
    rows: int
    batch_rows: int

    @property
    def name(self) -> str:
        return f"micro-batches of {self.batch_rows:,} rows, R of {self.rows:,}"

    def measure(self, rounds: int) -> list[Measurement]:
        """One process after the other; the number of batches is the pace's, whatever `rounds`."""
        lines: list[Measurement] = []
        first: float | None = None
        for subject in self._subjects():
            pace = self.sizes.slow_pace if subject in PEERS else self.sizes.quick_pace
            outcome = self._run(subject, pace)
            seconds = outcome.seconds[pace.warm_up :]
            first = first or median(seconds)
            lines += times(self.name, subject, seconds, first, self.batch_rows)
            lines.append(Measurement(self.name, subject, "processor_time", outcome.processor_seconds, "s"))
            lines.append(Measurement(self.name, subject, "memory", outcome.memory, "bytes"))
            lines.append(Measurement(self.name, subject, "of_it_mapped", outcome.mapped, "bytes"))
            for step in STEPS if outcome.steps else ():
                spent = median(outcome.steps[step][pace.warm_up :])
                lines.append(Measurement(self.name, subject, step.replace(" ", "_"), spent, "s"))
        return lines

    def _subjects(self) -> list[str]:
        ours = [OURS, OURS_IN_TASKS]
        peers = [peer for peer in PEERS if peer != CACHED or self.rows <= self.sizes.most_cached_rows]
        return [*ours, *peers, FLOOR]

    def _run(self, subject: str, pace: Pace) -> Outcome:
        folder = _FOLDER / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        stream = self._stream(pace.batches, folder)
        ours = subject not in PEERS
        data = LookupData(self.rows, self.sizes.theta)
        job = Job(
            subject=subject,
            relation=str(data.relation("hash") if ours else data.parquet()),
            relation_rows=self.rows,
            stream=str(stream.folder),
            folder=str(folder),
            outcome=str(folder / "outcome.json"),
            memory_bytes=_MEMORY_BYTES,
            java_memory="1g" if ours else "8g",
            warm_up=pace.warm_up,
        )
        outcome = _outcome_of(job)
        if len(outcome.seconds) != pace.batches:
            raise WrongAnswer(f"in {self.name!r}: {subject} ran {len(outcome.seconds)} of {pace.batches} micro-batches")
        if subject != FLOOR and outcome.answered != stream.expected():
            raise WrongAnswer(
                f"in {self.name!r}: {subject} says {outcome.answered}, by definition it is {stream.expected()}"
            )
        shutil.rmtree(folder)
        return outcome

    def _stream(self, batches: int, folder: Path) -> OrderStream:
        """The first of all batches, as links to the files that were written once."""
        keys = KeyStream("uniform", self.rows)
        most = max(self.sizes.quick_pace.batches, self.sizes.slow_pace.batches)
        written = OrderStream(_FOLDER / f"orders-{self.rows}-{self.batch_rows}-{most}", keys, self.batch_rows, most)
        written.write()
        linked = OrderStream(folder / "orders", keys, self.batch_rows, batches)
        linked.folder.mkdir()
        for path in sorted(written.folder.glob("*.parquet"))[: batches * FILES_PER_BATCH]:
            os.link(path, linked.folder / path.name)
        return linked


def _outcome_of(job: Job) -> Outcome:
    job_file = Path(job.folder) / "job.json"
    job_file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.spark_resolve_process", str(job_file)]
    child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(f"the process of {job.subject} failed:\n{child.stderr[-4000:]}")
    return read_outcome(Path(job.outcome))


if __name__ == "__main__":
    sys.exit(main(cases))
