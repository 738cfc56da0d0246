"""The process that Spark forks its Python workers from: ours has loaded what every task needs.

Spark's own daemon loads nothing of ours, so each worker would import numba and the kernels by itself (0.6 s), on its
first task and again whenever an idle worker was ended. Here it happens once, and the workers share the memory.

Spark collects garbage after every task. The modules are frozen, so that it does not search them each time (17 ms).
"""

import gc

from pyspark.daemon import manager

import etl.spark.resolve_task
import etl.spark.slot_task  # noqa: F401 - both are loaded for the workers

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
