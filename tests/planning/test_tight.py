"""Memory that hardly holds the weights: what one search misses, and what is said to be missing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from edge_agent.distributions import Distribution
from edge_agent.planning.planner import attempt, plan
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.profiles import SegmentTimes
from tests.planning.made_models import segment, summary
from tests.planning.made_pairs import both_ways, refused
from tests.simulation.made_problems import A, B, C, device, host

MIB = 2**20
LAYERS = 12
EFFORT = 300_000.0
_SIZES = ((442_400, 122_880), (28, 131_072), (1_179_648, 221_184))
"""(weights, activations) of attention, addition and what follows, in each layer."""


def _transformer(*memories_mib: float) -> Problem:
    """36 segments of 18.6 MiB of weights on three devices, each twice as fast as the one before."""
    segments = [
        replace(segment(3 * layer + part), weight_bytes=weights, working_bytes=working)
        for layer in range(LAYERS)
        for part, (weights, working) in enumerate(_SIZES)
    ]
    count = len(segments)
    model = summary(segments, [98_304 if i % 3 == 0 else 24_576 for i in range(count - 1)])
    devices = tuple(
        replace(
            device(
                name,
                *(
                    _times([s * speed / threads**0.5 for s in (2e-4, 2e-5, 6e-4) * LAYERS], threads)
                    for threads in (1, 2, 4)
                ),
            ),
            cores=4,
            memory_bytes=round(memory * MIB),
        )
        for name, speed, memory in zip((A, B, C), (2.0, 1.0, 4.0), memories_mib, strict=True)
    )
    ends = ((A, B), (A, C), (B, C))
    links = tuple(
        link
        for pair in ends
        for link in both_ways(*pair, latency_s=1e-3, goodput_bytes_per_s=12.5e6)
    )
    return Problem(
        summary=model,
        devices=devices,
        owner=A,
        links=links,
        input_bytes=24_576,
        output_bytes=24_576,
    )


def _times(segment_s: list[float], threads: int) -> SegmentTimes:
    return SegmentTimes(
        configuration=host(threads=threads),
        segment_s=tuple(segment_s),
        overhead_s=1e-5,
        border_s_per_byte=0.0,
        error_fraction=0.0,
    )


# The searches for these find nothing themselves; the others do.
@pytest.mark.parametrize("target", [Target.THROUGHPUT, Target.ENERGY])
def test_a_division_that_is_hard_to_find_is_found_all_the_same(target: Target) -> None:
    found = plan(_transformer(7.5, 7.5, 4.875), target, EFFORT)
    assert isinstance(found, Distribution)
    assert found.target is target


@pytest.mark.long
def test_what_is_told_to_be_enough_is_enough() -> None:
    said = refused(_transformer(7.5, 7.5, 3.75), Target.THROUGHPUT)
    assert said.startswith("it fits nowhere, divided or not: ")
    assert "more on any of a, b, or" in said
    assert "would be enough, less may be (there are a 7.5 MiB" in said
    a_kib, c_mib = (float(x) for x in re.findall(r"([\d.]+) [KM]iB", said)[:2])
    for memories in ((7.5 + a_kib / 1024, 7.5, 3.75), (7.5, 7.5, 3.75 + c_mib)):
        found = attempt(_transformer(*memories), Target.LATENCY, EFFORT)
        assert isinstance(found, Distribution)
        assert found.metrics.peak_memory_bytes <= max(memories) * MIB
    # No more than that: one MiB is a twentieth of all weights.
    assert a_kib < 1100
    assert c_mib < 1.2
