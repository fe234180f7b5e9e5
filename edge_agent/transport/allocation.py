"""How the C library of this process keeps memory that is freed and soon needed again."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 << 20
"""The largest that glibc takes: blocks up to this size are not given back one by one."""
_TRIMMED_BYTES: Final = 256 << 20
"""So much must be free at the end of the heap before it is given back."""


def keep_freed_memory() -> None:
    """Have blocks of up to 32 MiB come from memory that the process has already.

    libzmq takes memory for each part that arrives, and frees it when its tensors are no longer
    needed. By default glibc asks the kernel for each, which clears every page anew: measured here,
    64 KiB messages then take 1.5 times as long, and 1 MiB ones 1.25 times. Other C libraries have
    no such setting: there nothing happens.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIMMED_BYTES)
