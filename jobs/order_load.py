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
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from sqlalchemy import Engine

from etl.errors import CommitRace, TerminalError
from etl.spark.correlate import EMPTY_STATE, Correlated, Correlation, CorrelationState, correlate
from etl.storage.durable import DurableFolder
from etl.storage.relation import Relation
from jobs.demo_feeds import PAYMENT_METHODS
from jobs.order_feeds import ALLOWED_LATENESS_MICROSECONDS, EVENT_TIMES, FEEDS, parsed, side_schemas
from jobs.order_resolution import PAYMENT_METHOD, Relations, Resolved, open_relations, resolve
from warehouse import quality
from warehouse.load_package import FileStamp, LoadId, LoadPackage, LoadPackages
from warehouse.loader import load
from warehouse.schema import arrow_schema, quarantine

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


def run_load(pipeline: OrderPipeline, lines: DataFrame, batch_id: int) -> LoadPackage:
    """The commit order: correlate, resolve, commit the relations, publish the package, load it, tidy up."""
    load_id = LoadId(PIPELINE, batch_id)
    packages = pipeline.packages
    package = packages.find(load_id)
    if package is None:
        # 1. Correlate and resolve against one version of each relation.
        previous = packages.latest()
        correlated = _correlated(pipeline, lines, load_id, previous)
        # 2. Commit the next version of each relation, tagged with the load; if another writer was first, resolve again.
        resolved, relations = _resolved_and_committed(pipeline, correlated, load_id)
        # 3. Publish the load package: the commit point.
        package = _published(packages, load_id, correlated, resolved, relations, previous)
    # 4. Load the frozen package, with its row in the load ledger; a package that was loaded before is skipped.
    report = quality.check(package)
    if not report.passed:
        raise GateClosed(str(report))
    load(pipeline.engine, package)
    # 5. Back to Spark, which acknowledges the offsets; what no kept package names can go.
    _retire(pipeline, packages)
    return package


def _correlated(
    pipeline: OrderPipeline, lines: DataFrame, load_id: LoadId, previous: LoadPackage | None
) -> Correlated:
    state = EMPTY_STATE
    if previous is not None:
        state = CorrelationState.from_json(cast(Mapping[str, object], previous.details["correlation"]))
    watermarks = {side: instant - ALLOWED_LATENESS_MICROSECONDS for side, instant in state.event_time.items()}
    return correlate(parsed(lines), pipeline.correlation, str(load_id), state, watermarks)


def _resolved_and_committed(
    pipeline: OrderPipeline, correlated: Correlated, load_id: LoadId
) -> tuple[Resolved, Relations]:
    rows = _renamed(correlated.results)
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


def _committed(relation: Relation, members: pa.Table, load_id: str, highest: int) -> Relation:
    if relation.find(load_id) is None:
        return relation.append(members, load_id, highest)
    if members.num_rows:
        raise TerminalError(
            f"load {load_id} has committed version {relation.find(load_id)} of relation {relation.name}, and now "
            f"brings {members.num_rows} other keys: its input or its code sets changed between two attempts"
        )
    return relation


