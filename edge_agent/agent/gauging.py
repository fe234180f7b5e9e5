"""How fast a link is, by a short probe: some pieces are asked for, and the time from the first to
the last is taken. A slow link is asked for little, a fast one for more.

Of a link that is in use the probe tells what is left. Only the thread of `peering.Peering` uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge_agent import clock
from edge_agent.errors import EdgeAgentError
from edge_agent.wire.contents import MAX_PIECE_BYTES

STEPS: Final = (
    (2, 8 * 1024),
    (2, 64 * 1024),
    (4, MAX_PIECE_BYTES),
    (8, MAX_PIECE_BYTES),
)
"""Pieces, and their bytes. 1.5 MiB at most, of a link of 1 Mbit/s 16 KiB."""
ENOUGH_S: Final = 0.03
"""A step that takes as long is believed; else the next one is taken, or the last one is."""
FIRST_S: Final = 0.5
"""After the connection was made."""
EVERY_S: Final = 300.0
AGAIN_S: Final = 10.0
"""After a probe that came to nothing."""

Answer = Callable[[memoryview | EdgeAgentError], None]
AskProbe = Callable[[int, Answer], None]
"""Asks for so many bytes."""


class Gauge:
    """Measures the link from one peer to this device, again and again."""

    def __init__(self, ask: AskProbe, on_measured: Callable[[float], None], now_s: float) -> None:
        self.bytes_per_s: float | None = None
        """What was measured last."""
        self.measured_s = 0.0
        """When."""
        self._ask = ask
        self._on_measured = on_measured
        self._next_s = now_s + FIRST_S
        self._step: int | None = None
        self._came: list[float] = []

    def begin_anew(self, now_s: float) -> None:
        """The connection is another one: what was measured may hold no more."""
        self._step = None
        self._next_s = now_s + FIRST_S

    def tick(self, now_s: float) -> None:
        """Begin a probe if it is time."""
        if self._step is None and now_s >= self._next_s:
            self._take_step(0)

    def _take_step(self, step: int) -> None:
        self._step = step
        self._came = []
        count, size = STEPS[step]
        for _ in range(count):
            self._ask(size, lambda answer: self._answered(step, answer))

    def _answered(self, step: int, answer: memoryview | EdgeAgentError) -> None:
        if step != self._step:
            return  # of a probe that was given up
        now_s = clock.monotonic_s()
        if isinstance(answer, EdgeAgentError):
            self._step = None
            self._next_s = now_s + AGAIN_S
            return
        self._came.append(now_s)
        count, size = STEPS[step]
        if len(self._came) < count:
            return
        took_s = self._came[-1] - self._came[0]
        if took_s < ENOUGH_S and step + 1 < len(STEPS):
            self._take_step(step + 1)
            return
        self._step = None
        self._next_s = now_s + EVERY_S
        self.measured_s = now_s
        self.bytes_per_s = (count - 1) * size / max(took_s, 1e-6)
        self._on_measured(self.bytes_per_s)
