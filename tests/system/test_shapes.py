"""Shapes that are asked often get subgraphs of their own; every shape is answered all the time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import pytest

from edge_agent.agent.kept import Kept, load_kept
from edge_agent.client import Client
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import InputMismatch
from edge_agent.store.records import PlanStore
from edge_agent.tensors import Shape
from edge_agent.wire.parts import ModelState
from tests.system.conftest import StartAgent
from tests.system.made_models import adding, positions, rows, x
from tests.system.running import BUDGETS, Place, RunningAgent, wait_until, worker_pid

Begin = Callable[..., RunningAgent]

ENOUGH_TO_DECIDE = "[planning]\nprofile_s = 2\nverify_s = 10\n"
"""The gain is manifold and seen at once, but on a busy device the samples take their time."""
OFTEN = 40
PACE_S = 1.0
"""Pauses, without which a builder has to wait long for each of its turns."""
SOON_S = 100.0


PATH = "net.onnx"


@pytest.fixture(scope="module")
def prepared() -> Iterator[Place]:
    """A place whose state "kept" has a `positions` with its general plan and nothing more."""
    with tempfile.TemporaryDirectory(prefix="edge-agent-") as name:
        folder = Path(name)
        made = Place(folder=folder, state=folder / "state", socket=folder / "run" / "a.sock")
        agent = RunningAgent(made, (), BUDGETS)
        try:
            with agent.client() as client:
                model = positions(folder / PATH)
                client.load(model, threads=1, shapes={"x": (1, 16, 8)}, wait=True)
            agent.stop()
        finally:
            agent.end()
        made.state.rename(folder / "kept")
        yield made


@pytest.fixture
def ready(prepared: Place) -> Iterator[Place]:
    """The prepared place, for one test."""
    # Where it was made, because what is kept names files by their whole path.
    shutil.copytree(prepared.folder / "kept", prepared.state)
    prepared.log.write_text("")
    yield prepared
    print(prepared.log_text())
    shutil.rmtree(prepared.state)


@pytest.fixture
def begin(ready: Place, start: StartAgent) -> Callable[..., RunningAgent]:
    """Starts an agent at the ready place, which is removed only after the agent's end."""

    def started(config: str = ENOUGH_TO_DECIDE) -> RunningAgent:
        return start(at=ready, config=config)

    return started


class Asked:
    """A model that is asked, and every answer compared with plain ONNX Runtime's."""

    def __init__(self, client: Client, place: Place) -> None:
        self.client = client
        path = place.folder / PATH
        self._plain = Session.open(path, threads=1, level=OptimisationLevel.ALL, plain=True)

    def ask(self, batch: int, length: int, times: int = 1) -> None:
        """Ask for a shape several times."""
        for i in range(times):
            inputs = rows(batch, length, seed=i)
            got = self.client.infer("net", inputs)
            want = self._plain.run(inputs, ["y", "z"])
            np.testing.assert_allclose(got["y"], want["y"], rtol=1e-3, atol=1e-4)
            assert got["z"] == want["z"] == length

    def state(self) -> ModelState:
        return self.client.model("net")

    def serving(self) -> list[Shape]:
        """The shapes of x that are specialised, the most asked first."""
        return [s.shapes[0][1] for s in self.state().specialised if s.is_serving]

    def wait_for(self, *shapes: Shape) -> None:
        """Until exactly these are served by subgraphs of their own, and nothing is under way."""
        try:
            wait_until(
                lambda: set(self.serving()) == set(shapes) and not self.state().specialising,
                f"{shapes} are specialised",
                SOON_S,
            )
        except AssertionError as error:
            plans = [self.client.plan("net", {"x": shape}).rejections for shape in shapes]
            raise AssertionError(f"{error}: {self.state().specialised} {plans}") from None


def kept(place: Place, client: Client) -> Kept:
    """What is on disk of the model."""
    found = load_kept(PlanStore(place.state), "net", client.model("net").model)
    assert found is not None
    return found


def nodes(path: str) -> int:
    return len(onnx.load(path, load_external_data=False).graph.node)


@contextmanager
def asking(asked: Asked, *shapes: tuple[int, int]) -> Iterator[None]:
    """Ask for these shapes often enough, and then in turns and now and then until the block ends,
    on a thread of its own."""
    is_enough = Event()

    def ask() -> None:
        for batch, length in shapes:
            asked.ask(batch, length, OFTEN)
        while not is_enough.wait(PACE_S):
            for batch, length in shapes:
                asked.ask(batch, length)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(ask)
        try:
            yield
        finally:
            is_enough.set()
        done.result(30)


