"""Where two plans of one model choose differently, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import Layout
from edge_agent.planning.explain import explain, plain_candidate
from edge_agent.planning.flips import flips, render_flips
from edge_agent.plans import ExecutionPlan, Target
from tests.planning.made_models import (
    IDLE,
    PROCESSOR,
    configuration,
    latency_profile,
    segment,
    summary,
    times,
)

NCHW, BLOCKED = configuration(Layout.NCHW), configuration(Layout.BLOCKED)


def plan(nchw_s: list[float], blocked_s: list[float] | None, nodes: int = 3) -> ExecutionPlan:
    """A plan of a chain of equal segments with these times."""
    model = summary([segment(i, nodes=nodes) for i in range(len(nchw_s))])
    measured = [times(NCHW, nchw_s)]
    if blocked_s is not None:
        measured.append(times(BLOCKED, blocked_s))
    return explain(
        model,
        latency_profile(model, measured),
        plain_candidate(model, BLOCKED, 1.0),
        target=Target.LATENCY,
        is_plain=True,
        reason="",
        state=IDLE,
        processor=PROCESSOR,
    )


def test_only_the_stretches_whose_fastest_configuration_differs_are_told() -> None:
    general = plan([1e-3, 5e-3, 1e-3], [2e-3, 4e-3, 3e-3])
    here = plan([9e-3, 9e-3, 1e-3], [6e-3, 8e-3, 2e-3])
    (flip,) = flips(general, here)
    assert flip.nodes == (0, 3)
    assert flip.operators == (("Conv", 3),)
    assert (flip.general_best, flip.best) == (NCHW, BLOCKED)
    assert flip.general_best_s == pytest.approx((1e-3, 9e-3))
    assert flip.best_s == pytest.approx((2e-3, 6e-3))


def test_neighbours_that_flip_alike_are_one() -> None:
    general = plan([1e-3, 1e-3, 5e-3], [2e-3, 2e-3, 4e-3])
    here = plan([9e-3, 9e-3, 1e-3], [6e-3, 6e-3, 2e-3])
    first, second = flips(general, here)
    assert (first.nodes, second.nodes) == ((0, 6), (6, 9))
    assert first.operators == (("Conv", 6),)
    assert first.general_best_s == pytest.approx((2e-3, 18e-3))
    assert (second.general_best, second.best) == (BLOCKED, NCHW)


def test_other_cuts_are_compared_between_those_that_both_have() -> None:
    general = plan([1e-3, 2e-3], [2e-3, 3e-3], nodes=3)
    here = plan([7e-3], [5e-3], nodes=6)
    (flip,) = flips(general, here)
    assert flip.nodes == (0, 6)
    assert flip.general_best_s == pytest.approx((3e-3, 7e-3))
    assert flip.best_s == pytest.approx((5e-3, 5e-3))


def test_what_was_not_measured_for_the_other_shapes_is_not_known() -> None:
    (flip,) = flips(plan([1e-3], None), plan([9e-3], [6e-3]))
    assert flip.best_s == (None, pytest.approx(6e-3))
    assert " - " in render_flips(plan([1e-3], None), plan([9e-3], [6e-3]))


def test_the_text_has_both_times_for_both_shapes() -> None:
    text = render_flips(plan([1e-3], [2e-3]), plan([9e-3], [6e-3]))
    head, titles, row = text.splitlines()
    assert head.startswith("Where the fastest differs")
    assert titles.split()[:2] == ["nodes", "operators"]
    assert row.split() == ["0-2", "Conv×3", "cpu/NCHW/1t", "1", "9", "cpu/blocked/1t", "2", "6"]


def test_without_a_difference_or_a_profile_the_text_says_so() -> None:
    same = plan([1e-3], [2e-3])
    assert flips(same, same) == ()
    assert render_flips(same, same).startswith("Everywhere, what is fastest for these shapes")
    unprofiled = replace(same, segments=())
    assert flips(unprofiled, same) == ()
    assert "was not profiled" in render_flips(unprofiled, same)
