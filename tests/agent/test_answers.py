"""What a client is told of distributions is of the model that its name stands for now."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import pytest

from edge_agent.agent.answers import Answers
from edge_agent.agent.controller import Controller
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.deploying import Deployer
from edge_agent.agent.loaded import Loaded, Planning
from edge_agent.agent.peer_answers import PeerAnswers
from edge_agent.agent.peering import Peering
from edge_agent.agent.planners import Planners
from edge_agent.agent.replies import Reply
from edge_agent.agent.workers import Serve
from edge_agent.config import Settings
from edge_agent.devices import Device
from edge_agent.errors import BadRequest, EdgeAgentError, StorageError, UnknownModel
from edge_agent.plans import Target
from edge_agent.problems import NOTHING_AROUND, Surroundings
from edge_agent.store.registry import LoadedModel
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import (
    AskDistributions,
    ClientMessage,
    Distributions,
    Done,
    Failure,
    Message,
    Progress,
    Unload,
)
from edge_agent.wire.planning import PlanLoaded
from tests.agent.made_lanes import epoch, lane
from tests.made_plans import PLAN
from tests.planner.made_problems import profiled
from tests.planner.made_surroundings import PI, around, peer

LOST = BadRequest("nothing is kept of what was measured of it")
ASK = AskDistributions(model="m")


def loaded(model: str = "first", *, is_planned: bool = True) -> Loaded:
    record = LoadedModel(
        name="m",
        model=ModelId(model),
        target=Target.LATENCY,
        threads=None,
        shapes=(),
        loaded_at_s=1.0,
        source="/m.onnx",
    )
    serve = Serve(epoch=epoch(), subgraphs=(), instances=1, inputs=None, outputs=None)
    made = Loaded(record=record, lane=lane(), serve=serve)
    if is_planned:
        made.plan = replace(PLAN, model=ModelId(model), plain_s=0.01)
        made.planning = Planning("done", 1.0, "done")
    return made


def told(text: str) -> Distributions:
    return Distributions(msgspec.Raw(text.encode()))


class Agent:
    """Knows models by name, and has a planner that does step by step what the test says."""

    def __init__(self, *steps: Callable[[PlanLoaded], Distributions]) -> None:
        self.models: dict[str, Loaded] = {"m": loaded()}
        self.asked: list[PlanLoaded] = []
        self.around = NOTHING_AROUND
        self.replies: list[Reply] = []
        """Where what was asked is answered."""
        self.is_unwanted: Callable[[], bool]
        """What it was asked with last."""
        self.looked_again = threading.Semaphore(0)
        self._steps = list(steps)

    def loaded(self, name: str) -> Loaded:
        if name not in self.models:
            raise UnknownModel(f'model "{name}" is not loaded; loaded: none')
        return self.models[name]

    def surroundings(self, _loaded: Loaded) -> Surroundings:
        return self.around

    def unload(self, name: str) -> None:
        self.models.pop(name).is_gone.set()

    def look_again(self) -> None:
        self.looked_again.release()

    def ask(
        self, message: PlanLoaded, *, report: Reply, is_unwanted: Callable[[], bool]
    ) -> Distributions:
        assert not is_unwanted()
        self.is_unwanted = is_unwanted
        self.asked.append(message)
        self.replies.append(report)
        report(Progress(fraction=0.5, what="half"))
        return self._steps.pop(0)(message)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def answers_of(executor: ThreadPoolExecutor, tmp_path: Path) -> Callable[[Agent], Answers]:
    def of(agent: Agent) -> Answers:
        settings = Settings(socket=tmp_path / "s", state=tmp_path, cache=tmp_path)
        answers = Answers(
            settings,
            1,
            _device,
            executor,
            cast(Planners, agent),
            PeerAnswers(Peering(settings, executor)),
        )
        answers.connect(cast(Controller, agent), cast(DataPath, agent), cast(Deployer, agent))
        return answers

    return of


@pytest.fixture
def answer_of(answers_of: Callable[[Agent], Answers]) -> Callable[..., Message]:
    def answer(agent: Agent, asked: ClientMessage = ASK) -> Message:
        replies: queue.Queue[Message] = queue.Queue()
        answers_of(agent).handle(asked, Reply(replies.put))
        while isinstance(reply := replies.get(timeout=10.0), Progress):
            assert reply == Progress(fraction=0.5, what="half")
        return reply

    return answer


def _device() -> Device:
    return profiled().device


Answer = Callable[..., Message]


def test_an_answer_of_a_model_that_stays_is_passed_on(answer_of: Answer) -> None:
    agent = Agent(lambda _: told("of the first"))
    assert answer_of(agent) == told("of the first")
    assert [message.model for message in agent.asked] == ["first"]


def test_the_planner_is_told_what_is_around(answer_of: Answer) -> None:
    agent = Agent(lambda _: told("over peers"))
    agent.around = around(peer(PI, "pi", None))
    assert answer_of(agent) == told("over peers")
    assert [message.around for message in agent.asked] == [agent.around]


@pytest.mark.parametrize("error", [LOST, StorageError("damaged")])
def test_what_is_wrong_with_a_model_that_stays_is_told(
    answer_of: Answer, error: EdgeAgentError
) -> None:
    agent = Agent(lambda _: _raise(error))
    assert answer_of(agent) == Failure(None, error.code, str(error))
    assert len(agent.asked) == 1


@pytest.mark.parametrize("end", [lambda: _raise(LOST), lambda: told("of the first")])
def test_a_model_unloaded_meanwhile_is_not_loaded(
    answer_of: Answer, end: Callable[[], Distributions]
) -> None:
    agent = Agent(lambda _: _after(agent.models.clear, end))
    assert answer_of(agent) == Failure(
        None, "unknown-model", 'model "m" is not loaded; loaded: none'
    )


def test_what_is_planned_of_a_model_that_is_unloaded_is_unwanted(answer_of: Answer) -> None:
    agent = Agent(lambda _: told("of the first"))
    agent.models["other"] = loaded()
    answer_of(agent)
    assert answer_of(agent, Unload("other")) == Done('model "other" is unloaded')
    assert agent.looked_again.acquire(timeout=10.0)
    assert not agent.is_unwanted()
    assert answer_of(agent, Unload("m")) == Done('model "m" is unloaded')
    assert agent.looked_again.acquire(timeout=10.0)
    assert agent.is_unwanted()


def test_what_is_planned_for_a_client_that_is_gone_is_unwanted(
    answers_of: Callable[[Agent], Answers], answer_of: Answer
) -> None:
    agent = Agent(lambda _: told("of the first"))
    answer_of(agent)
    assert not agent.is_unwanted()
    agent.replies[0].is_lost = True
    assert agent.is_unwanted()
    answers_of(agent).has_lost_client()
    assert agent.looked_again.acquire(timeout=10.0)


def test_of_a_model_loaded_in_its_place_it_is_told_how_far_its_plan_is(answer_of: Answer) -> None:
    # The same file, loaded again: what was measured before went with the one before.
    again = loaded(is_planned=False)
    agent = Agent(lambda _: _after(lambda: agent.models.update(m=again), lambda: _raise(LOST)))
    answer = answer_of(agent)
    assert isinstance(answer, Failure)
    assert answer.code == "bad-request"
    assert answer.message.startswith(
        'model "m" has no plan yet (waiting: waiting for its turn); it serves on plain'
    )
    assert len(agent.asked) == 1


def test_a_planned_model_in_its_place_is_asked_for_anew(answer_of: Answer) -> None:
    other = loaded("second")
    agent = Agent(
        lambda _: _after(lambda: agent.models.update(m=other), lambda: told("of the first")),
        lambda message: told(f"of the {message.model}"),
    )
    assert answer_of(agent) == told("of the second")


def _raise(error: EdgeAgentError) -> Distributions:
    raise error


def _after(change: Callable[[], object], end: Callable[[], Distributions]) -> Distributions:
    change()
    return end()
