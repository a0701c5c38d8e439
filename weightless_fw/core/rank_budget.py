"""Spends a budget of bytes on ranks.

A unit is a set of matrices that get one common rank: all layers of one
projection and one attention kind, since they share one compiled body. One more
column in a unit lowers the error by its next squared singular value and costs
a fixed number of bytes. Gains fall within a unit, so taking the best gain per
byte first is optimal whenever the budget ends where a column does.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


class RankBudgetError(ValueError):
    """The budget cannot be spent as asked; the message says why."""


@dataclass(frozen=True)
class RankUnit:
    """Matrices that get one common rank."""

    gains: npt.NDArray[np.float64]
    """[ranks]: squared whitened singular values, summed over the matrices, falling."""

    column_bytes: int
    """Bytes that one more column of U and V costs, over all the matrices."""

    weight: float = 1.0
    """How much the unit's error counts."""


def spend(units: Mapping[Hashable, RankUnit], budget_bytes: int) -> dict[Hashable, int]:
    """The rank of every unit within ``budget_bytes``.

    Columns are taken by gain times weight per byte. A column that no longer
    fits ends its unit; cheaper ones of other units may still be taken.

    Raises:
        RankBudgetError: The budget is negative or a unit's gains rise.
    """
    if budget_bytes < 0:
        raise RankBudgetError(f"a budget of {budget_bytes} bytes: it must be at least 0")
    for name, unit in units.items():
        if unit.column_bytes <= 0 or (np.diff(unit.gains) > 1e-9 * np.max(unit.gains)).any():
            raise RankBudgetError(f"unit {name}: gains must fall and a column must cost bytes")
    ranks = dict.fromkeys(units, 0)
    left = budget_bytes
    queue = [(-_rate(unit, 0), i, name) for i, (name, unit) in enumerate(units.items())]
    heapq.heapify(queue)
    while queue:
        rate, order, name = heapq.heappop(queue)
        unit = units[name]
        if rate == 0 or unit.column_bytes > left:
            continue
        left -= unit.column_bytes
        ranks[name] += 1
        if ranks[name] < len(unit.gains):
            heapq.heappush(queue, (-_rate(unit, ranks[name]), order, name))
    return ranks


def _rate(unit: RankUnit, rank: int) -> float:
    """What the next column gains per byte."""
    if rank >= len(unit.gains):
        return 0.0
    return float(unit.gains[rank]) * unit.weight / unit.column_bytes
