"""What becomes of a plan for single shapes, from what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.builder.specialised import judged
from edge_agent.plans import CandidatePlan
from edge_agent.profiles import RatioInterval
from edge_agent.profiling.verify import Verification
from tests import made_plans

CONTROL = RatioInterval(median=1.0, low=0.99, high=1.01, pairs=20)
PLAN = replace(
    made_plans.PLAN,
    reason="why",
    plain_over_plan=RatioInterval(median=2.0, low=1.9, high=2.1, pairs=20),
)
CHOSEN = CandidatePlan(subgraphs=(), predicted_s=1.0, predicted_per_s=1.0)


def verification(chosen: CandidatePlan | None, ratio: RatioInterval | None = None) -> Verification:
    return Verification(
        chosen=chosen,
        reason="why",
        ratio=ratio,
        control=CONTROL,
        measured_s=None,
        plain_s=None,
        parts_s=(),
        rejections=(),
    )


def ratio(low: float) -> RatioInterval:
    return RatioInterval(median=low + 0.05, low=low, high=low + 0.1, pairs=20)


def test_beside_a_plain_general_plan_what_beat_plain_is_used() -> None:
    plan, is_used = judged(PLAN, verification(CHOSEN), None)
    assert is_used
    assert plan == replace(PLAN, is_specialised=True, general_over_plan=PLAN.plain_over_plan)


def test_beside_a_plain_general_plan_plain_is_nothing_new() -> None:
    plan, is_used = judged(replace(PLAN, plain_over_plan=None), verification(None), None)
    assert not is_used
    assert plan.reason == "the general plan serves these shapes: why"


@pytest.mark.parametrize("chosen", [CHOSEN, None])
@pytest.mark.parametrize(("low", "is_used"), [(1.02, True), (1.0, False), (0.9, False)])
def test_another_general_plan_must_be_beaten_beyond_the_noise(
    chosen: CandidatePlan | None, low: float, is_used: bool
) -> None:
    """By what was chosen, or by plain ONNX Runtime if nothing was."""
    plan, used = judged(PLAN, verification(chosen), verification(chosen, ratio(low)))
    assert used is is_used
    assert plan.general_over_plan == ratio(low)
    assert plan.is_specialised
    assert plan.reason.startswith("the general plan serves these shapes") is not is_used
    assert "general over this plan" in plan.reason
