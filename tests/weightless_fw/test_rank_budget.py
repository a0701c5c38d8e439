from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightless_fw.core.rank_budget import RankBudgetError, RankUnit, spend

GAINS = st.lists(st.integers(0, 20), min_size=1, max_size=3).map(
    lambda values: np.array(sorted(values, reverse=True), float)
)


def gained(units: dict[str, RankUnit], ranks: dict[str, int]) -> float:
    return sum(unit.weight * float(unit.gains[: ranks[n]].sum()) for n, unit in units.items())


def paid(units: dict[str, RankUnit], ranks: dict[str, int]) -> int:
    return sum(unit.column_bytes * ranks[name] for name, unit in units.items())


def best(units: dict[str, RankUnit], budget: int) -> float:
    """Every combination of ranks."""
    names, ranges = list(units), [range(len(u.gains) + 1) for u in units.values()]
    choices = (dict(zip(names, ranks, strict=True)) for ranks in product(*ranges))
    return max(gained(units, c) for c in choices if paid(units, c) <= budget)


@given(
    gains=st.lists(GAINS, min_size=1, max_size=3),
    weights=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    budget=st.integers(0, 12),
)
def test_columns_of_one_price_are_bought_optimally(
    gains: list[np.ndarray], weights: list[int], budget: int
) -> None:
    units = {
        str(i): RankUnit(g, column_bytes=2, weight=w)
        for i, (g, w) in enumerate(zip(gains, weights, strict=False))
    }
    ranks = spend(units, budget)
    assert paid(units, ranks) <= budget
    assert gained(units, ranks) == best(units, budget)


@given(
    gains=st.lists(GAINS, min_size=2, max_size=3),
    prices=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    budget=st.integers(0, 20),
)
def test_unequal_prices_miss_the_best_by_one_column_at_most(
    gains: list[np.ndarray], prices: list[int], budget: int
) -> None:
    """The knapsack's known bound: what greedy takes, and the one column that
    did not fit, are together at least the optimum."""
    units = {
        str(i): RankUnit(g, column_bytes=p)
        for i, (g, p) in enumerate(zip(gains, prices, strict=False))
    }
    ranks = spend(units, budget)
    assert paid(units, ranks) <= budget
    assert gained(units, ranks) + max(float(u.gains[0]) for u in units.values()) >= best(
        units, budget
    )


def test_the_better_gain_per_byte_goes_first() -> None:
    units = {
        "wide": RankUnit(np.array([10.0, 9.0]), column_bytes=10),
        "narrow": RankUnit(np.array([4.0, 1.0]), column_bytes=2),
    }
    assert spend(units, 2) == {"wide": 0, "narrow": 1}
    assert spend(units, 12) == {"wide": 1, "narrow": 1}


def test_a_weight_counts() -> None:
    gains = np.array([3.0])
    units = {"a": RankUnit(gains, 1), "b": RankUnit(gains, 1, weight=2.0)}
    assert spend(units, 1) == {"a": 0, "b": 1}


def test_columns_that_gain_nothing_are_not_bought() -> None:
    assert spend({"a": RankUnit(np.array([1.0, 0.0, 0.0]), 1)}, 100) == {"a": 1}


def test_what_cannot_be_spent_is_refused() -> None:
    with pytest.raises(RankBudgetError, match="-1 bytes"):
        spend({}, -1)
    with pytest.raises(RankBudgetError, match="unit a: gains must fall"):
        spend({"a": RankUnit(np.array([1.0, 2.0]), 1)}, 4)
