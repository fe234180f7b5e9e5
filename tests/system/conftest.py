"""Agents for tests, and the models that they serve."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.made_models import adding, convolving
from tests.system.running import QUICK_PLANS, Place, RunningAgent

MakePlace = Callable[..., Place]
StartAgent = Callable[..., RunningAgent]


@pytest.fixture(scope="module")
def shared_place() -> Iterator[Place]:
    """The place of the agent that the tests of a module share."""
    with ExitStack() as cleanup:
        yield _place(cleanup, None)


@pytest.fixture
def place() -> Iterator[Place]:
    """A place for the agents of one test."""
    with ExitStack() as cleanup:
        made = _place(cleanup, None)
        yield made
        # Shown with a test that failed.
        print(made.log_text())


@pytest.fixture
def start(place: Place, request: pytest.FixtureRequest) -> Iterator[StartAgent]:
    """Starts an agent, by default at the place of the test; all are ended with the test."""
    if "planned" in request.fixturenames:
        place = request.getfixturevalue("planned")
    with ExitStack() as cleanup:

        def begin(
            *options: str, at: Place | None = None, config: str = QUICK_PLANS
        ) -> RunningAgent:
            agent = RunningAgent(at or place, options, config)
            cleanup.callback(agent.end)
            return agent

        yield begin


@pytest.fixture
def elsewhere() -> Iterator[MakePlace]:
    """Makes further places; the state folder may be given."""
    with ExitStack() as cleanup:
        yield lambda state=None: _place(cleanup, state)


@pytest.fixture(scope="session")
def _planned_once() -> Iterator[Place]:
    with ExitStack() as cleanup:
        made = _place(cleanup, None)
        agent = RunningAgent(made, (), QUICK_PLANS)
        cleanup.callback(agent.end)
        with agent.client() as client:
            client.load(convolving(made.folder / "net.onnx"), wait=True)
            client.load(adding(made.folder / "add.onnx"), target="throughput", wait=True)
        agent.stop()
        made.state.rename(made.folder / "kept")
        yield made


@pytest.fixture
def planned(_planned_once: Place) -> Iterator[Place]:
    """A place where an agent has loaded and planned "net", which is `convolving`, and "add", which
    is `adding` for throughput, and has ended."""
    place = _planned_once
    place.log.write_text("")
    # Where it was made, because what is kept names files by their whole path.
    shutil.copytree(place.folder / "kept", place.state)
    yield place
    print(place.log_text())
    shutil.rmtree(place.state)


def _place(cleanup: ExitStack, state: Path | None) -> Place:
    # The folders of pytest have names too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="edge-agent-"))
    cleanup.callback(shutil.rmtree, folder)
    return Place(folder=folder, state=state or folder / "state", socket=folder / "run" / "a.sock")
