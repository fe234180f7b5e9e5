"""A file that is a FIFO every other moment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edge_agent.errors import ModelRefused

_REASONS = ("is a FIFO, want a regular file", "was replaced while it was opened")


def outcomes_of(attempt: Callable[[], str], path: Path) -> set[str]:
    """What comes of `attempt` while `path` turns into a FIFO and back, until it was both read and
    refused or ten seconds are over; a refusal because of that is "refused"."""
    content = path.read_bytes()
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            new = path.with_suffix(".new")
            os.mkfifo(new)
            new.replace(path)
            new.write_bytes(content)
            new.replace(path)

    def outcome() -> str:
        try:
            return attempt()
        except ModelRefused as refusal:
            is_told = any(reason in str(refusal) for reason in _REASONS)
            return "refused" if is_told else str(refusal)

    swapping = threading.Thread(target=swap)
    swapping.start()
    found: set[str] = set()
    until_s = time.monotonic() + 10.0
    try:
        while len(found) < 2 and time.monotonic() < until_s:
            found |= {outcome() for _ in range(100)}
    finally:
        is_over.set()
        swapping.join()
    return found
