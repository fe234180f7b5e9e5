"""The best shares of given routes: linear programs, mixed-integer where memory or a count binds.

Everything is scaled before it is solved, so that numbers of any size are exact to about 1e-7; a
column that is worse by more than `HOPELESS` could carry no share that shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import highspy
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
HOPELESS = 1e8
LEAST_SHARE = 1e-9
SURE_SHARE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What has to be in memory for each route, and how much of it there is."""

    uses: npt.NDArray[np.bool_]
    """(routes, items)"""
    sizes: Floats
    pools: npt.NDArray[np.intp]
    """Which memory each item is in."""
    budgets: Floats


class TooLong(Exception):
    """A program was not solved in the time that it may take."""


class Program:
    """A linear program that is written down row by row, then minimised."""

    most_s: ClassVar[float] = float("inf")
    """How long a solution may take."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.is_integer: list[bool] = []
        self.rows: list[tuple[npt.NDArray[np.intp], Floats, float, float]] = []

    def add_columns(self, cost: Sequence[float] | Floats, *, is_integer: bool = False) -> int:
        """Variables of at least 0, integer ones of at most 1; the index of the first."""
        first = len(self.cost)
        self.cost += [float(c) for c in cost]
        self.is_integer += [is_integer] * len(cost)
        return first

    def add_row(
        self,
        index: Sequence[int] | npt.NDArray[np.intp],
        value: Sequence[float] | Floats,
        *,
        low: float = -np.inf,
        high: float = np.inf,
    ) -> None:
        """low <= sum(value * variable) <= high."""
        self.rows.append((np.asarray(index, dtype=np.intp), np.asarray(value, float), low, high))

    def solve(self) -> Floats | None:
        """The variables at the minimum; None if there is none."""
        count = len(self.cost)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = count, len(self.rows)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_ = np.zeros(count)
        lp.col_upper_ = np.where(self.is_integer, 1.0, highspy.kHighsInf)
        lp.row_lower_ = np.array([row[2] for row in self.rows])
        lp.row_upper_ = np.array([row[3] for row in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in self.rows)])
        lp.a_matrix_.index_ = np.concatenate([row[0] for row in self.rows])
        lp.a_matrix_.value_ = np.concatenate([row[1] for row in self.rows])
        if any(self.is_integer):
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[is_integer] for is_integer in self.is_integer]
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, setting in (
            ("output_flag", False),
            ("threads", 1),
            ("mip_rel_gap", 1e-9),
            ("mip_abs_gap", 1e-9),
            ("mip_feasibility_tolerance", 1e-9),
            ("primal_feasibility_tolerance", 1e-9),
            ("dual_feasibility_tolerance", 1e-9),
            ("time_limit", self.most_s),
        ):
            solver.setOptionValue(option, setting)
        passed = solver.passModel(lp)
        # A warning is that numbers below 1e-9 count as 0.
        assert passed != highspy.HighsStatus.kError, "it cannot be solved with these numbers"
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kTimeLimit:
            raise TooLong(f"not solved in {self.most_s:g} s")
        if status in (
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
        ):
            return None
        assert status == highspy.HighsModelStatus.kOptimal, status
        return np.array(solver.getSolution().col_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Shares of routes, by their index."""

    value: float
    shares: dict[int, float]

    @classmethod
    def of(cls, loads: Floats, shares: dict[int, float]) -> Mixture:
        """With what the busiest resource has to do."""
        return cls(value=float(sum(s * loads[i] for i, s in shares.items()).max()), shares=shares)


def least_busy(
    loads: Floats, residency: Residency | None = None, most_routes: int | None = None
) -> Mixture:
    """The shares at which the busiest resource has the least to do per request.

    `loads` are seconds per (route, resource). There must be at least one route, and each must fit
    by itself.
    """
    alone = loads.max(axis=1)
    first = int(alone.argmin())
    best = float(alone[first])
    if best == 0.0 or most_routes == 1:
        return Mixture(value=best, shares={first: 1.0})
    kept = np.flatnonzero(alone <= best * HOPELESS)
    if residency is None:
        kept = kept[undominated(loads[kept])]
    scaled = loads[kept] / best
    program = Program()
    shares = program.add_columns(np.zeros(len(kept)))
    busiest = program.add_columns([1.0])
    for column in scaled.T:
        used = np.flatnonzero(column)
        if len(used):
            program.add_row([*used, busiest], [*column[used], -1.0], high=0.0)
    found = _solved(program, shares, kept, residency, most_routes)
    assert found is not None
    # Never more than so many times better than the best route as there are resources, so that the
    # scale is right.
    # The solver's tolerance may be a large part of a tiny share, and that all of a slow route.
    greater = {i: s for i, s in found.items() if s > SURE_SHARE}
    whole = sum(greater.values())
    without = Mixture.of(loads, {i: s / whole for i, s in greater.items()})
    every = Mixture.of(loads, found), without, _evened(loads, sorted(found))
    return min(every, key=lambda mixture: mixture.value)


def _evened(loads: Floats, support: list[int]) -> Mixture:
    """The best shares of routes that fit together, counted in the time that each takes: so the
    share of a very slow route is as exact as that of a quick one."""
    alone = loads[support].max(axis=1)
    if not alone.all():
        return Mixture(value=0.0, shares={support[int(alone.argmin())]: 1.0})
    program = Program()
    times = program.add_columns(np.zeros(len(support)))
    busiest = program.add_columns([1.0])
    for column in (loads[support] / alone[:, None]).T:
        used = np.flatnonzero(column)
        if len(used):
            program.add_row([*(times + used), busiest], [*column[used], -1.0], high=0.0)
    program.add_row(times + np.arange(len(support)), alone.min() / alone, low=1.0, high=1.0)
    solution = program.solve()
    assert solution is not None
    shares = np.maximum(solution[times : times + len(support)], 0.0) / alone
    shares /= shares.sum()
    return Mixture.of(loads, dict(zip(support, shares.tolist(), strict=True)))


