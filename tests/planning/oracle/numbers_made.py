"""Numbers of made-up problems: a few plain ones with many ties, smooth ones, extreme ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("few", "few", "few", "smooth", "smooth", "extreme")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What kind of numbers a problem has."""

    kind: str

    @classmethod
    def pick(cls, rng: random.Random, kinds: Sequence[str] = KINDS) -> Numbers:
        """One kind for a whole problem."""
        return cls(kind=rng.choice(kinds))

    def seconds(self, rng: random.Random) -> float:
        """Of a segment."""
        return self._float(rng, (1e-3, 1e-3, 2e-3, 4e-3, 1e-2, 0.0), 1e-3, 1e-2)

    def size(self, rng: random.Random) -> int:
        """Bytes of activations."""
        return round(self._float(rng, (0, 1000, 1000, 100_000, 1_000_000, 3_000_000), 1e3, 3e6))

    def weight(self, rng: random.Random) -> int:
        """Bytes of the weights of a segment."""
        return round(self._float(rng, (0, 1_000_000, 2_000_000, 2_000_000, 8_000_000), 1e5, 1e7))

    def memory(self, rng: random.Random, total: int) -> int:
        """A budget around what halves of the model need."""
        return round(
            rng.choice((0.0, 0.4, 0.6, 0.7, 0.8, 1.0, 1.2, 1.6, 2.5)) * (total + 2_000_000)
        )

    def watts(self, rng: random.Random) -> float:
        """Of a unit."""
        return self._float(rng, (0.0, 1.0, 2.0, 10.0), 0.5, 30.0)

    def border_s_per_byte(self, rng: random.Random) -> float:
        """Of a copy."""
        return self._float(rng, (0.0, 1e-10, 1e-9, 4e-9), 1e-10, 1e-9, least=-15, most=-3)

    def processor_s_per_byte(self, rng: random.Random) -> float:
        """Of sending or receiving."""
        return self._float(rng, (1e-10, 1e-9, 2e-9), 1e-10, 3e-9, least=-15, most=-3)

    def goodput(self, rng: random.Random) -> float:
        """Of a link."""
        return self._float(rng, (1e7, 1e8, 1e8, 1e9), 1e7, 1e9) or 1.0

    def link_latency_s(self, rng: random.Random) -> float:
        """Of a link."""
        return self._float(rng, (0.0, 1e-4, 1e-3), 1e-4, 2e-3)

    def joules_per_byte(self, rng: random.Random) -> float:
        """Of a link."""
        return self._float(rng, (0.0, 1e-8, 1e-7), 1e-9, 1e-7, least=-15, most=0)

    def _float(
        self,
        rng: random.Random,
        few: Sequence[float],
        low: float,
        high: float,
        *,
        least: int = -12,
        most: int = 12,
    ) -> float:
        if self.kind == "extreme" and rng.random() < 0.3:
            return float(10.0 ** rng.randint(least, most))
        if self.kind == "smooth":
            return math.exp(rng.uniform(math.log(low), math.log(high)))
        return rng.choice(few)
