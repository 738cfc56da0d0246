"""Loads that die, each in a process of its own: `python -m tests.jobs.dying_loads <folder> <batch id> <point> ...`.

The folder holds a pipeline whose load has been settled, so that no Spark is needed to go on. For each crash point
given, a copy of the folder gets a process that kills itself there and then one that repeats the load. The processes are
forked from this one, which has imported everything and has run nothing: so a kill takes half a second, not many.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pyarrow as pa

from etl.crash_points import VARIABLE
from jobs.order_load import run_load
from tests.jobs.order_run import pipeline_in
from warehouse import quality


def main(folder: Path, batch_id: int, points: list[str]) -> None:
    quality._gate()  # slow to set up: once, not in each process
    for point in points:
        copy = folder.parent / point.replace(":", "-")
        shutil.copytree(folder, copy)
        died = _forked(copy, batch_id, point)
        repeated = _forked(copy, batch_id, None)
        print(point, died == -signal.SIGKILL, repeated == 0, flush=True)


def _forked(folder: Path, batch_id: int, point: str | None) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        if point is not None:
            os.environ[VARIABLE] = point
        pipeline = pipeline_in(folder)
        with pipeline.running() as run:
            run_load(pipeline, run, pa.table({}), batch_id)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
