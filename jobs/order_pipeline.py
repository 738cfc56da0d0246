"""The demo pipeline as plain data: where it keeps its things, how its feeds are joined, what may pile up."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine

from etl.joins.parallel.rebalancing import Rebalancing
from etl.spark.correlate import Correlation
from etl.storage.durable import DurableFolder
from etl.storage.run_lock import Run, run_of
from etl.storage.upkeep import Upkeep
from jobs.order_feeds import EVENT_TIMES, side_schemas
from warehouse.load_package import LoadPackages

__all__ = ["OrderPipeline"]


@dataclass(frozen=True)
class OrderPipeline:
    """`shared_relations` is a folder of relations that other pipelines use as well; else they lie in `folder`.

    `groups`, `slots`, `slot_rows` and `rebalancing` are those of the correlation; only `groups` is there for good.
    """

    folder: Path
    engine: Engine
    groups: int = 16
    join: str = "symmetric-hash"
    slots: int | None = None
    slot_rows: int = 1_000_000
    rebalancing: Rebalancing | None = None
    name: str = "orders"
    shared_relations: Path | None = None
    upkeep: Upkeep = field(default_factory=Upkeep)
    upkeep_every: int = 16
    """After so many loads relations are looked after."""

    @property
    def packages(self) -> LoadPackages:
        return LoadPackages(DurableFolder(self.folder / "packages"), self.name)

    @property
    def relations(self) -> Path:
        return self.shared_relations or self.folder / "relations"

    @property
    def correlation(self) -> Correlation:
        return Correlation(
            join=self.join,
            sides=side_schemas(),
            on=(("source_system", "source_system"), ("order_no", "order_no")),
            groups=self.groups,
            folder=str(self.folder / "snapshots"),
            event_times=EVENT_TIMES,
            slots=self.slots,
            slot_rows=self.slot_rows,
            rebalancing=self.rebalancing,
        )

    def running(self) -> AbstractContextManager[Run]:
        """Be the one run of this pipeline for the time of a `with` statement; PipelineBusy while there is another."""
        return run_of(self.name, self.folder / "run")
