"""Fits against made-up truths; the least-squares solver against its optimality conditions."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_agent.planning.cost import border_bytes, subgraph_s
from edge_agent.profiles import Timing, Window
from edge_agent.profiling.fit import allowed_runs, fit_segments, non_negative_least_squares
from edge_agent.profiling.windows import window_levels
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary
from tests.planning.made_models import chain, configuration

ONE = configuration()
TWO = configuration(threads=2)


def window(start: int, stop: int, took_s: float, which: object = ONE) -> Window:
    timing = Timing(median_s=took_s, low_s=took_s, high_s=took_s, samples=9)
    segments = SegmentRange(start=start, stop=stop)
    return Window(segments=segments, configuration=which, timing=timing)  # type: ignore[arg-type]


class Truth:
    """A model whose subgraphs take exactly what the cost model says, times noise."""

    def __init__(self, seed: int, count: int, noise: float) -> None:
        self.rng = random.Random(seed)
        crossing = [self.rng.choice([10_000, 200_000, 3_000_000]) for _ in range(count - 1)]
        self.model = chain(count, crossing)
        self.segment_s = [self.rng.uniform(0.2e-3, 3e-3) for _ in range(count)]
        self.overhead_s = 0.02 * sum(self.segment_s) * self.rng.random()
        self.border_s_per_byte = 2e-10
        self.noise = noise

    def exact_s(self, start: int, stop: int) -> float:
        crossing = (border_bytes(self.model, start) or 0) + (border_bytes(self.model, stop) or 0)
        return self.overhead_s + sum(self.segment_s[start:stop]) + self.border_s_per_byte * crossing

    def measured(self, part: SegmentRange) -> Window:
        exact_s = self.exact_s(part.start, part.stop)
        return window(part.start, part.stop, exact_s * self.rng.lognormvariate(0.0, self.noise))

    def prior(self, factor: float) -> list[float]:
        return [s * self.rng.uniform(1 / factor, factor) for s in self.segment_s]

    def windows(self, prior: list[float]) -> list[Window]:
        whole = SegmentRange(start=0, stop=len(self.segment_s))
        parts = [part for level in window_levels(self.model, prior) for part in level]
        return [window(0, whole.stop, self.exact_s(0, whole.stop)), *map(self.measured, parts)]


def ranges(model: ModelSummary) -> list[SegmentRange]:
    count = len(model.segments)
    return [SegmentRange(start=i, stop=j) for i in range(count) for j in range(i + 1, count + 1)]


@pytest.mark.parametrize("seed", range(10))
def test_a_made_up_truth_is_recovered_within_its_noise(seed: int) -> None:
    truth = Truth(seed, count=8, noise=0.01)
    prior = truth.prior(factor=2.0)
    windows = truth.windows(prior)
    fitted = fit_segments(truth.model, windows, prior, ONE)
    resolved = {end for w in windows for end in (w.segments.start, w.segments.stop)}
    for part in ranges(truth.model):
        if {part.start, part.stop} <= resolved:
            exact_s = truth.exact_s(part.start, part.stop)
            assert subgraph_s(truth.model, fitted, part) == pytest.approx(exact_s, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_more_segments_than_windows_lean_on_the_prior(seed: int) -> None:
    truth = Truth(seed, count=40, noise=0.01)
    prior = truth.prior(factor=1.3)
    fitted = fit_segments(truth.model, truth.windows(prior), prior, ONE)
    errors = [
        abs(subgraph_s(truth.model, fitted, part) / truth.exact_s(part.start, part.stop) - 1)
        for part in ranges(truth.model)
        if len(part) >= 5
    ]
    assert np.median(errors) < 0.02
    assert max(errors) < 0.15


@pytest.mark.parametrize("seed", range(10))
def test_one_window_far_off_changes_little(seed: int) -> None:
    truth = Truth(seed, count=16, noise=0.005)
    prior = truth.prior(factor=1.5)
    good = truth.windows(prior)
    spoiled = list(good)
    victim = 1 + seed % (len(good) - 1)
    bad = good[victim]
    spoiled[victim] = window(bad.segments.start, bad.segments.stop, bad.timing.median_s * 1.31)
    half = SegmentRange(start=0, stop=8)
    fitted = fit_segments(truth.model, spoiled, prior, ONE)
    assert subgraph_s(truth.model, fitted, half) == pytest.approx(truth.exact_s(0, 8), rel=0.08)


@given(
    st.lists(st.floats(0.0, 1e3), min_size=1, max_size=12),
    st.floats(1e-5, 10.0),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12), st.floats(1e-6, 20.0)), max_size=20),
)
@example([11.0, 61.0, 0.0, 0.0, 0.0, 0.0, 1.0], 7.0, [(0, 2, 1.0), (0, 2, 1e-06)])
@settings(max_examples=80, deadline=None)
def test_the_whole_is_exactly_met_and_nothing_is_negative(
    prior: list[float], whole_s: float, parts: list[tuple[int, int, float]]
) -> None:
    count = len(prior)
    model = chain(count)
    windows = [window(0, count, whole_s)]
    windows += [
        window(start, stop, took_s)
        for start, stop, took_s in parts
        if start < stop <= count and stop - start < count
    ]
    fitted = fit_segments(model, windows, prior, ONE)
    whole = SegmentRange(start=0, stop=count)
    assert subgraph_s(model, fitted, whole) == pytest.approx(whole_s, rel=1e-6)
    assert min(fitted.segment_s) >= 0
    assert fitted.overhead_s >= 0
    assert fitted.border_s_per_byte >= 0


def test_costs_next_to_nothing_are_costs() -> None:
    """The smallest number that there is, of which no part can be taken."""
    windows = [window(0, 2, 1.0), window(0, 1, 0.25)]
    with np.errstate(all="raise"):
        fitted = fit_segments(chain(2), windows, [0.0, 5e-324], ONE)
    whole = SegmentRange(start=0, stop=2)
    assert subgraph_s(chain(2), fitted, whole) == pytest.approx(1.0, rel=1e-6)


def test_with_the_whole_alone_the_prior_is_scaled_to_it() -> None:
    fitted = fit_segments(chain(3), [window(0, 3, 0.6)], [1.0, 2.0, 3.0], ONE)
    assert fitted.segment_s == pytest.approx((0.1, 0.2, 0.3), rel=0.02)
    assert fitted.overhead_s == pytest.approx(0.0, abs=1e-3)
    assert fitted.error_fraction == 0.0


def test_windows_of_other_configurations_do_not_count() -> None:
    own = [window(0, 2, 1.0), window(0, 1, 0.25)]
    other = [window(0, 2, 9.0, TWO), window(0, 1, 8.0, TWO)]
    assert fit_segments(chain(2), own + other, [1, 1], ONE) == fit_segments(
        chain(2), own, [1, 1], ONE
    )


def test_a_window_with_a_border_of_unknown_size_is_left_out() -> None:
    fitted = fit_segments(chain(2, [None]), [window(0, 2, 1.0), window(0, 1, 0.9)], [1, 1], ONE)
    assert fitted.segment_s == pytest.approx((0.5, 0.5), rel=0.01)


def test_without_the_whole_there_is_no_fit() -> None:
    with pytest.raises(ValueError, match="the whole model was not measured"):
        fit_segments(chain(2), [window(0, 1, 1.0)], [1, 1], ONE)


def test_the_runs_between_refusals_begin_and_end_at_borders_of_known_size() -> None:
    model = chain(8, [0, None, 0, 0, None, 0, 0])
    assert [str(r) for r in allowed_runs(model, [])] == ["0-7"]
    assert [str(r) for r in allowed_runs(model, [3])] == ["0-2", "4-7"]
    assert [str(r) for r in allowed_runs(model, [2, 4])] == ["0", "3", "6-7"]
    assert allowed_runs(model, range(8)) == ()


@pytest.mark.parametrize("seed", range(10))
def test_with_refused_segments_the_runs_between_them_are_met_exactly(seed: int) -> None:
    truth = Truth(seed, count=12, noise=0.01)
    prior = truth.prior(factor=1.5)
    refused = [3, 4]
    tops = allowed_runs(truth.model, refused)
    assert [str(r) for r in tops] == ["0-2", "5-11"]
    inner = [SegmentRange(start=a, stop=b) for a, b in ((5, 8), (8, 12), (0, 1), (6, 10))]
    windows = [truth.measured(part) for part in (*tops, *inner)]
    fitted = fit_segments(truth.model, windows, prior, ONE, refused)
    assert fitted.refused == (3, 4)
    assert fitted.segment_s[3:5] == (0.0, 0.0)
    assert min(fitted.segment_s[:3] + fitted.segment_s[5:]) > 0.0
    for part, measured in zip(tops, windows, strict=False):
        assert subgraph_s(truth.model, fitted, part) == pytest.approx(measured.timing.median_s)
    for part in inner:
        exact_s = truth.exact_s(part.start, part.stop)
        assert subgraph_s(truth.model, fitted, part) == pytest.approx(exact_s, rel=0.1)


def test_a_run_that_was_not_measured_takes_as_long_for_its_cost_as_the_others() -> None:
    model = chain(5, [0, 0, 0, 0])
    windows = [window(0, 2, 0.3)]
    fitted = fit_segments(model, windows, [1.0, 2.0, 7.0, 1.0, 3.0], ONE, refused=[2])
    assert fitted.segment_s == pytest.approx((0.1, 0.2, 0.0, 0.1, 0.3), rel=0.05)


def test_without_any_allowed_run_there_is_no_fit() -> None:
    with pytest.raises(ValueError, match="0 and 2 of the model was not measured"):
        fit_segments(chain(3), [window(0, 3, 1.0)], [1, 1, 1], ONE, refused=[1])


@pytest.mark.parametrize("prior", [[1.0], [1.0, -1.0]])
def test_a_prior_of_wrong_length_or_sign_is_refused(prior: list[float]) -> None:
    with pytest.raises(ValueError, match="prior"):
        fit_segments(chain(2), [window(0, 2, 1.0)], prior, ONE)


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_the_solution_meets_the_conditions_of_an_optimum(
    seed: int, unknowns: int, more_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.vstack([rng.normal(size=(more_rows, unknowns)), 0.3 * np.eye(unknowns)])
    target = rng.normal(size=unknowns + more_rows)
    solution = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (matrix @ solution - target)
    assert (solution >= 0).all()
    assert (gradient >= -1e-7).all()
    assert np.abs(gradient * solution).max() < 1e-7
