"""How fast a link is: what content that is fetched over it shows, and where there is none, a short
probe. Some pieces are asked for, and the time from the first to the last is taken. A slow link is
asked for little, a fast one for more.

Of a link that is in use a probe would tell what is left, so there is none meanwhile. Content may
also come slowly because of the disk that it is on: it is weighed by its bytes against what was
known, and a probe after it tells whether it was the link. Only the thread of `peering.Peering` uses
it.
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
"""After a probe that came to nothing, and least after any."""
FLOW_BYTES: Final = 1 << 20
"""Less content than that tells nothing."""
MOST_FLOW_BYTES: Final = 4 << 20
"""What is known is corrected that often by content that goes on coming."""
WEIGHT_BYTES: Final = 4 << 20
"""What was known before weighs as much as so many bytes of content."""
SLOW_SHARE: Final = 0.7
"""Content that comes so much slower than what was known is reason for a probe."""
REST_S: Final = 0.5
"""No probe begins before no content has come for so long."""
TELL_S: Final = 1.0
"""Between two words to the peer about what content shows."""

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
        self._probed_s = float("-inf")
        self._told: tuple[float, float] | None = None
        """What the peer was told, and when."""
        self._flow_since_s: float | None = None
        """When the first of the pieces came that came without a pause."""
        self._flow_bytes = 0
        """Of those behind it."""
        self._flow_until_s = 0.0
        """When the last of them came."""
        self._flowed_s = float("-inf")

    def begin_anew(self, now_s: float) -> None:
        """The connection is another one: what was measured may hold no more."""
        self._step = None
        self._flow_since_s = None
        self._next_s = now_s + FIRST_S

    def tick(self, now_s: float) -> None:
        """Begin a probe if it is time, and tell what is news."""
        is_at_rest = now_s >= self._flowed_s + REST_S
        if self._step is None and now_s >= self._next_s and is_at_rest:
            self._take_step(0)
        self._tell(now_s)

    def came(self, length_bytes: int, *, is_pressed: bool) -> None:
        """A piece of content came; `is_pressed`: others were under way all the time, so that the
        link had no pause."""
        now_s = self._flowed_s = clock.monotonic_s()
        if self._flow_since_s is not None:
            if is_pressed:
                self._flow_bytes += length_bytes
                self._flow_until_s = now_s
            if not is_pressed or self._flow_bytes >= MOST_FLOW_BYTES:
                self._take_flow(self._flow_bytes, self._flow_until_s - self._flow_since_s, now_s)
                self._flow_since_s = None
        if self._flow_since_s is None and is_pressed:
            self._flow_since_s = self._flow_until_s = now_s
            self._flow_bytes = 0

    def _take_flow(self, length_bytes: int, took_s: float, now_s: float) -> None:
        if length_bytes < FLOW_BYTES:
            return
        found = length_bytes / max(took_s, 1e-6)
        before = self.bytes_per_s
        if before is None or now_s > self.measured_s + EVERY_S:
            self.bytes_per_s = found
        else:
            spent_s = WEIGHT_BYTES / before + length_bytes / found
            self.bytes_per_s = (WEIGHT_BYTES + length_bytes) / spent_s
        self.measured_s = now_s
        if before is not None and found < SLOW_SHARE * before:
            self._next_s = min(self._next_s, self._probed_s + AGAIN_S)
        else:
            self._next_s = now_s + EVERY_S

    def _tell(self, now_s: float) -> None:
        if self.bytes_per_s is None:
            return
        if self._told is None or self._told[0] != self.bytes_per_s:
            if self._told is not None and now_s < self._told[1] + TELL_S:
                return
            self._told = self.bytes_per_s, now_s
            self._on_measured(self.bytes_per_s)

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
        self._probed_s = self.measured_s = now_s
        self.bytes_per_s = (count - 1) * size / max(took_s, 1e-6)
        self._told = self.bytes_per_s, now_s
        self._on_measured(self.bytes_per_s)
