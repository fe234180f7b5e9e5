"""What a plan says of the measurement that chose it."""

from __future__ import annotations

from edge_agent.builder.building import with_difference
from edge_agent.plans import CandidatePlan
from edge_agent.profiling.verify import Verification

HALF = CandidatePlan(subgraphs=(), predicted_s=1.0, predicted_per_s=1.0)


def verification(chosen: CandidatePlan | None) -> Verification:
    return Verification(
        chosen=chosen,
        reason="it is faster",
        ratio=None,
        control=None,
        measured_s=None,
        plain_s=None,
        parts_s=(),
        rejections=(),
    )


def test_a_plan_in_float16_says_how_far_off_it_was_and_may_be() -> None:
    told = with_difference(verification(HALF), {HALF: 0.00123}, 0.01)
    assert told.reason == (
        "it is faster; in float16, outputs were off by at most 0.0012 of their range, where 0.01 "
        "is allowed"
    )


def test_other_plans_say_nothing_of_it() -> None:
    assert with_difference(verification(HALF), {}, 0.01) == verification(HALF)
    assert with_difference(verification(None), {HALF: 0.1}, 0.01) == verification(None)
