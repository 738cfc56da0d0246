"""What a load of the demo pipeline settles before any relation learns of it, and how another attempt recalls it.

Two attempts of a load see the same rows, but not all that follows is bound to be the same: an operator that spills may
give a result earlier or later when rows arrive in another order, and someone may teach the pipeline a new code between
the attempts. Once a relation has learnt the keys of the first attempt, the second must bring the same ones. So the
outcome of the correlation and the version of the codes are frozen first; every attempt then goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from etl.spark.correlate import Correlated, CorrelationState
from warehouse.load_package import JSON, LoadId, LoadPackages, Settlement

__all__ = ["Settled", "recall", "settle"]

# Names that begin with _ are the pipeline's own: the warehouse does not see them.
_RESULTS, _ASIDE, _LATE = "_results", "_aside", "_late_"


@dataclass(frozen=True)
class Settled:
    """The correlated rows of a load, and the version of the codes that translate them."""

    correlated: Correlated
    codes_version: int


def settle(packages: LoadPackages, load_id: LoadId, attempt: str, settled: Settled) -> Settled:
    """Freeze it; another attempt may have been first, then what that one froze counts."""
    correlated = settled.correlated
    tables = {_RESULTS: correlated.results, _ASIDE: correlated.aside}
    tables |= {f"{_LATE}{side}": late for side, late in correlated.late.items()}
    stamps = {
        name: packages.write_table(load_id, attempt, name, table) for name, table in tables.items() if table.num_rows
    }
    details = {"correlation": correlated.state.to_json(), "codes_version": settled.codes_version}
    rows_in = {str(side): rows for side, rows in correlated.rows_in.items()}
    return _recalled(packages.settle(load_id, stamps, rows_in, cast(Mapping[str, JSON], details)))


def recall(packages: LoadPackages, load_id: LoadId) -> Settled | None:
    """What an earlier attempt settled; None when there was none, or it died before."""
    settlement = packages.find_settlement(load_id)
    return None if settlement is None else _recalled(settlement)


def _recalled(settlement: Settlement) -> Settled:
    def table(name: str) -> pa.Table:
        return settlement.table(name) if name in settlement.tables else pa.table({})

    late = {int(name.removeprefix(_LATE)): table(name) for name in settlement.tables if name.startswith(_LATE)}
    state = CorrelationState.from_json(cast(Mapping[str, object], settlement.details["correlation"]))
    rows_in = {int(side): rows for side, rows in settlement.counts.items()}
    correlated = Correlated(results=table(_RESULTS), late=late, aside=table(_ASIDE), rows_in=rows_in, state=state)
    return Settled(correlated, cast(int, settlement.details["codes_version"]))
