"""Which faults a relay makes, and where: chances drawn from a seed, limits, and what a test asked
for. Nothing here touches a socket."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Callable
from functools import partial

MIB = 2**20


class TokenBucket:
    """How many bytes may pass so that no more than `bytes_per_s` do. It starts empty, and a pause
    saves up `BURST_S` seconds' worth at most: in t seconds pass at most (t + BURST_S) times it."""

    BURST_S = 0.02
    QUANTUM_S = 0.005
    """Fewer bytes than this much time's worth are granted only to who wants no more."""

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._saved_bytes = 0.0
        self._at_s = now_s

    def take(self, wanted_bytes: int, now_s: float) -> int:
        """How many of the wanted bytes may pass now."""
        if math.isinf(self.bytes_per_s):
            return wanted_bytes
        saved = self._saved_bytes + (now_s - self._at_s) * self.bytes_per_s
        self._saved_bytes = min(saved, max(1.0, self.BURST_S * self.bytes_per_s))
        self._at_s = now_s
        if self._saved_bytes < self._least(wanted_bytes):
            return 0
        granted = min(wanted_bytes, int(self._saved_bytes))
        self._saved_bytes -= granted
        return granted

    def wait_s(self, wanted_bytes: int) -> float:
        """How long after the last `take` some of the wanted bytes may pass."""
        return max(0.0, self._least(wanted_bytes) - self._saved_bytes) / self.bytes_per_s

    def _least(self, wanted_bytes: int) -> float:
        return min(wanted_bytes, max(1.0, self.QUANTUM_S * self.bytes_per_s))


class Occurrences:
    """At which bytes of a stream something happens that may happen at each with the same chance.

    The same seed gives the same bytes, in whatever pieces the stream is asked about.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._chance = 0.0
        self._before: float = math.inf

    def take(self, length_bytes: int, chance: float) -> tuple[int, ...]:
        """Where in the next bytes it happens; they count from 0. Another chance than before
        holds from the first of them."""
        if chance != self._chance:
            self._chance = chance
            self._before = self._gap()
        found = []
        while self._before < length_bytes:
            found.append(int(self._before))
            self._before += 1 + self._gap()
        self._before -= length_bytes
        return tuple(found)

    def _gap(self) -> float:
        """How many bytes are spared before the next one: geometrically distributed."""
        if self._chance == 0:
            return math.inf
        if self._chance == 1:
            return 0
        return int(math.log(1 - self._random.random()) / math.log1p(-self._chance))


class Flips:
    """Which bits of a stream are wrong, each byte with the same chance and in one bit."""

    def __init__(self, seed: str) -> None:
        self._where = Occurrences(f"{seed} where")
        self._bits = random.Random(f"{seed} bits")

    def apply(self, stream: bytearray, chance: float) -> int:
        """Flip bits of what comes next in the stream, in place; how many."""
        hit = self._where.take(len(stream), chance)
        for offset in hit:
            stream[offset] ^= 1 << self._bits.randrange(8)
        return len(hit)


class _Setting:
    """A number that the relay's thread goes by; who sets it returns when it goes by the new one."""

    def __init__(self, value: float, least: float, most: float) -> None:
        self._value = value
        self._least = least
        self._most = most

    def __set_name__(self, owner: object, name: str) -> None:
        self._name = name

    def __get__(self, direction: Direction, owner: object) -> float:
        return direction.chosen.get(self._name, self._value)

    def __set__(self, direction: Direction, value: float) -> None:
        if not self._least <= value <= self._most:
            raise ValueError(f"{self._name}: got {value}, want {self._least} to {self._most}")
        direction.do(partial(direction.chosen.__setitem__, self._name, value))


class Direction:
    """What happens to bytes of all connections that go one way; all of it may change any time."""

    latency_s = _Setting(0.0, 0.0, 3600.0)
    """How long each byte, and an end of the stream, is held at least, also those that are held
    already. Making a connection is not delayed."""
    bytes_per_s = _Setting(math.inf, 1.0, math.inf)
    """All connections share it; see `TokenBucket`."""
    flips_per_byte = _Setting(0.0, 0.0, 1.0)
    """The chance of each byte to be passed on with one bit wrong."""
    cuts_per_mib = _Setting(0.0, 0.0, float(MIB))
    """How many times in 2**20 bytes, on average, a connection is cut right after a byte, with
    RST or with FIN, as the seed has it."""

    def __init__(self, do: Callable[[Callable[[], object]], object], seed: str) -> None:
        self.do = do
        self.chosen: dict[str, float] = {}
        self.passes = True
        """Not so in a black hole."""
        self.loses = False
        """So in a black hole that keeps nothing."""
        self.tap: Callable[[bytes], object] | None = None
        """Told on the relay's thread of everything that comes, as it comes."""
        self.written_bytes = 0
        """Handed to the system for the peers."""
        self._bucket = TokenBucket(math.inf, 0.0)
        self._bits = random.Random(f"{seed} once")
        self._passed_bytes = 0
        self._cuts: list[tuple[int, bool]] = []
        self._flips: list[tuple[int, int]] = []

    def cut_after(self, passed_bytes: int, *, with_reset: bool = True) -> None:
        """Cut, once, the connection on which the last of that many more bytes passes.

        With FIN exactly they arrive there, with RST perhaps fewer: it destroys what is under way.
        With 0, the connection whose byte would be next.
        """
        self.do(lambda: insort(self._cuts, (self._passed_bytes + passed_bytes, with_reset)))

    def flip_after(self, passed_bytes: int, *, bit: int | None = None) -> None:
        """Flip, once, a bit of the byte that follows that many more bytes: this one of 0 to 7,
        or one from the seed."""

        def note() -> None:
            chosen = self._bits.randrange(8) if bit is None else bit
            insort(self._flips, (self._passed_bytes + passed_bytes, chosen))

        self.do(note)

    def granted(self, wanted_bytes: int, now_s: float) -> int:
        """How many of the wanted bytes may pass under the limit."""
        if self._bucket.bytes_per_s != self.bytes_per_s:
            self._bucket = TokenBucket(self.bytes_per_s, now_s)
        return self._bucket.take(wanted_bytes, now_s)

    def wait_s(self, wanted_bytes: int) -> float:
        """See `TokenBucket.wait_s`."""
        return self._bucket.wait_s(wanted_bytes)

    def cut_within(self, length_bytes: int) -> tuple[int, bool] | None:
        """After how many of the next bytes there is a cut that was asked for, and if with RST."""
        if not self._cuts or self._cuts[0][0] > self._passed_bytes + length_bytes:
            return None
        at, with_reset = self._cuts.pop(0)
        return at - self._passed_bytes, with_reset

    def passing(self, stream: bytearray) -> int:
        """Count these bytes and flip, in place, the bits that were asked for; how many."""
        start, self._passed_bytes = self._passed_bytes, self._passed_bytes + len(stream)
        count = 0
        while self._flips and self._flips[0][0] < self._passed_bytes:
            at, bit = self._flips.pop(0)
            stream[at - start] ^= 1 << bit
            count += 1
        return count
