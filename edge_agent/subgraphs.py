"""Subgraphs: which segments of a model they run, and what these demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

ModelId = NewType("ModelId", str)
"""SHA-256 over the model file and its external data, in hexadecimal."""
SampleSetId = NewType("SampleSetId", str)
"""SHA-256 over the real inputs that a user gave with a model, in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """Segments [start, stop): a candidate subgraph."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"got segments [{self.start}, {self.stop}), want 0 <= start < stop")

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.start}-{self.stop - 1}" if len(self) > 1 else str(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplexityScore:
    """What a subgraph demands, before any measurement (see planning/score.py for the formulas)."""

    operations: int
    bytes_moved: int
    operations_per_byte: float
    parallel_fraction: float
    """Share of the operations that can use several threads, 0 to 1."""
    estimated_s: float
    """Roofline time on one thread of this device in its present state, in seconds."""
    score: float
    """Estimated seconds over the cost of a launch: below 1, the subgraph does not pay for one."""
