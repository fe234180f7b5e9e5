"""Knows how a benchmark starts a real agent of its own, watches its memory and ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypedDict, cast

from bench.anonymous import family, proportional_bytes
from edge_agent import clock

READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 15.0


class ReadyLine(TypedDict):
    """What `edge-agent serve --json` prints when it is ready."""

    socket: str
    pid: int


class AgentFailed(Exception):
    """The agent did not start, or did not end when asked to; its log is in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAgent:
    """An agent that answers at `socket`."""

    socket: str
    pid: int
    ready_s: float
    """Seconds from the start of its process to its ready line."""

    def memory_bytes(self) -> int:
        """Proportional memory (PSS) of the agent and of all its children, in bytes."""
        return sum(proportional_bytes(pid) for pid in family(self.pid))


def command(name: str = "edge-agent") -> str:
    """The console command of the environment that this Python belongs to."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def running_agent(config: str = "") -> Iterator[RunningAgent]:
    """A new agent with a socket, a state folder and settings of its own, ended and removed on
    leaving.

    Raises:
        AgentFailed: it was not ready, or did not end, in time.
    """
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        log_path = Path(folder) / "log"
        socket = str(Path(folder) / "agent.sock")
        serve = [command(), "serve", "--json", "--socket", socket]
        serve += ["--state", str(Path(folder) / "state")]
        if config:
            config_path = Path(folder) / "config.toml"
            config_path.write_text(config)
            serve += ["--config", str(config_path)]
        is_done = False
        start_s = clock.monotonic_s()
        with log_path.open("w") as log:
            # A session of its own: Ctrl-C reaches the benchmark, which then ends the agent.
            process = subprocess.Popen(
                serve, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        try:
            ready = _first_line(process, log_path)
            ready_s = clock.monotonic_s() - start_s
            yield RunningAgent(socket=ready["socket"], pid=ready["pid"], ready_s=ready_s)
            is_done = True
        finally:
            if not is_done and (tail := _tail(log_path)):
                # The cause of a failure may be in the log, which is removed below.
                print(f"the end of the agent's log:\n{tail}", file=sys.stderr)
            _end(process, log_path)


def _first_line(process: subprocess.Popen[str], log_path: Path) -> ReadyLine:
    assert process.stdout is not None
    lines: SimpleQueue[str] = SimpleQueue()
    stdout = process.stdout
    Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=READY_WITHIN_S)
    except Empty:
        line = ""
    if not line:
        raise AgentFailed(f"no ready line in {READY_WITHIN_S:.0f} s; log:\n{_tail(log_path)}")
    return cast(ReadyLine, json.loads(line))


def _end(process: subprocess.Popen[str], log_path: Path) -> None:
    assert process.stdout is not None
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    process.stdout.close()
    if status != 0:
        raise AgentFailed(f"the agent ended with status {status}, want 0; log:\n{_tail(log_path)}")


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-20:])
