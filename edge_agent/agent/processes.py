"""Starts the child processes of the agent, always by spawning, and ends them."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence

log = logging.getLogger(__name__)

END_S = 5.0
_CLEARED_PREFIX = "ORT_"
"""Environment variables of ONNX Runtime could let a model configure its session."""


def child_environment() -> dict[str, str]:
    """The environment for a child: ours, without what would configure ONNX Runtime."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_CLEARED_PREFIX)}
    return kept | {"ORT_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}


def start(
    module: str, arguments: Sequence[str] = (), pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start `python -m module` with a pipe on standard input; it ends when the pipe closes."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=pass_fds,
        env=child_environment(),
        start_new_session=True,  # Ctrl-C in a terminal is for the agent, which ends them in order
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe, wait, and kill what does not end by itself."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        log.warning("process %d did not end within %.0f s and is killed", process.pid, END_S)
        process.kill()
        process.wait()


def how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """The end of a dead process in words."""
    code = process.wait()
    return f"signal {-code}" if code < 0 else f"exit code {code}"
