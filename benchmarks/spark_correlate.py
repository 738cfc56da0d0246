"""The correlate host beside Spark's own stream-stream join: the same files, the same cuts, the results in the driver.

Two streams of as many rows; a row's partner comes in the same load or in the next, in random order. A subject is a
process of its own that reads the files as a stream, one file of each side a load, and hands each load's results over as
an Arrow table. What counts is Spark's own figure for a trigger, from the listing of the files to the commit of the
offsets; the first loads warm up. Both sides keep all their rows: neither has a watermark. The processor time of a load,
over all processes, is there for machines that others use too: it depends less on them.

Spark's join keeps its rows in a state store, and checkpoints that with every load; ours logs the rows of the load. It
is given one shuffle partition a core, 8 GiB of heap and Java's own options, and is measured with all its ways to store:
HDFS-backed, RocksDB with snapshots, RocksDB with changelogs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.runner import Measurement, WrongAnswer, main, times
from benchmarks.spark_correlate_subjects import SUBJECTS, Digest, Report, digest

WARM_UP = 3
ROOT = Path(__file__).resolve().parent.parent


def cases(quick: bool) -> Iterator[StreamJoin]:
    """Small loads, where the fixed cost of a load counts, and large ones."""
    for rows in (2_000,) if quick else (10_000, 100_000, 200_000):
        yield StreamJoin(rows)


@dataclass(frozen=True)
class StreamJoin:
    """One size of load: rows of each side."""

    rows: int

    @property
    def name(self) -> str:
        return f"stream-stream join on Spark, loads of 2 x {self.rows:,} rows"

    def measure(self, rounds: int) -> list[Measurement]:
        """Each subject in turn, `rounds` loads after the warm-up."""
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            right = write_streams(Path(folder), self.rows, WARM_UP + rounds)
            reports = {subject: self._reported(subject, Path(folder)) for subject in SUBJECTS}
        for subject, report in reports.items():
            if report.answer != right:
                raise WrongAnswer(f"in {self.name!r}: {subject} gives {report.answer}, right is {right}")
        return [line for subject in reports for line in self._lines(subject, reports)]

    def _reported(self, subject: str, folder: Path) -> Report:
        command = [sys.executable, "-m", "benchmarks.spark_correlate_subjects", subject, str(folder)]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if child.returncode:
            raise RuntimeError(f"{subject!r} in {self.name!r} failed:\n{child.stdout}\n{child.stderr}")
        return Report.from_json(json.loads(child.stdout.splitlines()[-1]))

    def _lines(self, subject: str, reports: dict[str, Report]) -> Iterator[Measurement]:
        first = float(np.median(reports[next(iter(reports))].seconds[WARM_UP:]))
        report = reports[subject]
        yield from times(self.name, subject, report.seconds[WARM_UP:], first, rows=2 * self.rows)
        spent = np.median(np.diff(report.processor[WARM_UP - 1 :]))
        yield Measurement(self.name, subject, "processor_time", float(spent), "s")
        yield Measurement(self.name, subject, "memory", report.memory_bytes, "bytes")
        yield Measurement(self.name, subject, "state_on_disk", report.state_bytes, "bytes")


def write_streams(folder: Path, rows: int, loads: int) -> Digest:
    """The files of both sides; returns the digest of their join."""
    chance = np.random.default_rng(1)
    sides: list[list[pa.Table]] = [[], []]
    for load in range(loads):
        for side in (0, 1):
            # Side 1 is half a load behind, so that half of all rows wait for the next load.
            keys = np.arange(load * rows, (load + 1) * rows) - side * (rows // 2)
            chance.shuffle(keys)
            moments = pa.array(keys * 1000, pa.timestamp("us", "UTC"))
            table = pa.table({"k": keys, f"v{side}": chance.integers(0, 1 << 30, rows), f"at{side}": moments})
            sides[side].append(table)
            path = folder / f"side-{side}" / f"{load:06d}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(table, path)
    left, right = (pa.concat_tables(tables) for tables in sides)
    return digest(left.join(right, "k", join_type="inner"))


if __name__ == "__main__":
    sys.exit(main(cases))
