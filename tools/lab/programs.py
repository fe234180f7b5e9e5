"""How other programs are called, and how their failures become ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError

NEEDED = ("ip", "tc")
TOOLS = Path(__file__).resolve().parents[1]
RUN_S = 30.0


def check_possible() -> None:
    """Raises:
    LabError: this process cannot make or remove labs.
    """
    if sys.platform != "linux":
        raise LabError(f"got {sys.platform}, want Linux: labs are made of its network namespaces")
    if os.geteuid() != 0:
        raise LabError("not root: network namespaces need it; run this with sudo")
    for program in NEEDED:
        if shutil.which(program) is None:
            raise LabError(f"found no program {program}: install iproute2")


def call(*command: str) -> str:
    """Run a short command; what it printed.

    Raises:
        LabError: it failed; what it said is in the message.
    """
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{_told(command)}: not done in {RUN_S:g} s") from error
    if run.returncode != 0:
        said = " ".join((run.stderr or run.stdout).split()) or f"exit code {run.returncode}"
        raise LabError(f"{_told(command)}: {said}")
    return run.stdout


def _told(command: Sequence[str]) -> str:
    return f'"{" ".join(command)}"'
