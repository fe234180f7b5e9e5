"""Drives the child that judges hostile models, and notices when it dies or hangs."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASE_S = 30.0
"""A case that takes longer hangs."""
START_S = 60.0
CASES_PER_CHILD = 400
"""What ONNX Runtime leaks for refused models adds up."""
TOOLS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of a case."""

    case: int
    step: str
    """The last one that was begun."""
    outcome: str
    is_bad: bool
    took_s: float


def hunt(cases: Iterable[int], *, with_operators: bool = False) -> Iterator[Finding]:
    """Judge the cases one after the other, each in a child that is replaced when it dies."""
    with tempfile.TemporaryDirectory(prefix="edge-hostile-") as folder:
        child: _Child | None = None
        try:
            for case in cases:
                if child is None:
                    child = _Child(Path(folder), with_operators)
                yield child.judge(case)
                if child.is_used_up:
                    child.end()
                    child = None
        finally:
            if child is not None:
                child.end()


class _Child:
    def __init__(self, folder: Path, with_operators: bool) -> None:
        self._folder = folder
        self._cwd = folder / "cwd"
        self._cwd.mkdir(exist_ok=True)
        self._log = folder / "log"
        paths = [str(TOOLS.parent), str(TOOLS), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TMPDIR": str(self._cwd),
            "HOME": str(self._cwd),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-X",
                        "faulthandler",
                        "-m",
                        "hostile.child",
                        str(folder / "cases"),
                    ),
                    "operators" if with_operators else "seeds",
                ],
                cwd=self._cwd,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        self._buffer = b""
        self._judged = 0
        self.is_used_up = False

    def judge(self, case: int) -> Finding:
        """What comes of the case."""
        assert self._process.stdin is not None
        started_s = time.monotonic()
        self._judged += 1
        self.is_used_up = self._judged >= CASES_PER_CHILD
        step = "start"
        try:
            self._process.stdin.write(f"{case}\n".encode())
            while True:
                said = self._next(CASE_S if step != "start" else START_S)
                if "step" in said:
                    step = said["step"]
                    continue
                wrong = said.get("wrong")
                if wrong is None and (stray := list(self._cwd.iterdir())):
                    wrong = f"files outside of the store: {stray}"
                outcome = wrong if wrong is not None else said["outcome"]
                is_bad = wrong is not None
                break
        except TimeoutError:
            outcome, is_bad = "hangs", True
            self._process.kill()
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            outcome, is_bad = f"the child died ({how}): {self._log.read_text()[-2000:]}", True
        if is_bad:
            self.is_used_up = self._process.poll() is not None or outcome == "hangs"
            shutil.rmtree(self._folder / "cases", ignore_errors=True)
            for left in self._cwd.iterdir():
                left.unlink() if left.is_file() else shutil.rmtree(left)
        took_s = time.monotonic() - started_s
        return Finding(case=case, step=step, outcome=outcome, is_bad=is_bad, took_s=took_s)

    def _next(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        until_s = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left_s = max(0.0, until_s - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left_s)
            if not ready:
                raise TimeoutError
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise EOFError
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
