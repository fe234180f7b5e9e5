"""Starts the child processes of the agent, always by spawning, and ends them."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from edge_agent.transport import local

log = logging.getLogger(__name__)

END_S = 5.0
NICENESS = 10
"""Of children that give way to serving from their start; as `engine.background` has it."""
_CLEARED_PREFIX = "ORT_"
"""Environment variables of ONNX Runtime could let a model configure its session."""


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""numpy's own threads are not used, and would cost memory in every child."""


def child_environment() -> dict[str, str]:
    """The environment for a child: ours, without what would configure ONNX Runtime."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_CLEARED_PREFIX)}
    return kept | {"ORT_DISABLE_TELEMETRY": "1", **_ONE_THREAD}


class Child:
    """A child process and the stream to it. When the stream closes, the child ends by itself."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        """Start `python -m module FD ARGUMENTS`, where FD is the child's end of the stream."""
        self.stream, theirs = local.pair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                start_new_session=True,  # Ctrl-C in a terminal is for the agent, which ends them
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def give_way(self) -> None:
        """Lower its priority, with that of every thread it will have.

        From outside, so that the start of Python and its imports, a third of a second, count too.
        """
        os.setpriority(os.PRIO_PROCESS, self.pid, NICENESS)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def release(self) -> None:
        """End the stream, on which the child ends by itself, for all who share it."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()

    def end(self, grace_s: float = END_S) -> None:
        """End the stream, wait, and kill what does not end by itself."""
        self.release()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            log.warning("process %d did not end within %.1f s and is killed", self.pid, grace_s)
            self.process.kill()
            self.process.wait()

    def how_it_ended(self) -> str:
        """The end of a dead process in words."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"
