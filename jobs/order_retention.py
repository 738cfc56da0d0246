"""What the demo pipeline lets go of after a load, so that its folder stays as small as its state.

A file goes when no kept package names it, whether an old load left it there or an attempt that crashed. What belongs to
the newest load or a later one stays: another attempt may be writing it. Everything here may be cut short at any point
and is made up for after the next load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from etl.crash_points import CrashPoint, reached
from etl.spark.correlate import CorrelationState
from etl.storage.durable import DurableFolder
from etl.storage.lookup_store import open_relation
from etl.storage.run_lock import Run
from etl.storage.upkeep import keep_up
from jobs.order_pipeline import OrderPipeline
from warehouse.load_package import LoadPackage, LoadPackages

__all__ = ["retire"]

PACKAGES_KEPT = 3


def retire(pipeline: OrderPipeline, packages: LoadPackages, run: Run) -> None:
    """Old packages, the snapshots and tables that only they named, and every so often old versions of relations."""
    run.check()
    reached(CrashPoint.BEFORE_RETIREMENT)
    packages.retire(PACKAGES_KEPT)
    reached(CrashPoint.BETWEEN_RETIREMENTS)
    kept = packages.all()
    _forget_snapshots(DurableFolder(pipeline.folder / "snapshots"), kept)
    if kept[-1].load_id.batch_id % pipeline.upkeep_every == 0:
        _tidy(pipeline, run)
    reached(CrashPoint.AFTER_RETIREMENT)


def _forget_snapshots(snapshots: DurableFolder, kept: list[LoadPackage]) -> None:
    """Files are named for the load that wrote them, `orders/00000007/...`, and loads are numbered in their order."""
    stored = (cast(Mapping[str, object], package.details["correlation"]) for package in kept)
    needed = frozenset[str]().union(*(CorrelationState.from_json(state).file_names() for state in stored))
    newest = f"{kept[-1].load_id}/"
    for name in snapshots.names(f"{kept[-1].load_id.pipeline}/"):
        if name < newest and name not in needed:
            snapshots.delete(name)


def _tidy(pipeline: OrderPipeline, run: Run) -> None:
    """What is worth a longer look, but not after each load."""
    for folder in (pipeline.folder / "packages", pipeline.folder / "snapshots"):
        DurableFolder(folder).sweep_temporary()
    for folder in sorted(pipeline.relations.iterdir()):
        run.check()
        reached(CrashPoint.BEFORE_UPKEEP)
        keep_up(open_relation(folder), pipeline.upkeep)
        reached(CrashPoint.AFTER_UPKEEP)
