"""Knows a planning problem of any size, made up of numbers like those of real devices."""

from __future__ import annotations

import random
from itertools import permutations

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import CutPoint, ModelSummary, Segment

_LAYOUTS = (Layout.NCHW, Layout.NHWC, Layout.BLOCKED)
_THREADS = (1, 2, 4)


def made_problem(segments: int, devices: int, seed: int = 0) -> Problem:
    """Unequal devices with nine configurations each, all linked; nothing binds."""
    rng = random.Random(seed)
    summary = _summary(segments, rng)
    made = tuple(_device(DeviceId(f"d{i}"), summary, rng) for i in range(devices))
    links = tuple(
        Link(
            source=a.id,
            target=b.id,
            latency_s=rng.uniform(2e-4, 3e-3),
            goodput_bytes_per_s=rng.uniform(5e6, 1.2e8),
        )
        for a, b in permutations(made, 2)
    )
    return Problem(
        summary=summary,
        devices=made,
        owner=made[0].id,
        links=links,
        input_bytes=600_000,
        output_bytes=4000,
    )


def _summary(count: int, rng: random.Random) -> ModelSummary:
    made = tuple(
        Segment(
            index=i,
            start=i,
            stop=i + 1,
            operators=(("Conv", 1),),
            operations=rng.randrange(1_000_000, 40_000_000),
            activation_bytes=1_000_000,
            weight_bytes=rng.randrange(10_000, 400_000),
            parallel_operations=1_000_000,
            working_bytes=rng.randrange(100_000, 1_000_000),
        )
        for i in range(count)
    )
    cuts = tuple(
        CutPoint(position=i, crossing=(), crossing_bytes=rng.randrange(20_000, 800_000))
        for i in range(1, count)
    )
    return ModelSummary(
        model=ModelId("made-up"),
        inputs=(),
        outputs=(),
        shapes=(),
        nodes=count,
        segments=made,
        cuts=cuts,
        weight_bytes=sum(segment.weight_bytes for segment in made),
    )


def _device(name: DeviceId, summary: ModelSummary, rng: random.Random) -> PlannedDevice:
    speed = rng.uniform(0.3, 3.0) * 5e9
    times = tuple(
        SegmentTimes(
            configuration=Configuration(unit=UnitId("cpu"), layout=layout, threads=threads),
            segment_s=tuple(
                segment.operations / (speed * threads**0.8) * rng.uniform(0.8, 1.3)
                for segment in summary.segments
            ),
            overhead_s=2e-5,
            border_s_per_byte=1e-10,
            error_fraction=0.05,
        )
        for layout in _LAYOUTS
        for threads in _THREADS
    )
    return PlannedDevice(
        id=name,
        units=(PlannedUnit(id=UnitId("cpu"), idle_w=2.0, busy_w=rng.uniform(5.0, 30.0)),),
        times=times,
        memory_bytes=4 << 30,
        cores=4,
        send_s_per_byte=5e-10,
        receive_s_per_byte=1.3e-9,
    )
