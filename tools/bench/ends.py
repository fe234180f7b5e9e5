"""Knows how two ends of a connection are started on two devices of a lab and told what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import lab
from bench.streamed import EndSpec

RECEIVER: Final = 0
SENDER: Final = 1
"""Devices of the lab."""


class EndFailed(Exception):
    """The process of an end ended; its own words are on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What came of one run."""

    took_s: float
    """On the clock of the receiving end, from asking to the last byte."""
    send_s: float
    """Processor time of the whole process that sent."""
    receive_s: float
    """And of the one that received."""


class Ends:
    """A process on each of two devices, connected; while they are not asked they wait."""

    def __init__(
        self, made: lab.Lab, size_bytes: int, *, is_raw: bool, is_encrypted: bool = False
    ) -> None:
        self.size_bytes = size_bytes
        self._made = made
        self._processes: list[subprocess.Popen[str]] = []
        spec = EndSpec(
            is_raw=is_raw,
            sends=False,
            host=made.address(RECEIVER),
            size_bytes=size_bytes,
            is_encrypted=is_encrypted,
        )
        try:
            self._receiver = self._start(RECEIVER, spec)
            port = int(_answer(self._receiver))
            self._sender = self._start(SENDER, replace(spec, sends=True, port=port))
            _answer(self._sender)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ends:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The numbers of both processes."""
        return tuple(process.pid for process in self._processes)

    def send(self, count: int, rooms: int = 1) -> Sent:
        """Send so many tensors; `rooms` are those of `bench.streamed`."""
        _tell(self._sender, {"count": count})
        # From now on it waits for the other end, so that its start is no part of the run.
        _answer(self._sender)
        _tell(self._receiver, {"count": count, "rooms": rooms})
        received, sent = _answer(self._receiver), _answer(self._sender)
        return Sent(
            took_s=received["took_s"],
            send_s=sent["processor_s"],
            receive_s=received["processor_s"],
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.communicate()

    def _start(self, device: int, spec: EndSpec) -> subprocess.Popen[str]:
        tools = Path(__file__).resolve().parents[1]
        process: subprocess.Popen[str] = self._made.popen(
            device,
            [sys.executable, "-P", "-m", "bench.streamed", spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{tools}{os.pathsep}{tools.parent}"},
        )
        self._processes.append(process)
        return process


def _tell(process: subprocess.Popen[str], command: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise EndFailed(f"an end of a connection ended with exit status {process.wait()}")
    return json.loads(line)
