"""What the planner makes of a request, before any process is involved."""

from __future__ import annotations

import pytest

from edge_agent.devices import THIS_DEVICE
from edge_agent.distributions import Distribution, Infeasible
from edge_agent.errors import BadRequest
from edge_agent.planner.answering import answer
from edge_agent.planner.posing import pose
from edge_agent.planning.planner import plan
from edge_agent.plans import Bound, Target
from tests.planner.made_problems import GPU, ONE, TWO, A, B, problem, profiled, times


def test_each_target_gets_the_best_plan_in_the_order_asked() -> None:
    asked = (Target.BYTES, Target.LATENCY)
    planned = answer(problem(), asked)
    assert planned.best == tuple(plan(problem(), target) for target in asked)
    assert planned.front == ()
    by_bytes, by_latency = planned.best
    assert isinstance(by_bytes, Distribution)
    assert isinstance(by_latency, Distribution)
    assert by_bytes.metrics.wire_bytes == 0.0
    assert {step.device for step in by_latency.routes[0].steps} == {B}  # type: ignore[union-attr]


def test_energy_is_no_default_target_as_long_as_nobody_knows_the_power() -> None:
    unknown, known = answer(problem()), answer(problem(busy_w=3.0))
    assert not unknown.knows_energy
    assert [found.target for found in unknown.best] == [t for t in Target if t is not Target.ENERGY]
    assert known.knows_energy
    assert [found.target for found in known.best] == list(Target)


@pytest.mark.parametrize("is_bound", [True, False])
def test_energy_that_is_not_known_is_refused_with_the_devices_named(is_bound: bool) -> None:
    asked = pose(profiled()).problem
    bounds = (Bound(target=Target.ENERGY, limit=1.0),) if is_bound else ()
    with pytest.raises(BadRequest, match="it is not known what local draws"):
        answer(
            pose(profiled(), bounds=bounds).problem if is_bound else asked,
            () if is_bound else (Target.ENERGY,),
        )


def test_a_target_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="one twice among latency, latency"):
        answer(problem(), (Target.LATENCY, Target.LATENCY))


def test_the_pareto_set_holds_what_lies_between_the_quick_and_the_local() -> None:
    planned = answer(problem(), (Target.LATENCY, Target.BYTES), is_pareto=True)
    costs = [(d.metrics.latency_s, d.metrics.wire_bytes) for d in planned.front]
    assert len(costs) >= 2
    assert not any(
        all(x <= y for x, y in zip(one, other, strict=True)) and one != other
        for one in costs
        for other in costs
    )


def test_what_cannot_be_had_is_an_answer_with_a_reason() -> None:
    asked = pose(profiled(), bounds=(Bound(target=Target.LATENCY, limit=1e-6),)).problem
    (found,) = answer(asked, (Target.LATENCY,)).best
    assert isinstance(found, Infeasible)
    assert "beyond reach" in found.reason


def test_progress_goes_from_target_to_target_and_through_the_set_and_never_back() -> None:
    told: list[tuple[float, str]] = []
    targets = (Target.LATENCY, Target.MEMORY)
    planned = answer(
        problem(), targets, is_pareto=True, report=lambda done, what: told.append((done, what))
    )
    assert planned == answer(problem(), targets, is_pareto=True)
    assert [what for _, what in told[:2]] == ["the best for latency", "the best for memory"]
    assert {what for _, what in told[2:]} == {"the Pareto set"}
    fractions = [done for done, _ in told]
    assert fractions[:3] == pytest.approx([0.0, 1 / 3, 2 / 3])
    assert fractions == sorted(set(fractions))
    # Both targets once more, at least a gap, and the end.
    assert len(fractions[3:]) >= 4
    assert fractions[-1] == 1.0


def test_a_loaded_model_is_planned_with_what_was_measured_of_it() -> None:
    made = pose(profiled(times(TWO, 5e-3), times(GPU, 1e-3, refused=(2,)))).problem
    (device,) = made.devices
    assert (made.owner, device.id) == (THIS_DEVICE, THIS_DEVICE)
    assert [(u.id, u.memory_bytes, u.busy_w) for u in device.units] == [
        ("cpu", None, 0.0),
        ("gpu0", 1 << 20, 0.0),
    ]
    assert (device.cores, device.memory_bytes) == (2, 1 << 33)
    assert not device.is_estimated
    (found,) = answer(made, (Target.LATENCY,)).best
    assert isinstance(found, Distribution)
    used = [step.configuration for step in found.routes[0].steps]  # type: ignore[union-attr]
    assert used == [GPU, TWO, GPU]
    assert found.metrics.latency_s == pytest.approx(8e-3)


def test_bounds_that_a_client_gives_twice_are_its_mistake() -> None:
    bound = Bound(target=Target.LATENCY, limit=1.0)
    with pytest.raises(BadRequest, match="bound latency: got it twice"):
        pose(profiled(times(ONE, 1e-3)), bounds=(bound, bound))


def test_the_owner_of_a_problem_is_named_where_its_power_is_unknown() -> None:
    keys = "the keys power.idle and units.NAME.busy of device profiles: add them there"
    with pytest.raises(BadRequest, match=f"what {A}, {B} draws; .* {keys}"):
        answer(problem(), (Target.ENERGY,))
