"""One load of the demo pipeline, in the one commit order.

A crash between any two steps is repaired by running the same load again: Spark gives the same rows under the same batch
id, earlier loads' packages hold the state to start from, and each step finds what the crashed attempt had completed.
A run that was overtaken by another stops at its next commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame

from etl.crash_points import CrashPoint, reached
from etl.errors import CommitRace, TerminalError
from etl.spark.correlate import EMPTY_STATE, Correlated, CorrelationState, correlate
from etl.storage.relation import Relation
from etl.storage.run_lock import Run
from jobs.demo_feeds import PAYMENT_METHODS
from jobs.order_feeds import ALLOWED_LATENESS_MICROSECONDS, side_schemas
from jobs.order_package import package_counts, package_tables
from jobs.order_pipeline import OrderPipeline
from jobs.order_resolution import Relations, Resolved, open_relations, resolve
from jobs.order_retention import retire
from jobs.order_settlement import Settled, recall, settle
from jobs.stream_position import NOWHERE, StreamPosition
from warehouse import quality
from warehouse.load_package import JSON, LoadId, LoadPackage, LoadPackages
from warehouse.loader import load

__all__ = ["GateClosed", "run_load"]

MOST_RACES = 10


class GateClosed(TerminalError):
    """The facts of a load did not pass the quality gate; nothing of it was loaded."""


def run_load(
    pipeline: OrderPipeline, run: Run, rows: DataFrame, batch_id: int, position: StreamPosition = NOWHERE
) -> LoadPackage:
    """The commit order: correlate, settle, resolve and commit the relations, publish the package, load it, tidy up.

    `rows` are those of one micro-batch, parsed and tagged by `order_feeds.parsed`; `position` says where in the
    sources they end, and the package keeps it.
    """
    load_id = LoadId(pipeline.name, batch_id)
    packages = pipeline.packages
    package = packages.find(load_id)
    if package is not None:
        _check_same_rows(package, position)
    else:
        packages.check_next(load_id)
        attempt = uuid.uuid4().hex[:8]
        # 1. Correlate, from the state that the previous load left, and settle the outcome for all attempts.
        settled = recall(packages, load_id)
        if settled is None:
            settled = _settled(pipeline, run, packages, load_id, attempt, _correlated(pipeline, rows, load_id))
        # 2. Resolve against one version of each relation and commit the next, tagged with the load.
        resolved, relations = _resolved_and_committed(pipeline, run, settled, load_id)
        # 3. Publish the load package: the commit point.
        tables = package_tables(settled.correlated, resolved, relations, str(load_id))
        details = {
            "position": position.to_json(),
            "correlation": settled.correlated.state.to_json(),
            "relation_versions": relations.versions(),
        }
        counts = package_counts(settled.correlated, resolved, tables)
        package = _published(packages, run, load_id, attempt, tables, counts, details)
    # 4. Load the frozen package, with its row in the load ledger; a package that was loaded before is skipped.
    _loaded(pipeline, run, package)
    # 5. Back to Spark, which acknowledges the offsets; what no kept package names can go.
    retire(pipeline, packages, run)
    return package


def _check_same_rows(package: LoadPackage, position: StreamPosition) -> None:
    """A load that is repeated reads what it read before; with another checkpoint it would skip other rows silently."""
    published = package.details["position"]
    if published != position.to_json():
        raise TerminalError(
            f"load {package.load_id} was published from {published} and is now to be read from {position.to_json()}: "
            "the stream's checkpoint and the packages do not belong together; restore both from the same time, or "
            "start both over"
        )


def _correlated(pipeline: OrderPipeline, rows: DataFrame, load_id: LoadId) -> Correlated:
    newest = pipeline.packages.latest()
    state = EMPTY_STATE
    if newest is not None:
        state = CorrelationState.from_json(cast(Mapping[str, object], newest.details["correlation"]))
    watermarks = {side: instant - ALLOWED_LATENESS_MICROSECONDS for side, instant in state.event_time.items()}
    return correlate(rows, pipeline.correlation, str(load_id), state, watermarks)


def _settled(
    pipeline: OrderPipeline, run: Run, packages: LoadPackages, load_id: LoadId, attempt: str, correlated: Correlated
) -> Settled:
    codes = open_relations(pipeline.relations, PAYMENT_METHODS).codes
    run.check()
    reached(CrashPoint.BEFORE_SETTLEMENT)
    settled = settle(packages, load_id, attempt, Settled(correlated, codes.version))
    reached(CrashPoint.AFTER_SETTLEMENT)
    return settled


def _resolved_and_committed(
    pipeline: OrderPipeline, run: Run, settled: Settled, load_id: LoadId
) -> tuple[Resolved, Relations]:
    """If another writer was first, its versions are resolved against again."""
    rows = _joined_rows(settled.correlated)
    for _ in range(MOST_RACES):
        newest = open_relations(pipeline.relations, PAYMENT_METHODS)
        relations = replace(newest, codes=newest.codes.at(settled.codes_version))
        resolved = resolve(rows, relations, str(load_id))
        try:
            committed = {
                name: _committed(getattr(relations, name), run, members, str(load_id), highest)
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


def _committed(relation: Relation, run: Run, members: pa.Table, load_id: str, highest: int) -> Relation:
    """The relation with this load's members; an earlier attempt may have brought them."""
    committed = relation.find(load_id)
    if committed is None:
        run.check()
        reached(CrashPoint.BEFORE_RELATION_COMMIT)
        relation = relation.append(members, load_id, highest)
        reached(CrashPoint.AFTER_RELATION_COMMIT)
    elif members.num_rows:
        raise TerminalError(
            f"load {load_id} has committed version {committed} of relation {relation.name}, and now brings "
            f"{members.num_rows} other keys: the files of its settlement are not those it began with; restore the "
            "pipeline's folder and its relations from the same time"
        )
    return relation


def _published(
    packages: LoadPackages,
    run: Run,
    load_id: LoadId,
    attempt: str,
    tables: Mapping[str, pa.Table],
    counts: Mapping[str, int],
    details: Mapping[str, object],
) -> LoadPackage:
    stamps = {}
    for name, table in tables.items():
        reached(CrashPoint.BEFORE_TABLE)
        stamps[name] = packages.write_table(load_id, attempt, name, table)
        reached(CrashPoint.AFTER_TABLE)
    run.check()
    reached(CrashPoint.BEFORE_PUBLISH)
    package = packages.publish(load_id, stamps, counts, cast(Mapping[str, JSON], details))
    reached(CrashPoint.AFTER_PUBLISH)
    return package


def _loaded(pipeline: OrderPipeline, run: Run, package: LoadPackage) -> None:
    report = quality.check(package)
    if not report.passed:
        raise GateClosed(str(report))

    def before_commit() -> None:
        run.check()
        reached(CrashPoint.BEFORE_WAREHOUSE_COMMIT)

    load(pipeline.engine, package, before_commit)
    reached(CrashPoint.AFTER_WAREHOUSE_COMMIT)
