"""What a worker counts where the agent can read it without asking: the requests that it takes on
lent connections, which pass the agent by.

Four 64-bit integers in shared memory. Each has one writer at a time, and is read as a whole.
"""

from __future__ import annotations

from edge_agent import clock

TALLY_BYTES = 32

_TAKEN, _ANSWERED, _FAILED, _ANSWERED_AT = range(4)
_PER_S = 1e6


class Tally:
    """Counts over the first bytes of memory that both processes have mapped."""

    def __init__(self, memory: memoryview) -> None:
        """`memory` has at least `TALLY_BYTES` bytes, zeros at first."""
        self._numbers = memory[:TALLY_BYTES].cast("q")

    def take(self) -> None:
        """A request was read. For the writer."""
        self._numbers[_TAKEN] += 1

    def settle(self, *, is_answered: bool) -> None:
        """A request was answered, or failed. For the writer."""
        self._numbers[_ANSWERED_AT] = int(clock.monotonic_s() * _PER_S)
        self._numbers[_ANSWERED if is_answered else _FAILED] += 1

    @property
    def answered(self) -> int:
        """Requests that were answered."""
        return self._numbers[_ANSWERED]

    @property
    def failed(self) -> int:
        """Requests that the model failed on."""
        return self._numbers[_FAILED]

    @property
    def running(self) -> int:
        """Requests that were read and have no answer yet."""
        settled = self.answered + self.failed
        return max(0, self._numbers[_TAKEN] - settled)

    @property
    def answered_at_s(self) -> float:
        """When the last of them was settled, on `clock.monotonic_s`; 0 before the first."""
        return self._numbers[_ANSWERED_AT] / _PER_S
