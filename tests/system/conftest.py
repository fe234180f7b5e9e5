"""Agents for tests, and the models that they serve."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

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
def start(place: Place) -> Iterator[StartAgent]:
    """Starts an agent, by default at the place of the test; all are ended with the test."""
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


def _place(cleanup: ExitStack, state: Path | None) -> Place:
    # The folders of pytest have names too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="edge-agent-"))
    cleanup.callback(shutil.rmtree, folder)
    return Place(folder=folder, state=state or folder / "state", socket=folder / "run" / "a.sock")
