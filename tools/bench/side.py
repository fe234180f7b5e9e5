"""Knows how two sides of a comparison are kept from disturbing each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bench.child import SideSpec
from edge_agent import clock
from models.inputs import Arrays

QUIET_AFTER_S = 0.06
"""An idle pool of ONNX Runtime spins for about 45 ms after a run."""


class SideFailed(Exception):
    """A side's process ended; its own words are on stderr."""


class Side:
    """A running side; while it is not asked for anything it uses no processor time.

    What it is depends on the spec: a process that can be stopped is stopped, others are given
    the time to fall quiet. Both run on the cores that this process may use.
    """

    def __init__(self, spec: SideSpec) -> None:
        tools = Path(__file__).resolve().parents[1]
        paths = [str(tools), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._spec = spec
        self.seen_s: list[float] = []
        """What `one_s` gave so far."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            self._answer()
        except SideFailed:
            self.close()
            raise

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def one_s(self) -> float:
        """Seconds of one request."""
        self.seen_s.append(float(self._ask({"do": "one"})))
        return self.seen_s[-1]

    def latencies_s(self, count: int, period_s: float = 0.0) -> list[float]:
        """Seconds of each of `count` requests, `period_s` from start to start."""
        return [
            float(s) for s in self._ask({"do": "latencies", "count": count, "period_s": period_s})
        ]

    def per_request_s(self, callers: int, duration_s: float) -> float:
        """Seconds per request with `callers` that ask back to back."""
        return float(self._ask({"do": "per_request", "callers": callers, "duration_s": duration_s}))

    def _ask(self, command: dict[str, object]) -> Any:
        assert self._process.stdin is not None
        if self._spec.can_be_stopped:
            self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideFailed(
                f"{self._spec.kind} side of {self._spec.model or self._spec.path} ended with "
                f"exit status {self._process.wait()}"
            )
        if self._spec.can_be_stopped:
            self._process.send_signal(signal.SIGSTOP)
        else:
            clock.sleep_s(QUIET_AFTER_S)
        return json.loads(line)


class InputFiles:
    """Files of inputs for sides, removed at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="edge-bench-")
        self._written = 0

    def __enter__(self) -> InputFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def write(self, inputs: Arrays) -> str:
        """Write `inputs` to a new file and return its path."""
        path = Path(self._folder.name) / f"{self._written}.npz"
        self._written += 1
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in inputs.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        return str(path)