def cheapest(
    costs: Floats,
    loads: Floats,
    rate: float,
    residency: Residency | None = None,
    most_routes: int | None = None,
) -> Mixture | None:
    """The shares of least mean cost at which `rate` requests per second go through; None if there
    are none."""
    quickest = least_busy(loads, residency, most_routes)
    if quickest.value * rate > 1 + 1e-9:
        return None
    busy = loads * rate
    best = quickest
    scale = float(sum(s * costs[i] for i, s in quickest.shares.items()))
    for _ in range(8):
        if scale == 0.0:
            return Mixture(value=0.0, shares=best.shares)
        kept = np.flatnonzero((busy.max(axis=1) <= HOPELESS) & (costs <= scale * HOPELESS))
        if residency is None:
            kept = kept[undominated(np.column_stack([costs[kept], loads[kept]]))]
        program = Program()
        shares = program.add_columns(costs[kept] / scale)
        for column in busy[kept].T:
            used = np.flatnonzero(column)
            if len(used):
                program.add_row(used, column[used], high=1.0)
        found = _solved(program, shares, kept, residency, most_routes)
        if found is None:
            return Mixture(value=scale, shares=best.shares)
        value = float(sum(s * costs[i] for i, s in found.items()))
        best = Mixture(value=value, shares=found)
        if value > 0.1 * scale:
            return best
        scale = value
    return best


def least_peak(
    loads: Floats, rate: float, residency: Residency, most_routes: int | None = None
) -> Mixture | None:
    """The shares at which `rate` requests per second go through with the least in the fullest
    memory; the value is bytes."""
    busy = loads * rate
    kept = np.flatnonzero(busy.max(axis=1) <= HOPELESS)
    if not len(kept):
        return None
    program = Program()
    shares = program.add_columns(np.zeros(len(kept)))
    for column in busy[kept].T:
        used = np.flatnonzero(column)
        if len(used):
            program.add_row(used, column[used], high=1.0)
    found = _solved(program, shares, kept, residency, most_routes, is_peak_minimised=True)
    if found is None:
        return None
    held = residency.uses[sorted(found)].any(axis=0)
    in_pools = np.bincount(
        residency.pools[held], residency.sizes[held], minlength=len(residency.budgets)
    )
    return Mixture(value=float(in_pools.max()), shares=found)


def _solved(
    program: Program,
    shares: int,
    kept: npt.NDArray[np.intp],
    residency: Residency | None,
    most_routes: int | None,
    *,
    is_peak_minimised: bool = False,
) -> dict[int, float] | None:
    """Shares by route, where the program has a share for each of `kept`."""
    count = len(kept)
    every = np.arange(shares, shares + count)
    program.add_row(every, np.ones(count), low=1.0, high=1.0)
    if residency is not None:
        _add_residency(program, shares, kept, residency, is_peak_minimised=is_peak_minimised)
    if most_routes is not None and most_routes < count:
        deployed = program.add_columns(np.zeros(count), is_integer=True)
        for i in range(count):
            program.add_row([shares + i, deployed + i], [1.0, -1.0], high=0.0)
        program.add_row(np.arange(deployed, deployed + count), np.ones(count), high=most_routes)
    solution = program.solve()
    if solution is None:
        return None
    found = {
        int(kept[i]): float(share)
        for i, share in enumerate(solution[shares : shares + count])
        if share > LEAST_SHARE
    }
    total = sum(found.values())
    return {route: share / total for route, share in found.items()}


def _add_residency(
    program: Program,
    shares: int,
    kept: npt.NDArray[np.intp],
    residency: Residency,
    *,
    is_peak_minimised: bool,
) -> None:
    uses = residency.uses[kept]
    alone = [
        np.bincount(residency.pools[row], residency.sizes[row], minlength=1).max() for row in uses
    ]
    scale = float(min(alone)) or float(residency.sizes.sum()) or 1.0
    peak = program.add_columns([1.0]) if is_peak_minimised else None
    held = {}
    # What the same routes use is there together: one variable, with all their sizes.
    alike: dict[tuple[int, bytes], list[int]] = {}
    for item in np.flatnonzero(uses.any(axis=0)):
        alike.setdefault((int(residency.pools[item]), uses[:, item].tobytes()), []).append(
            int(item)
        )
    for (pool, _), items in alike.items():
        column = program.add_columns([0.0], is_integer=True)
        held[column] = (pool, float(residency.sizes[items].sum()))
        users = shares + np.flatnonzero(uses[:, items[0]])
        program.add_row([*users, column], [*np.ones(len(users)), -1.0], high=0.0)
    for pool, budget in enumerate(residency.budgets):
        columns = [c for c, (where, size) in held.items() if where == pool and size > 0]
        sizes = [held[c][1] for c in columns]
        if not columns:
            continue
        if peak is not None:
            program.add_row([*columns, peak], [*(s / scale for s in sizes), -1.0], high=0.0)
        if sum(sizes) > budget:
            whole = float(budget) or 1.0
            program.add_row(columns, [s / whole for s in sizes], high=float(budget > 0))


def undominated(points: Floats) -> npt.NDArray[np.intp]:
    """Indices of the rows than which no other is as small in every column; of equal ones the
    first."""
    left = np.argsort(points.sum(axis=1), kind="stable")
    found = []
    while len(left):
        first = left[0]
        found.append(first)
        left = left[1:]
        left = left[~(points[first] <= points[left]).all(axis=1)]
    return np.array(found, dtype=np.intp)
