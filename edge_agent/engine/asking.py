"""How a child process is heard that may crash, hang or write anything while it answers."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, Final

from edge_agent import clock

_KEPT_BYTES: Final = 4096
"""Of standard error."""
_LONGEST_BYTES: Final = 1 << 20
"""Of a line that is heard."""


Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a child said until it ended, or had to be ended."""

    lines: tuple[Line, ...]
    """The JSON objects that it wrote to standard output, one on each line."""
    code: int | None
    """How it ended; None: it was silent for too long."""
    last_error: str
    """The last line that it wrote to standard error."""


def hear(command: Sequence[str], limit_s: Callable[[Sequence[Line]], float]) -> Heard:
    """Run a command to its end, but kill it when it writes no JSON object for too long: for as many
    seconds as `limit_s` says of those that it wrote before. Its temporary files go with it."""
    pipe = subprocess.PIPE
    with (
        TemporaryDirectory(prefix="asking-", ignore_cleanup_errors=True) as scratch,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            env={**os.environ, "TMPDIR": scratch},
        ) as child,
    ):
        ear = _Ear(child)
        try:
            code = ear.listen(limit_s)
        finally:
            child.kill()
    last = ear.errors.decode(errors="replace").strip().splitlines()[-1:]
    return Heard(lines=tuple(ear.lines), code=code, last_error="".join(last))


class _Ear:
    """What has come from one child."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._begun = b""
        self.lines: list[Line] = []
        self.errors = b""

    def listen(self, limit_s: Callable[[Sequence[Line]], float]) -> int | None:
        """Hear it out; its exit code, or None if it was silent for too long."""
        child = self._child
        assert child.stdout is not None
        assert child.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ, self._take_output)
            selector.register(child.stderr, selectors.EVENT_READ, self._take_errors)
            until_s = clock.monotonic_s() + limit_s(())
            while selector.get_map():
                before = len(self.lines)
                for key, _ in selector.select(max(0.0, until_s - clock.monotonic_s())):
                    chunk = os.read(key.fd, 1 << 16)
                    key.data(chunk)
                    if not chunk:
                        selector.unregister(key.fileobj)
                if len(self.lines) > before:
                    until_s = clock.monotonic_s() + limit_s(self.lines)
                elif clock.monotonic_s() >= until_s:
                    return None
        try:
            return child.wait(limit_s(self.lines))
        except subprocess.TimeoutExpired:
            return None

    def _take_output(self, chunk: bytes) -> None:
        *complete, self._begun = (self._begun + chunk).split(b"\n")
        self._begun = self._begun[-_LONGEST_BYTES:]
        for raw in complete:
            # A library that writes to stdout, or a line cut off by a crash, is no finding.
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                self.lines.append(line)

    def _take_errors(self, chunk: bytes) -> None:
        self.errors = (self.errors + chunk)[-_KEPT_BYTES:]
