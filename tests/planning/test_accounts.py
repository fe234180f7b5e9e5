"""What is told of a distribution beside its metrics."""

from __future__ import annotations

import pytest

from edge_agent.distributions import Route
from edge_agent.planning.accounts import account
from edge_agent.plans import Target
from tests.planning.made_plans_over_devices import (
    FOUR,
    GPU,
    PI,
    distribution,
    placed,
    problem,
    whole,
)

ON_BOTH = Route(steps=(placed(0, 1, PI, FOUR), placed(1, 3, PI, GPU)))


@pytest.mark.parametrize(
    ("route", "has_power"),
    [(whole(PI, FOUR), True), (whole(PI, GPU), False), (ON_BOTH, False)],
    ids=["cores", "gpu", "both"],
)
def test_the_power_of_a_device_is_known_if_that_of_all_its_used_units_is(
    route: Route, has_power: bool
) -> None:
    # The cores of pi draw 2 to 6 W; of its GPU nothing is known.
    (told,) = account(problem(), distribution(Target.THROUGHPUT, route)).predictions
    assert (told.device, told.has_power) == (PI, has_power)
