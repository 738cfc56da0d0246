"""A Spark session that keeps quiet: a user sees our output, Spark's goes to a file.

The JVM and its Python workers inherit the streams of the process that starts them, so the two are pointed at the log
file for the moment of the start. What Spark has to say is then all in one place, and named when something fails.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from etl.errors import BadInput

_NO_JAVA = (
    "Spark needs Java 17 or newer and no 'java' was found: install it (Debian and Ubuntu: "
    "apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
)


def local_session(name: str, log_file: Path, master: str = "local[*,4]", **settings: str) -> SparkSession:
    """A session with what the hosts need; `settings` are further Spark settings, dots written as double underscores.

    `master` may be the URL of a cluster. Its nodes then need this package under the same Python path, and the folders
    of the pipeline under the same names. The default lets a task whose worker died be tried again, as clusters do.
    """
    require_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name).master(master)
    given = {key.replace("__", "."): value for key, value in settings.items()}
    for option, value in {**_SETTINGS, **(_LOCAL if master.startswith("local") else {}), **given}.items():
        builder = builder.config(option, value)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with _output_to(log_file):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def require_java() -> None:
    """BadInput when there is no Java, for callers that want to know before they begin."""
    home = os.environ.get("JAVA_HOME")
    found = (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None
    if not found:
        raise BadInput(_NO_JAVA)


# Without the larger stack, stopping a query during a Python foreachBatch ends in a StackOverflowError. The other two
# suit short jobs on few cores, where compiling and collecting in the background take the cores from the work; a
# long-running job with large loads may be better off without them.
_JAVA_OPTIONS = "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A group is a partition: adaptive execution must not merge them.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    # The default starts a program for each look at a local file, 42 in a load; this one 9. Its rename is not exclusive:
    # a pipeline's own lock, not Spark, keeps a second run away.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.python.daemon.module": "etl.spark.worker_daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}

# Nobody else has to reach the driver, and a laptop's name may lead nowhere.
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@contextmanager
def _output_to(log_file: Path) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, log):
            os.close(descriptor)
