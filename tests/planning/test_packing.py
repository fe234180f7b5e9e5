"""The linear programmes against HiGHS, and where they are degenerate or without a limit."""

from __future__ import annotations

import highspy
import numpy as np
import pytest

from edge_agent.planning.packing import Packing
from edge_agent.planning.tables import Floats


def exact_value(amounts: Floats, profits: Floats, limits: Floats) -> float:
    """The greatest profit, by HiGHS; infinity if it has no limit."""
    rows, columns = amounts.shape
    programme = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = columns, rows
    programme.col_cost_ = -profits
    programme.col_lower_ = np.zeros(columns)
    programme.col_upper_ = np.full(columns, np.inf)
    programme.row_lower_ = np.full(rows, -np.inf)
    programme.row_upper_ = limits
    programme.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    programme.a_matrix_.start_ = np.arange(columns + 1) * rows
    programme.a_matrix_.index_ = np.tile(np.arange(rows), columns)
    programme.a_matrix_.value_ = amounts.T.ravel()
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(programme)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return float("inf")
    return -float(solver.getInfo().objective_function_value)


@pytest.mark.parametrize("seed", range(60))
def test_random_programmes_reach_the_exact_value_when_columns_come_later(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 30)), int(rng.integers(2, 60))
    amounts = rng.random((rows, columns)) * (rng.random((rows, columns)) < 0.4)
    amounts[rng.integers(rows)] += rng.random(columns) + 0.01
    if seed % 3 == 0:  # many ties
        amounts = np.round(amounts * 3)
        amounts[0] += 1.0
    if seed % 4 == 0:  # means that must not be above 0
        amounts[-1] -= rng.random(columns) < 0.5
    limits = rng.random(rows)
    limits[rng.random(rows) < 0.1] = 0.0
    profits = rng.random(columns) if seed % 2 else np.ones(columns)
    want = exact_value(amounts, profits, limits)
    half = columns // 2
    packing = Packing(limits)

    def reached() -> float:
        packing.add(amounts[:, :half], profits[:half])
        packing.solve()
        packing.add(amounts[:, half:], profits[half:])
        packing.solve()
        return packing.value

    if np.isinf(want):
        with pytest.raises(ValueError, match="no limit"):
            reached()
        return
    assert reached() == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert (amounts @ packing.solution <= limits + 1e-9).all()
    assert (packing.solution >= 0.0).all()
    # What the limits are worth is worth as much as the solution.
    assert packing.duals @ limits == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert (packing.duals @ amounts >= profits - 1e-9).all()


def test_other_profits_move_the_solution_from_where_it_was() -> None:
    packing = Packing(np.array([1.0, 1.0]))
    packing.add(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([1.0, 0.0]))
    packing.solve()
    assert packing.solution.tolist() == [0.5, 0.0]
    packing.reprice(np.array([1.0, 1.0]))
    packing.solve()
    assert packing.solution == pytest.approx([1 / 3, 1 / 3])


def test_nothing_is_taken_where_nothing_brings_a_profit() -> None:
    packing = Packing(np.array([1.0]))
    packing.add(np.array([[1.0]]), np.array([0.0]))
    assert packing.solve() == 0
    assert packing.solution.tolist() == [0.0]


def test_a_column_that_can_hardly_be_used_still_gives_its_limit_a_price() -> None:
    packing = Packing(np.array([1.0, 1.0]))
    packing.add(np.array([[1.0, 0.0], [0.0, 1e12]]), np.array([1.0, 1.0]))
    packing.solve()
    assert packing.solution == pytest.approx([1.0, 1e-12])
    assert packing.duals == pytest.approx([1.0, 1e-12])


def test_a_limit_that_is_used_up_stays_so_whatever_it_costs() -> None:
    packing = Packing(np.array([1.0, 1.0]))
    packing.add(np.array([[2.0, 0.5, 0.25], [1.0, 1.0, 1.0]]), np.ones(3))
    packing.solve()
    assert packing.solution.sum() == pytest.approx(1.0)
    packing.reprice(np.array([-1.0, -2.0, -4.0]))
    packing.use_up(1, 100.0)
    packing.solve()
    # A third of the cheap one that is slow, and the rest of what is between.
    assert packing.solution == pytest.approx([1 / 3, 2 / 3, 0.0])
    assert packing.value == pytest.approx(-5 / 3)
    packing.let_go(1)
    packing.solve()
    assert packing.solution == pytest.approx([0.0, 0.0, 0.0])
