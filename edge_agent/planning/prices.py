"""What each step of a plan costs, as tables of whole picoseconds that the searches add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.planning.cost import border_bytes, keeps_tensors, ticks
from edge_agent.profiles import SegmentTimes
from edge_agent.subgraphs import ModelSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Picoseconds per configuration (first index) and place (second index)."""

    segment: tuple[tuple[int | None, ...], ...]
    """None where the configuration refuses the segment."""
    border: tuple[tuple[int | None, ...], ...]
    """At boundary p, before segment p; None where the bytes are not known."""
    overhead: tuple[int, ...]
    mates: tuple[frozenset[int], ...]
    """Configurations to which no border is paid: itself, and those on the same accelerator."""

    @classmethod
    def of(cls, summary: ModelSummary, group: Sequence[SegmentTimes]) -> Prices:
        """The prices of the configurations of `group`, in its order."""
        crossing = [border_bytes(summary, p) for p in range(len(summary.segments))]
        used = [times.configuration for times in group]
        return cls(
            segment=tuple(
                tuple(
                    None if place in times.refused else ticks(s)
                    for place, s in enumerate(times.segment_s)
                )
                for times in group
            ),
            border=tuple(
                tuple(None if b is None else ticks(t.border_s_per_byte * b) for b in crossing)
                for t in group
            ),
            overhead=tuple(ticks(times.overhead_s) for times in group),
            mates=tuple(
                frozenset(i for i, b in enumerate(used) if i == own or keeps_tensors(a, b))
                for own, a in enumerate(used)
            ),
        )

    def undivided(self, configuration: int) -> int | None:
        """The whole model in one configuration; None if that refuses a segment."""
        total = self.overhead[configuration]
        for price in self.segment[configuration]:
            if price is None:
                return None
            total += price
        return total
