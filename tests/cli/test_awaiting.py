"""Every form of `plan NAME` waits for a plan that is being made, and ends as that ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from edge_agent import clock
from edge_agent.cli.main import main
from edge_agent.errors import BadRequest, EdgeAgentError
from edge_agent.planner.answering import answer
from edge_agent.planner.appraising import Wanted, answer_loaded
from edge_agent.planner.posing import pose
from edge_agent.plans import Target
from edge_agent.wire.messages import (
    AskDistributions,
    AskModels,
    AskPlan,
    ClientMessage,
    Distributions,
    Models,
    Plan,
    Progress,
)
from edge_agent.wire.parts import ModelState
from edge_agent.wire.routes import pack
from tests.fake_agent import Asked, FakeAgent, state
from tests.made_plans import PLAN
from tests.planner.made_problems import problem
from tests.planner.made_surroundings import BOX, PI, around, loaded, peer
from tests.planning.made_profiles import board, processor

FORMS = (
    (),
    ("--target", "latency"),
    ("--pareto",),
    ("--bound", "latency=1s"),
)
MAKING = (
    state(planning="waiting", progress_fraction=0.0, progress="waiting for its turn"),
    state(planning="working", progress_fraction=0.0, progress="starting"),
    state(planning="working", progress_fraction=0.5, progress="measuring"),
)
NO_PLAN = 'model "m" has no plan: no space left; it serves on plain ONNX Runtime'


class Agent:
    """Its model has the states of the test one after the other, and then the last for good."""

    def __init__(self, *states: ModelState | None) -> None:
        self.states = [*states]
        self.distributions: list[ClientMessage] = []
        self.disturbed_fraction = 0.0

    def __call__(self, asked: Asked) -> None:
        message, present = asked.message, self.states[0]
        if isinstance(message, AskModels):
            if len(self.states) > 1:
                self.states.pop(0)
            asked.answer(Models(() if present is None else (present,)))
        elif present is None or present.planning in ("waiting", "working"):
            asked.fail(BadRequest("no plan yet"))
        elif present.planning == "failed":
            asked.fail(EdgeAgentError(NO_PLAN))
        elif isinstance(message, AskPlan):
            asked.answer(Plan(PLAN))
        else:
            assert isinstance(message, AskDistributions)
            self.distributions.append(message)
            found = answer(problem(), (Target.LATENCY,))
            found = replace(found, disturbed_fraction=self.disturbed_fraction)
            asked.answer(Distributions(pack(found)))


@pytest.fixture(params=FORMS, ids=lambda form: " ".join(form) or "alone")
def form(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


def plan(agent: FakeAgent, form: Sequence[str]) -> int:
    return main(["plan", "m", *form, "--socket", str(agent.path)])


def test_a_plan_is_waited_for_with_its_progress(
    capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    says = Agent(*MAKING, state())
    with FakeAgent(says) as agent:
        assert plan(agent, form) == 0
    out, err = capsys.readouterr()
    assert err == "  0% waiting for its turn\n  0% starting\n 50% measuring\n"
    assert out.startswith("best for" if form else 'model "m": plain ONNX Runtime\n')
    assert len(says.distributions) == (1 if form else 0)


def test_devices_are_called_as_people_call_them(capsys: pytest.CaptureFixture[str]) -> None:
    fast = peer(BOX, "fast-box", board(processor(8.0)))
    none = peer(PI, "pi", None)
    found = answer_loaded(pose(loaded(), around(fast, none)), Wanted(targets=(Target.LATENCY,)))

    def says(asked: Asked) -> None:
        match asked.message:
            case AskModels():
                asked.answer(Models((state(),)))
            case AskPlan():
                asked.answer(Plan(PLAN))
            case _:
                asked.answer(Distributions(pack(found)))

    with FakeAgent(says) as agent:
        assert plan(agent, ("--target", "latency")) == 0
        out = capsys.readouterr().out
        assert "fast-box/cpu/NCHW/4t" in out
        assert BOX not in out
        assert "nobody measured what all of these devices draw" in out
        assert "pi is left out: it has not told yet what it can do.\n" in out
        assert plan(agent, ("--target", "latency", "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["names"] == [[BOX, "fast-box"], [PI, "pi"]]
    (best,) = told["best"]
    assert BOX in {step["device"] for route in best["routes"] for step in route["steps"]}
    (appraisal,) = told["appraisals"]
    assert {one["device"] for one in appraisal["alone"]} == {BOX, "local"}
    assert appraisal["estimated"] == [BOX]


def test_energies_of_a_loaded_model_are_called_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent(Agent(state())) as agent:
        assert plan(agent, ("--target", "latency")) == 0
        assert "J, modelled" in capsys.readouterr().out.splitlines()[0]
        assert plan(agent, ("--target", "latency", "--json")) == 0
        assert json.loads(capsys.readouterr().out)["is_energy_modelled"] is True


def test_times_that_were_measured_beside_other_work_are_told_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    says = Agent(state())
    with FakeAgent(says) as agent:
        for fraction, is_told in ((0.25, False), (0.75, True)):
            says.disturbed_fraction = fraction
            assert plan(agent, ("--target", "latency")) == 0
            told = "Others used the processor beside 75% of the runs of the profile"
            assert (told in capsys.readouterr().out) == is_told
        assert plan(agent, ("--target", "latency", "--json")) == 0
        assert json.loads(capsys.readouterr().out)["disturbed_fraction"] == 0.75


def test_planning_that_takes_long_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    class Slow(Agent):
        def __call__(self, asked: Asked) -> None:
            if isinstance(asked.message, AskDistributions):
                asked.answer(Progress(fraction=0.75, what="the Pareto set"))
                clock.sleep_s(1.5)
            super().__call__(asked)

    with FakeAgent(Slow(state())) as agent:
        assert plan(agent, ("--pareto",)) == 0
    assert capsys.readouterr().err == " 75% the Pareto set\n"


def test_a_plan_that_was_made_between_two_questions_is_shown(
    capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    class Quick(Agent):
        def __call__(self, asked: Asked) -> None:
            # The next question may come as soon as this one is answered.
            before, self.states = Agent(*self.states), [state()]
            before(asked)

    with FakeAgent(Quick(MAKING[1])) as agent:
        assert plan(agent, form) == 0
    out, err = capsys.readouterr()
    assert (bool(out), err) == (True, "")


def test_a_plan_that_could_not_be_made_ends_with_1(
    capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    failed = state(planning="failed", progress="no space left")
    with FakeAgent(Agent(MAKING[2], failed)) as agent:
        assert plan(agent, form) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f" 50% measuring\nedge-agent plan: {NO_PLAN}\n")


def test_a_model_that_is_unloaded_meanwhile_ends_with_3(
    capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    with FakeAgent(Agent(MAKING[2], None)) as agent:
        assert plan(agent, form) == 3
    assert (
        'edge-agent plan: model "m" was unloaded while it was planned\n' in capsys.readouterr().err
    )


def test_a_model_that_is_no_longer_run_ends_with_5(
    capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    killed = state(planning="failed", state="quarantined", progress="it killed its worker")
    with FakeAgent(Agent(MAKING[2], killed)) as agent:
        assert plan(agent, form) == 5
    assert capsys.readouterr().err.endswith("edge-agent plan: it killed its worker\n")


def test_an_agent_that_ends_meanwhile_ends_with_8(
    capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    says = Agent(*MAKING)

    def end(asked: Asked) -> None:
        if isinstance(asked.message, AskModels) and len(says.states) == 1:
            asked.hang_up()
        else:
            says(asked)

    with FakeAgent(end) as agent:
        assert plan(agent, form) == 8
    assert "ended before it answered" in capsys.readouterr().err


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_with_130(capsys: pytest.CaptureFixture[str], form: tuple[str, ...]) -> None:
    says = Agent(*MAKING)

    def interrupt(asked: Asked) -> None:
        says(asked)
        if isinstance(asked.message, AskModels) and len(says.states) == 1:
            signal.raise_signal(signal.SIGINT)

    with FakeAgent(interrupt) as agent:
        assert plan(agent, form) == 130
    assert capsys.readouterr().out == ""


def test_what_was_unloaded_before_it_was_asked_for_is_told_at_once(
    capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    with FakeAgent(Agent(None)) as agent:
        assert plan(agent, form) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_model_with_a_plan_is_asked_at_once_though_it_is_planned_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Again(Agent):
        def __call__(self, asked: Asked) -> None:
            if isinstance(asked.message, AskPlan):
                asked.answer(Plan(replace(PLAN, plain_s=0.01)))
            elif isinstance(asked.message, AskDistributions):
                asked.answer(Distributions(pack(answer(problem(), (Target.LATENCY,)))))
            else:
                super().__call__(asked)

    with FakeAgent(Again(MAKING[2])) as agent:
        assert plan(agent, ("--target", "latency")) == 0
    assert capsys.readouterr().err == ""