@pytest.mark.long
def test_the_shapes_that_are_asked_get_subgraphs_of_their_own_and_all_are_answered_right(
    begin: Begin, ready: Place
) -> None:
    agent = begin()
    with agent.client() as client:
        asked = Asked(client, ready)
        assert asked.state().specialised == ()
        with asking(asked, (1, 96), (2, 128), (1, 96), (2, 128), (1, 96)):
            asked.wait_for((1, 96, 8), (2, 128, 8))
        for batch, length in ((1, 96), (2, 128), (3, 5), (4, 7), (1, 1), (0, 4), (2, 0)):
            asked.ask(batch, length, 3)
        first = asked.state().specialised[0]
        assert first.shapes == (("x", (1, 96, 8)),)
        assert 0.5 < first.share < 0.7
        assert first.general_over_plan is not None
        assert first.general_over_plan.low > 1.0
        assert asked.state().failed == 0

        on_disk = kept(ready, client)
        (general,) = on_disk.subgraphs
        for special in on_disk.specialisations:
            assert special.serve is not None
            (file,) = special.serve.subgraphs
            # What computes positions is gone: a product, its tanh and the sum are left.
            assert nodes(file.path) <= 3 < 10 < nodes(general.path)

        out = agent.command("plan", "net").out
        assert "net: plans for single shapes" in out
        assert "x[1,96,8]" in out
        assert "x[1,96,8]" in agent.command("models").out
        by_json = agent.command("models", "--json").json[0]["specialised"]
        assert [s["is_serving"] for s in by_json] == [True] * 2


@pytest.mark.long
def test_there_are_never_more_than_allowed_and_one_asked_far_more_takes_the_place_of_another(
    begin: Begin, ready: Place
) -> None:
    agent = begin(ENOUGH_TO_DECIDE + "[specialising]\nmost_shapes = 1\n")
    with agent.client() as client:
        asked = Asked(client, ready)
        asked.ask(1, 64, OFTEN)
        asked.ask(1, 96, 2 * OFTEN)
        asked.wait_for((1, 96, 8))
        asked.ask(1, 64, 4 * OFTEN)
        asked.wait_for((1, 64, 8))
        asked.ask(1, 96)


@pytest.mark.long
def test_they_come_back_with_the_agent_and_a_damaged_one_alone_is_made_again(
    begin: Begin, ready: Place
) -> None:
    agent = begin()
    with agent.client() as client:
        asked = Asked(client, ready)
        asked.ask(1, 96, OFTEN)
        asked.ask(1, 64, OFTEN)
        asked.wait_for((1, 96, 8), (1, 64, 8))
        files = {
            s.shapes: s.serve.subgraphs[0].path
            for s in kept(ready, client).specialisations
            if s.serve is not None
        }
    agent.kill()

    agent = begin()
    with agent.client() as client:
        asked.client = client
        worker_pid(client, "net")
        assert set(asked.serving()) == {(1, 96, 8), (1, 64, 8)}
        asked.ask(1, 96)
        assert not agent.children("edge_agent.builder")
    agent.stop()

    damaged = Path(files[((1, 96, 8),)])
    damaged.write_bytes(damaged.read_bytes()[:-10])
    agent = begin()
    with agent.client() as client:
        asked.client = client
        assert (1, 64, 8) in asked.serving()
        asked.ask(1, 96, 3)
        asked.wait_for((1, 96, 8), (1, 64, 8))
        assert client.model("net").planning == "done"
        asked.ask(1, 96, 3)
    agent.stop()

    agent = begin("[specialising]\nmost_shapes = 0\n")
    with agent.client() as client:
        asked.client = client
        asked.ask(1, 96, 3)
        assert asked.serving() == []


@pytest.mark.long
def test_a_worker_killed_meanwhile_costs_no_answer_and_no_specialisation(
    begin: Begin, ready: Place
) -> None:
    agent = begin()
    with agent.client() as client:
        asked = Asked(client, ready)
        with asking(asked, (1, 96)):
            wait_until(lambda: asked.state().specialising, "it is being planned")
            os.kill(worker_pid(client, "net"), signal.SIGKILL)
            asked.wait_for((1, 96, 8))
            os.kill(worker_pid(client, "net"), signal.SIGKILL)
            asked.ask(1, 96, 20)
        assert asked.serving() == [(1, 96, 8)]
        assert asked.state().failed == 0
        assert asked.state().restarts == 2


