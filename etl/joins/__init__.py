"""Joins: the contract, the catalogue, and the operators.

from etl import joins
op = joins.build("symmetric-hash", sides=[orders, payments], on=[("order_no", "order_no")])
"""

from etl.budget import WorkBudget
from etl.events import (
    Between,
    EndOfSide,
    Event,
    Exactly,
    OneOf,
    Punctuation,
    RelationVersion,
    Rows,
    Tick,
    Watermark,
)
from etl.joins.catalogue import CatalogueEntry, build, catalogue, register, restore
from etl.joins.contract import Emit, JoinPlan, NoSettings, Phase, Ports, Progress
from etl.joins.hybrid import auto as _auto  # noqa: F401 - enters the catalogue
from etl.joins.hybrid import hash_partitioned as _hash_partitioned  # noqa: F401 - enters the catalogue
from etl.joins.hybrid import meshjoin as _meshjoin  # noqa: F401 - enters the catalogue
from etl.joins.hybrid import range_partitioned as _range_partitioned  # noqa: F401 - enters the catalogue
from etl.joins.hybrid.shared import SharedScan
from etl.joins.lifecycle import LEGAL_EVENTS, Operator
from etl.joins.parallel import bucketed_window as _bucketed_window  # noqa: F401 - enters the catalogue
from etl.joins.progressive import symmetric_hash as _symmetric_hash  # noqa: F401 - enters the catalogue
from etl.joins.snapshots import OperatorState, Snapshot

__all__ = [
    "build",
    "restore",
    "catalogue",
    "Rows",
    "EndOfSide",
    "Watermark",
    "Tick",
    "Punctuation",
    "Exactly",
    "Between",
    "OneOf",
    "RelationVersion",
    "Event",
    "WorkBudget",
    "Progress",
    "Phase",
    "Emit",
    "Snapshot",
    "Operator",
    "OperatorState",
    "JoinPlan",
    "NoSettings",
    "Ports",
    "CatalogueEntry",
    "LEGAL_EVENTS",
    "register",
    "SharedScan",
]
