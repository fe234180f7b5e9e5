"""Where the command starts: an interruption is told in one line from the first moment on, and what
cannot be told stops nothing.

Nothing else is imported before, because imports take up to half a second on a busy device.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TextIO, cast


def main() -> int:
    """Run the command line of this process; its exit code."""
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", _Told(sys.stderr))
    try:
        from edge_agent.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("edge-agent: interrupted", file=sys.stderr)
        return 130


class _Told:
    """Standard error. What cannot be written there, because its disk is full or its reader gone, is
    left out: neither progress nor a warning is worth the answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As that of a stream; as if all had been written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As that of a stream."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