@pytest.mark.long
def test_a_model_unloaded_while_a_shape_is_planned_leaves_no_process_and_no_file(
    begin: Begin, ready: Place
) -> None:
    agent = begin("[planning]\nprofile_s = 5\nverify_s = 5\n")
    with agent.client() as client:
        asked = Asked(client, ready)
        client.devices()
        asked.ask(1, 96, OFTEN)
        wait_until(lambda: asked.state().specialising, "it is being planned")
        wait_until(lambda: agent.children("edge_agent.builder"), "a builder works")
        client.unload("net")
        wait_until(lambda: not agent.children(), "its processes are gone", 5.0)
        wait_until(lambda: ready.stored() == [], "its files are gone", 5.0)


@pytest.mark.long
def test_a_replan_measures_the_shapes_again_too_while_they_serve(
    begin: Begin, ready: Place
) -> None:
    agent = begin()
    with agent.client() as client:
        asked = Asked(client, ready)
        asked.ask(1, 96, OFTEN)
        asked.wait_for((1, 96, 8))
        client.replan("net", wait=True)
        assert asked.serving() == [(1, 96, 8)]
        wait_until(lambda: asked.state().specialising, "it is planned again")
        wait_until(lambda: not asked.state().specialising, "it was planned again", SOON_S)
        assert asked.serving() == [(1, 96, 8)]
        asked.ask(1, 96)


def explained(agent: RunningAgent, *shapes: str) -> dict[str, object]:
    options = [part for shape in shapes for part in ("--shape", shape)]
    outcome = agent.command("plan", "net", "--explain", *options, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, object] = json.loads(outcome.out)
    return found


@pytest.mark.long
def test_the_plan_for_any_shape_is_explained_and_made_once_if_there_is_none(
    begin: Begin, ready: Place
) -> None:
    agent = begin()
    with agent.client() as client:
        asked = Asked(client, ready)
        epoch = asked.state().epoch
        first = agent.command("plan", "net", "--explain", "--shape", "x=1x200x8")
        assert first.code == 0, first.err
        assert "for 1x200x8: " in first.err
        assert "for these shapes alone, x[1,200,8]" in first.out
        assert "fastest" in first.out.splitlines()[-2] or "Where the fastest" in first.out
        second = agent.command("plan", "net", "--shape", "x=1x200x8")
        assert second.err == ""
        assert second.out.startswith('model "net" for x[1,200,8]: ')
        assert asked.state().epoch == epoch
        assert asked.state().specialised == ()

        found = explained(agent, "x=1x200x8")
        assert sorted(found) == ["flips", "general", "plan"]
        assert client.plan("net", {"x": (1, 200, 8)}).is_specialised
        general = client.plan("net")
        assert client.plan("net", {"x": (1, 16, 8)}) == general

        wrong = agent.command("plan", "net", "--explain", "--shape", "x=1x200x9")
        assert (wrong.code, wrong.out) == (2, "")
        assert 'shape of input "x": got [1,200,9], want float32[N,L,8]' in wrong.err
        wrong = agent.command("plan", "net", "--shape", "w=1")
        assert (wrong.code, wrong.out) == (2, "")
        assert 'got a shape for "w", want one of the inputs "x"' in wrong.err
        with pytest.raises(InputMismatch, match='got a shape for "w"'):
            client.plan("net", {"w": (1,)})


@pytest.mark.long
def test_requests_of_a_model_with_fixed_dimensions_are_not_counted(
    begin: Begin, ready: Place, tmp_path: Path
) -> None:
    fixed = onnx.load(ready.folder / PATH)
    for axis, size in enumerate((1, 96)):
        fixed.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    onnx.save(fixed, tmp_path / "fixed.onnx")
    agent = begin("[specialising]\nmost_shapes = 0\n" + BUDGETS)
    with agent.client() as client:
        client.unload("net")
        client.load(tmp_path / "fixed.onnx", threads=1)
        client.load(adding(tmp_path / "add.onnx"), threads=1, wait=True)
        for _ in range(OFTEN):
            client.infer("fixed", rows(1, 96))
            client.infer("add", x())
        assert [s.specialised for s in client.models()] == [(), ()]
        assert client.plan("fixed", {"x": (1, 96, 8)}) == client.plan("fixed")
