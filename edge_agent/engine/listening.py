"""What the libraries of this process print, C and C++ included, while something is done."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Final

_STREAMS: Final = (1, 2)
_MOST_BYTES: Final = 64 << 20
"""What is printed beyond is not read."""


class Heard:
    """What was printed; complete once the block of `listening` is left."""

    def __init__(self) -> None:
        self.text = ""


@contextmanager
def listening() -> Iterator[Heard]:
    """Keep what this process prints to stdout and stderr inside of the block, instead of showing
    it; afterwards both are what they were.

    It is one for the whole process: what other threads print meanwhile is kept too.
    """
    heard = Heard()
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        for stream in _STREAMS:
            stack.enter_context(_turned(stream, file))
        try:
            yield heard
        finally:
            _flush()
            file.seek(0)
            heard.text = file.read(_MOST_BYTES).decode(errors="replace")


@contextmanager
def _turned(stream: int, file: IO[bytes]) -> Iterator[None]:
    """The stream goes to `file` inside of the block."""
    _flush()
    kept = os.dup(stream)
    try:
        os.dup2(file.fileno(), stream)
        yield
    finally:
        os.dup2(kept, stream)
        os.close(kept)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
