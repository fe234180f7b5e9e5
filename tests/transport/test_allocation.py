"""Memory that is freed and soon needed again: where glibc is, it is kept; elsewhere nothing is."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from edge_agent.transport.allocation import keep_freed_memory

FAULTS = """
import ctypes, resource
from edge_agent.transport.allocation import keep_freed_memory
{first}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def once():
    block = libc.malloc(1 << 20)
    ctypes.memset(block, 1, 1 << 20)
    libc.free(block)

once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    """How often a new process asks for a page while it takes and frees 1 MiB fifty times."""
    text = FAULTS.format(first=first)
    told = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60
    )
    return int(told.stdout)


def test_it_can_be_asked_for_any_number_of_times_anywhere() -> None:
    for _ in range(3):
        keep_freed_memory()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_with_glibc_freed_memory_is_not_cleared_anew() -> None:
    assert hasattr(ctypes.CDLL(None), "mallopt")
    assert faults("keep_freed_memory()") < 50
