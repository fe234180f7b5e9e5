"""A real agent in an environment with other units, and what its answers are compared with."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edge_agent.engine.session import OptimisationLevel, Session
from tests.system.running import QUICK_PLANS, Place, RunningAgent
from tests.units.made import picture

PLAN_S = 240.0


@contextmanager
def running(units: str = "", planning: str = "") -> Iterator[RunningAgent]:
    """An agent with these tables of units, and these lines under [planning]."""
    folder = Path(tempfile.mkdtemp(prefix="edge-units-"))
    place = Place(folder=folder, state=folder / "state", socket=folder / "run" / "agent.sock")
    (folder / "run").mkdir(mode=0o700)
    quick = QUICK_PLANS.replace("[planning]\n", f"[planning]\n{planning}")
    agent = RunningAgent(place, (), quick + units)
    try:
        yield agent
    finally:
        agent.end()
        print(place.log_text())
        shutil.rmtree(folder)


def saved(agent: RunningAgent, name: str, model: bytes) -> Path:
    path = agent.place.folder / f"{name}.onnx"
    path.write_bytes(model)
    return path


def reference(path: Path) -> np.ndarray:
    session = Session.open(path, threads=1, level=OptimisationLevel.ALL)
    return session.run({"x": picture()}, ["y"])["y"]


def close_to(got: np.ndarray, want: np.ndarray) -> None:
    """Within what one step of the quantised part becomes in the convolutions behind it."""
    assert np.abs(got - want).max() <= 0.05 * np.abs(want).max()
