from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from edge_agent.agent.builders import Builder
from edge_agent.agent.processes import NICENESS
from edge_agent.config import Settings
from edge_agent.errors import BuilderLost, EdgeAgentError
from edge_agent.plans import Target
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import Build


def children() -> set[int]:
    own = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in own for pid in file.read_text().split()}


def test_a_builder_that_admitted_at_normal_priority_gives_way_when_it_builds(
    tmp_path: Path,
) -> None:
    before, own = children(), os.getpriority(os.PRIO_PROCESS, 0)
    builder = Builder(
        Settings(socket=tmp_path / "s", state=tmp_path / "state", cache=tmp_path / "cache")
    )
    message = Build(
        model=ModelId("0" * 64), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    try:
        (pid,) = children() - before
        assert os.getpriority(os.PRIO_PROCESS, pid) == own
        with pytest.raises(EdgeAgentError):  # there is no such model
            builder.build(message, lambda _fraction, _what: None, lambda: None)
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(own, NICENESS)
    finally:
        builder.close()


def test_a_builder_that_hangs_is_given_up(tmp_path: Path) -> None:
    before = children()
    settings = Settings(socket=tmp_path / "s", state=tmp_path / "state", cache=tmp_path / "cache")
    builder = Builder(settings, silence_s=0.2)
    message = Build(
        model=ModelId("0" * 64), target=Target.LATENCY, threads=None, shapes=(), is_fresh=False
    )
    try:
        (pid,) = children() - before
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(BuilderLost, match="it did nothing for 0 s"):
            builder.build(message, lambda _fraction, _what: None, lambda: None)
        assert pid not in children()
    finally:
        builder.close()
