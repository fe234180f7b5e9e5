"""How long a process may go on before another is considered: its slice.

A process that wakes up takes the processor at once from one whose slice is longer (Linux, since
6.12); else it may have to wait until that has had its own. The policy for idle processes is not
enough: where Linux groups processes by session (autogroup), it counts only inside the session, and
every child of the agent has one of its own. Slices count between sessions too, and need no
privilege. Measured with Linux 6.18, ShuffleNet asked 40 times a second on two cores beside planning
of a model of 120 segments over eight devices, 50th; 95th; 99th percentile of milliseconds: 8.9;
11.9; 14.6 with the longest slice for the planner alone, 7.5; 10.5; 12.4 with the shortest for the
worker too, and 7.7; 10.8; 12.6 with no planner.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SHORTEST_S, LONGEST_S = 1e-4, 0.1
"""What the kernel allows."""
_SET, _GET = 0, 1
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr, which not every C library has functions for."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
"""size, policy, flags, nice, priority, runtime, deadline, period, two utilisations."""
_RUNTIME = 5
"""Of processes without real-time policies, nanoseconds of the slice."""


def slice_s(thread: int) -> float:
    """Seconds of the slice of a thread; a process is its main thread. 0 where the kernel knows no
    slices.

    Raises:
        OSError: there is no such thread, or the kernel does not tell.
    """
    return _attributes(thread)[_RUNTIME] / 1e9


def set_slice(thread: int, seconds: float) -> None:
    """Give a thread, and those that it will start, another slice; nothing else changes. Kernels
    before 6.12 take no notice.

    Raises:
        OSError: there is no such thread, or the kernel does not allow that.
    """
    given = _attributes(thread)
    given[_RUNTIME] = round(seconds * 1e9)
    room = ctypes.create_string_buffer(_ATTRIBUTES.pack(*given), _ATTRIBUTES.size)
    _call(_SET, thread, room, 0)


def _attributes(thread: int) -> list[int]:
    room = ctypes.create_string_buffer(_ATTRIBUTES.size)
    _call(_GET, thread, room, _ATTRIBUTES.size, 0)
    return list(_ATTRIBUTES.unpack(room.raw))


def _call(which: int, *arguments: object) -> None:
    numbers = _CALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"the numbers of system calls on {platform.machine()} are not known")
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    if call(ctypes.c_long(numbers[which]), *arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
