"""Knows how much memory processes take: proportional, and anonymous at its peak."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

SAMPLE_S = 0.02


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children |= {int(child) for child in task.read_text().split()}
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [pid, *(member for child in children for member in family(child))]


def proportional_bytes(pid: int) -> int:
    """Proportional set size (PSS) of a process; 0 if it has ended."""
    return _kibibytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that no file is behind; 0 if it has ended."""
    return _kibibytes(Path(f"/proc/{pid}/status"), "RssAnon:")


def _kibibytes(path: Path, word: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(word))


class AnonymousPeak:
    """The most anonymous memory that some processes had together while this was entered."""

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self.peak_bytes = 0
        self._processes = processes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            seen = sum(anonymous_bytes(pid) for pid in self._processes())
            self.peak_bytes = max(self.peak_bytes, seen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
