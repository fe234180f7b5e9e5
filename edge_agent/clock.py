"""The one place where the time is read, so that everything else can be given a made-up time."""

from __future__ import annotations

import time
from collections.abc import Callable

Seconds = float


monotonic_s: Callable[[], Seconds] = time.monotonic
"""Seconds since an unknown start; never goes back. For durations and deadlines."""

precise_s: Callable[[], Seconds] = time.perf_counter
"""Seconds since an unknown start at the highest resolution. For measuring runs."""


def wall_s() -> Seconds:
    """Seconds since the epoch (UTC). Only for what people read: never for durations."""
    return time.time()  # noqa: TID251


def sleep_s(duration_s: Seconds) -> None:
    """Block the calling thread for `duration_s` seconds."""
    time.sleep(duration_s)