def _published(
    packages: LoadPackages,
    load_id: LoadId,
    correlated: Correlated,
    resolved: Resolved,
    relations: Relations,
    previous: LoadPackage | None,
) -> LoadPackage:
    quarantined = _quarantined(correlated, resolved)
    tables = {
        "dim_customer": relations.customer.brought(str(load_id)),
        "dim_product": relations.product.brought(str(load_id)),
        "dim_payment_method": _payment_methods(relations.codes),
        "fact_order": _without_zone(resolved.facts),
        "quarantine": quarantined,
    }
    attempt = uuid.uuid4().hex[:8]
    stamps: dict[str, FileStamp] = {
        name: packages.write_table(load_id, attempt, name, table) for name, table in tables.items()
    }
    counts = {
        "orders_rows": correlated.rows_in[0] + _count_feed(correlated.aside, FEEDS[0]),
        "payments_rows": correlated.rows_in[1] + _count_feed(correlated.aside, FEEDS[1]),
        "matched": correlated.results.num_rows,
        "facts": resolved.facts.num_rows,
        "customers": tables["dim_customer"].num_rows,
        "products": tables["dim_product"].num_rows,
        "duplicates": resolved.duplicates,
        "malformed": correlated.aside.num_rows,
        "late": sum(late.num_rows for late in correlated.late.values()),
        "unknown_codes": resolved.unknown_codes.num_rows,
        "quarantined": quarantined.num_rows,
    }
    details = {
        "correlation": correlated.state.to_json(),
        "relation_versions": relations.versions(),
        "previous": None if previous is None else str(previous.load_id),
    }
    return packages.publish(load_id, stamps, counts, details)  # type: ignore[arg-type]  # JSON by construction


def _quarantined(correlated: Correlated, resolved: Resolved) -> pa.Table:
    parts = [_reported(late, FEEDS[side], "late", "behind the watermark") for side, late in correlated.late.items()]
    parts.append(_reported(resolved.unknown_codes, "payments", "unknown code", "no such payment method"))
    if correlated.aside.num_rows:
        reasons = pa.repeat(pa.scalar("malformed"), correlated.aside.num_rows)
        parts.append(correlated.aside.append_column("reason", reasons).select(_REPORT.names).cast(_REPORT))
    return pa.concat_tables(parts)


_REPORT = pa.schema([(name, pa.string()) for name in arrow_schema(quarantine).names if name != "load_id"])


def _reported(rows: pa.Table, feed: str, reason: str, detail: str) -> pa.Table:
    payload = pa.array([str(row) for row in rows.to_pylist()], pa.string())
    constants = {"feed": feed, "reason": reason, "detail": detail}
    columns = {name: pa.repeat(pa.scalar(value), rows.num_rows) for name, value in constants.items()}
    return pa.table({**columns, "payload": payload}).select(_REPORT.names).cast(_REPORT)


def _renamed(results: pa.Table) -> pa.Table:
    """The join repeats the key columns of side 1 with a suffix; one copy will do."""
    if results.num_columns == 0:
        orders, payments = side_schemas()
        columns = {field.name: field.type for field in (*orders, *payments)}
        return pa.schema(list(columns.items())).empty_table()
    return results.drop_columns(["source_system_1", "order_no_1"])


def _payment_methods(codes: Relation) -> pa.Table:
    blocks = [block for segment in range(codes.segments) for block in codes.read_segment(segment)]
    rows = pa.Table.from_batches(blocks)
    rows = rows.filter(pc.equal(rows.column("code_set"), PAYMENT_METHOD)).select(["code_key", "code", "label"])
    return rows.rename_columns(["payment_method_key", "code", "label"])


def _without_zone(facts: pa.Table) -> pa.Table:
    """The warehouse keeps UTC without a zone."""
    for name in EVENT_TIMES:
        position = facts.column_names.index(name)
        facts = facts.set_column(position, name, facts.column(name).cast(pa.timestamp("us")))
    return facts


def _count_feed(aside: pa.Table, feed: str) -> int:
    return 0 if aside.num_columns == 0 else int(pc.sum(pc.equal(aside.column("feed"), feed)).as_py() or 0)


def _retire(pipeline: OrderPipeline, packages: LoadPackages) -> None:
    packages.retire(PACKAGES_KEPT)
    latest = packages.latest()
    if latest is None:
        return
    snapshots = DurableFolder(pipeline.folder / "snapshots")
    state = CorrelationState.from_json(cast(Mapping[str, object], latest.details["correlation"]))
    needed = {stamp.name for stamp in state.snapshots.values()}
    for name in snapshots.names():
        if name not in needed and not name.startswith(str(latest.load_id)):
            snapshots.delete(name)
