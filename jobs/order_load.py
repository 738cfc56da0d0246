"""One load of the demo pipeline, in the one commit order.

A crash between any two steps is repaired by running the same load again: Spark gives the same rows under the same batch
id, earlier loads' packages hold the state to start from, and each step finds what the crashed attempt had completed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame
from sqlalchemy import Engine

from etl.errors import CommitRace, TerminalError
from etl.spark.correlate import EMPTY_STATE, Correlated, Correlation, CorrelationState, correlate
from etl.storage.durable import DurableFolder
from etl.storage.relation import Relation
from jobs.demo_feeds import PAYMENT_METHODS
from jobs.order_feeds import ALLOWED_LATENESS_MICROSECONDS, EVENT_TIMES, side_schemas
from jobs.order_package import package_counts, package_tables
from jobs.order_resolution import Relations, Resolved, open_relations, resolve
from warehouse import quality
from warehouse.load_package import JSON, LoadId, LoadPackage, LoadPackages
from warehouse.loader import load

PIPELINE = "orders"
PACKAGES_KEPT = 3
MOST_RACES = 10


class GateClosed(TerminalError):
    """The facts of a load did not pass the quality gate; nothing of it was loaded."""


@dataclass(frozen=True)
class OrderPipeline:
    """Where the pipeline keeps its things, and how the two feeds are joined."""

    folder: Path
    engine: Engine
    groups: int = 4
    join: str = "symmetric-hash"

    @property
    def packages(self) -> LoadPackages:
        return LoadPackages(DurableFolder(self.folder / "packages"), PIPELINE)

    @property
    def correlation(self) -> Correlation:
        return Correlation(
            join=self.join,
            sides=side_schemas(),
            on=(("source_system", "source_system"), ("order_no", "order_no")),
            groups=self.groups,
            folder=str(self.folder / "snapshots"),
            event_times=EVENT_TIMES,
        )


def run_load(pipeline: OrderPipeline, rows: DataFrame, batch_id: int) -> LoadPackage:
    """The commit order: correlate, resolve, commit the relations, publish the package, load it, tidy up.

    `rows` are those of one micro-batch, parsed and tagged by `order_feeds.parsed`.
    """
    load_id = LoadId(PIPELINE, batch_id)
    packages = pipeline.packages
    package = packages.find(load_id)
    if package is None:
        # 1. Correlate, from the state that the previous load left.
        state = _state_after(packages.latest())
        watermarks = {side: instant - ALLOWED_LATENESS_MICROSECONDS for side, instant in state.event_time.items()}
        correlated = correlate(rows, pipeline.correlation, str(load_id), state, watermarks)
        # 2. Resolve against one version of each relation and commit the next, tagged with the load.
        resolved, relations = _resolved_and_committed(pipeline, correlated, load_id)
        # 3. Publish the load package: the commit point.
        package = _published(packages, load_id, correlated, resolved, relations)
    # 4. Load the frozen package, with its row in the load ledger; a package that was loaded before is skipped.
    report = quality.check(package)
    if not report.passed:
        raise GateClosed(str(report))
    load(pipeline.engine, package)
    # 5. Back to Spark, which acknowledges the offsets; what no kept package names can go.
    _retire(pipeline, packages)
    return package


def _state_after(package: LoadPackage | None) -> CorrelationState:
    if package is None:
        return EMPTY_STATE
    return CorrelationState.from_json(cast(Mapping[str, object], package.details["correlation"]))


def _resolved_and_committed(
    pipeline: OrderPipeline, correlated: Correlated, load_id: LoadId
) -> tuple[Resolved, Relations]:
    """If another writer was first, its versions are resolved against again."""
    rows = _joined_rows(correlated)
    for _ in range(MOST_RACES):
        relations = open_relations(pipeline.folder / "relations", PAYMENT_METHODS)
        resolved = resolve(rows, relations, str(load_id))
        try:
            committed = {
                name: _committed(getattr(relations, name), members, str(load_id), highest)
                for name, (members, highest) in resolved.members.items()
            }
        except CommitRace:
            continue
        return resolved, Relations(codes=relations.codes, **committed)
    raise CommitRace(f"load {load_id}: other writers were first {MOST_RACES} times in a row; try again later")


def _joined_rows(correlated: Correlated) -> pa.Table:
    """The join repeats the key columns of side 1 with a suffix; one copy will do."""
    if correlated.results.num_rows == 0:
        orders, payments = side_schemas()
        columns = {field.name: field.type for field in (*orders, *payments)}
        return pa.schema(list(columns.items())).empty_table()
    return correlated.results.drop_columns(["source_system_1", "order_no_1"])


def _committed(relation: Relation, members: pa.Table, load_id: str, highest: int) -> Relation:
    """The relation with this load's members; an earlier attempt may have brought them."""
    committed = relation.find(load_id)
    if committed is None:
        return relation.append(members, load_id, highest)
    if members.num_rows:
        raise TerminalError(
            f"load {load_id} has committed version {committed} of relation {relation.name}, and now brings "
            f"{members.num_rows} other keys: its input or its code sets changed between two attempts"
        )
    return relation


def _published(
    packages: LoadPackages, load_id: LoadId, correlated: Correlated, resolved: Resolved, relations: Relations
) -> LoadPackage:
    tables = package_tables(correlated, resolved, relations, str(load_id))
    attempt = uuid.uuid4().hex[:8]
    stamps = {name: packages.write_table(load_id, attempt, name, table) for name, table in tables.items()}
    details = {"correlation": correlated.state.to_json(), "relation_versions": relations.versions()}
    return packages.publish(
        load_id, stamps, package_counts(correlated, resolved, tables), cast(Mapping[str, JSON], details)
    )


def _retire(pipeline: OrderPipeline, packages: LoadPackages) -> None:
    """The next load's snapshots stay, and what another attempt of the newest load may still be writing."""
    packages.retire(PACKAGES_KEPT)
    newest = packages.latest()
    assert newest is not None, "a load was just published"
    snapshots = DurableFolder(pipeline.folder / "snapshots")
    needed = {stamp.name for stamp in _state_after(newest).snapshots.values()}
    for name in snapshots.names():
        if name not in needed and not name.startswith(f"{newest.load_id}/"):
            snapshots.delete(name)
