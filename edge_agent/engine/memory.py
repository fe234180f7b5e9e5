"""How much memory a file that nobody has checked yet can make this process take, and how what
sessions took goes back to the system."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_SPARE_BYTES: Final = 2 << 30
_TIMES: Final = 8
"""A model is parsed, its constants copied and prepacked: real ones take up to 4 times their file.
Two bytes of a hostile one become a node, which takes 160 bytes and more."""


def enough_for(file_bytes: int) -> int:
    """Bytes that reading or opening a model file of this size may take."""
    return _SPARE_BYTES + _TIMES * file_bytes


@contextmanager
def bounded_memory(more_bytes: int) -> Iterator[None]:
    """Inside of the block, what this process takes beyond `more_bytes` more than now is not given.

    Counts all threads. Files that are mapped to be read do not count. Who asks for more gets a
    MemoryError, or what a library makes of it.
    """
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [_data_bytes() + more_bytes]
    limits += [limit for limit in (before, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def give_back_freed() -> None:
    """Return to the system what was freed and lies between what is in use, where the C library
    can: by itself it keeps most of what a session had."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _data_bytes() -> int:
    """What counts against the limit now."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
