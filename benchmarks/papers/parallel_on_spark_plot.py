"""The plot of a stream being balanced: each slot's share of work over the loads, and how many slots there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")  # files only: no display is asked for

import numpy as np
from matplotlib import pyplot as plt


class Load(NamedTuple):
    """Each slot's work as a share of what it can do; the groups that moved after the load, and why."""

    work: tuple[float, ...]
    moves: int
    reason: str


def write_plot(loads: Sequence[Load], path: Path) -> None:
    most = max(len(load.work) for load in loads)
    _, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 5), height_ratios=(3, 1), layout="constrained")
    for slot in range(most):
        shares = [load.work[slot] if slot < len(load.work) else np.nan for load in loads]
        above.plot(shares, marker=".", label=f"slot {slot}")
    above.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    above.set_ylabel("work, as a share of\nwhat a slot can do")
    above.legend(ncols=most, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 1.15))
    below.step(range(len(loads)), [len(load.work) for load in loads], where="mid", color="black", label="slots")
    below.bar(range(len(loads)), [load.moves for load in loads], color="tab:orange", label="groups moved after")
    below.set_xlabel("load")
    below.legend(fontsize="small")
    plt.savefig(path, dpi=100)
    plt.close()
