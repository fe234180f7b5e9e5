"""Segment times out of measured windows: isolated segments do not add up, so times are fitted.

Windows of one configuration are explained as `overhead + sum of segments + border bytes`, with
every unknown at least 0, by non-negative least squares (Lawson and Hanson, Solving Least Squares
Problems, 1974, chapter 23) on relative errors. Prior knowledge enters as rows of its own, each
scaled by how sure it is, which makes the result a maximum a posteriori estimate. Windows far off
the rest count less (Huber's weights, Robust Statistics, 1981, by iterative reweighting). The
whole model is met exactly: it weighs most in the fit, and the rest is scaled away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edge_agent.planning.cost import border_bytes
from edge_agent.profiles import Configuration, SegmentTimes, Window
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary

_Vector = npt.NDArray[np.float64]

# Standard deviations, as fractions: of a window beside its timing's own interval (fusion and cache
# state differ at its borders), of a segment's prior, and of overhead and borders in the whole.
_WINDOW_SPREAD = 0.02
_PRIOR_SPREAD = 1.0
_EXTRA_SPREAD = 0.05
# Of the whole: a window of almost no time would outweigh all prior knowledge by more than doubles
# can hold.
_LEAST_SPREAD = 1e-6
_WHOLE_WEIGHT = 1e3
_HUBER_LIMIT = 1.5
_REWEIGHTINGS = 4


def allowed_runs(summary: ModelSummary, refused: Collection[int]) -> tuple[SegmentRange, ...]:
    """The longest runs of segments without `refused` ones, from and to borders of known size.

    Without refusals, it is the whole model.
    """
    runs: list[SegmentRange] = []
    count = len(summary.segments)
    bounds = [-1, *sorted(refused), count]
    for before, after in pairwise(bounds):
        known = [b for b in range(before + 1, after + 1) if border_bytes(summary, b) is not None]
        if len(known) > 1:
            runs.append(SegmentRange(start=known[0], stop=known[-1]))
    return tuple(runs)


def fit_segments(
    summary: ModelSummary,
    windows: Sequence[Window],
    prior: Sequence[float],
    configuration: Configuration,
    refused: Collection[int] = (),
) -> SegmentTimes:
    """Times of all segments in `configuration`, from its measured windows.

    `prior` holds the relative cost of each segment, in any unit. The predicted time of the whole
    model, or of each of `allowed_runs` without the `refused` segments, equals its measured window,
    unless overhead and borders take all of that. A run that was not measured is expected to take
    as much for its cost as those that were. Windows whose border bytes are not known are left out.

    Raises:
        ValueError: the windows of the whole model, or of all allowed runs, are missing, or `prior`
            has another length than the model has segments, or holds something negative.
    """
    count = len(summary.segments)
    if len(prior) != count or min(prior) < 0:
        raise ValueError(f"prior: got {list(prior)}, want {count} numbers of at least 0")
    runs = allowed_runs(summary, refused)
    own = [w for w in windows if w.configuration == configuration]
    tops = {w.segments: w for w in own if w.segments in runs}
    if not tops:
        what = f"{' and '.join(map(str, runs))} of the model" if refused else "the whole model"
        raise ValueError(f"{configuration}: {what} was not measured, it is needed to fit")
    parts = [
        (window, crossing)
        for window in own
        if window.segments not in tops and (crossing := _crossing(summary, window)) is not None
    ]
    expected = _expected(prior, list(tops.values()))
    largest_s = max(w.timing.median_s for w in tops.values())
    whole = [(window, _crossing(summary, window) or 0) for window in tops.values()]
    largest = max((crossing for _, crossing in (*parts, *whole)), default=0)
    scale = np.concatenate(
        [
            expected * _PRIOR_SPREAD,
            [largest_s * _EXTRA_SPREAD, largest_s * _EXTRA_SPREAD / max(largest, 1)],
        ]
    )
    matrix, measured = _rows(parts, count)
    top_matrix, top_measured = _rows(whole, count)
    spread = np.array([_spread(w) * w.timing.median_s for w, _ in parts])
    spread = np.maximum(spread, _LEAST_SPREAD * largest_s)
    top_rows = top_matrix * scale / top_measured[:, None] * _WHOLE_WEIGHT
    solution = _robust(matrix, measured, spread, scale, expected, top_rows)
    if not largest:
        solution[-1] = 0.0
    if refused:
        _meet(solution, top_matrix, top_measured)
        solution[sorted(refused)] = 0.0
    else:
        solution[:-1] *= largest_s / solution[:-1].sum()
    errors = np.abs(matrix @ solution - measured) / measured
    return SegmentTimes(
        configuration=configuration,
        segment_s=tuple(solution[:count].tolist()),
        overhead_s=float(solution[count]),
        border_s_per_byte=float(solution[count + 1]),
        error_fraction=float(np.median(errors)) if len(errors) else 0.0,
        refused=tuple(sorted(refused)),
    )


def _meet(solution: _Vector, rows: _Vector, measured: _Vector) -> None:
    """Scale the segments of each run so that it takes what was measured."""
    for row, run_s in zip(rows, measured, strict=True):
        inside = np.flatnonzero(row[:-2])
        rest_s = run_s - row[-2:] @ solution[-2:]
        total_s = solution[inside].sum()
        if rest_s > 0.0 and total_s > 0.0:
            solution[inside] *= rest_s / total_s


def fit_all(
    summary: ModelSummary,
    windows: Sequence[Window],
    prior: Sequence[float],
    refused: Mapping[Configuration, frozenset[int]],
) -> tuple[SegmentTimes, ...]:
    """Times of every configuration that has `windows`, in the order of `Configuration`.

    One that was measured whole only gets its segments in the proportions of the fastest that has
    parts: its share of a mixed plan would otherwise rest on the prior alone.
    """
    count = len(summary.segments)
    whole_s = {w.configuration: w.timing.median_s for w in windows if len(w.segments) == count}
    divided = {
        w.configuration
        for w in windows
        if w.segments not in allowed_runs(summary, refused.get(w.configuration, ()))
    }
    times: dict[Configuration, SegmentTimes] = {}
    for configuration in sorted({w.configuration for w in windows}, key=lambda c: c not in divided):
        shares: Sequence[float] = prior
        if configuration not in divided:
            alike = min(
                divided & whole_s.keys(),
                key=lambda c: (
                    c.resource != configuration.resource,
                    c.instances != configuration.instances,
                    whole_s[c],
                    c,
                ),
                default=None,
            )
            shares = prior if alike is None else times[alike].segment_s
        times[configuration] = fit_segments(
            summary, windows, shares, configuration, refused.get(configuration, ())
        )
    return tuple(times[c] for c in sorted(times))


def non_negative_least_squares(matrix: _Vector, target: _Vector) -> _Vector:
    """The x >= 0 that makes |matrix x - target| least.

    Lawson and Hanson's active-set method on the normal equations (Bro and de Jong, J. Chemometrics
    11, 1997), begun with every unknown free, because few of ours end at 0. `matrix` must have full
    column rank and columns of similar size, as the rows of prior knowledge guarantee.
    """
    gram = matrix.T @ matrix
    projected = matrix.T @ target
    free = np.ones(len(projected), dtype=np.bool_)
    solution = _solved(gram, projected, free)
    while (solution < 0.0).any():
        free &= solution > 0.0
        solution = _solved(gram, projected, free)
    tolerance = 1e-9 * max(float(np.abs(projected).max(initial=0.0)), 1e-300)
    while True:
        gradient = np.where(free, 0.0, projected - gram @ solution)
        entering = int(gradient.argmax())
        if gradient[entering] <= tolerance:
            return solution
        free[entering] = True
        solution = _descended(gram, projected, free, solution)


def _descended(
    gram: _Vector, projected: _Vector, free: npt.NDArray[np.bool_], start: _Vector
) -> _Vector:
    """From `start`, go towards the best point with `free` unknowns, fixing those that reach 0."""
    here = start
    while True:
        best = _solved(gram, projected, free)
        blocking = free & (best <= 0.0)
        if not blocking.any():
            return best
        step = float((here[blocking] / (here[blocking] - best[blocking])).min(initial=1.0))
        here = here + step * (best - here)
        free &= here > 1e-15 * here.max(initial=0.0)
        here = np.where(free, here, 0.0)


def _solved(gram: _Vector, projected: _Vector, free: npt.NDArray[np.bool_]) -> _Vector:
    solution = np.zeros(len(projected))
    if free.any():
        solution[free] = np.linalg.solve(gram[np.ix_(free, free)], projected[free])
    return solution


def _expected(prior: Sequence[float], tops: Sequence[Window]) -> _Vector:
    """Seconds of each segment by its share of the cost of its run, and by the rate of all runs
    where it is in none."""
    cost: _Vector = np.asarray(prior, dtype=np.float64)
    # By the largest first: sums and parts of very small costs are inexact, or 0.
    share = cost / cost.max() if cost.any() else np.ones_like(cost)
    # A segment without counted work still dispatches its nodes, and a 0 could never be corrected.
    share = share + share.mean() / 100.0
    runs = [(slice(w.segments.start, w.segments.stop), w.timing.median_s) for w in tops]
    rate_s = sum(run_s for _, run_s in runs) / sum(float(share[run].sum()) for run, _ in runs)
    expected: _Vector = share * rate_s
    for run, run_s in runs:
        expected[run] = share[run] / share[run].sum() * run_s
    return expected


def _crossing(summary: ModelSummary, window: Window) -> int | None:
    entering = border_bytes(summary, window.segments.start)
    leaving = border_bytes(summary, window.segments.stop)
    return None if entering is None or leaving is None else entering + leaving


def _rows(parts: Sequence[tuple[Window, int]], count: int) -> tuple[_Vector, _Vector]:
    matrix = np.zeros((len(parts), count + 2))
    for row, (window, crossing) in zip(matrix, parts, strict=True):
        row[window.segments.start : window.segments.stop] = 1.0
        row[count] = 1.0
        row[count + 1] = crossing
    return matrix, np.array([w.timing.median_s for w, _ in parts], dtype=np.float64)


def _spread(window: Window) -> float:
    timing = window.timing
    return _WINDOW_SPREAD + (timing.high_s - timing.low_s) / 4.0 / timing.median_s


def _robust(
    matrix: _Vector,
    measured: _Vector,
    spread: _Vector,
    scale: _Vector,
    expected: _Vector,
    top_rows: _Vector,
) -> _Vector:
    count = len(expected)
    believed = np.concatenate([expected / scale[:count], np.zeros(2)])
    weight = np.ones(len(measured))
    solution: _Vector = scale * believed
    for _ in range(_REWEIGHTINGS):
        rows = matrix * scale * (weight / spread)[:, None]
        target = measured * weight / spread
        stacked = np.vstack([rows, top_rows, np.eye(count + 2)])
        wanted = np.concatenate([target, np.full(len(top_rows), _WHOLE_WEIGHT), believed])
        solution = scale * non_negative_least_squares(stacked, wanted)
        off = np.abs(matrix @ solution - measured) / spread
        # The square root, because the rows are squared: this is Huber's weight on the square.
        weight = np.sqrt(np.minimum(1.0, _HUBER_LIMIT / np.maximum(off, 1e-12)))
    return solution
