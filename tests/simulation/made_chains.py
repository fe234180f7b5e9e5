"""Chains drawn by hypothesis: devices, configurations, links, and one route or several."""

from __future__ import annotations

from itertools import permutations

from hypothesis import strategies as st

from edge_agent.devices import DeviceId, Layout
from edge_agent.distributions import Route
from edge_agent.problems import DeviceStatistics, PlannedDevice, Problem
from edge_agent.profiles import HOST_UNIT
from tests.simulation.made_problems import (
    NPU,
    A,
    B,
    C,
    device,
    host,
    link,
    model,
    npu,
    placed,
    problem,
    route,
    times,
)

CHUNK_BYTES = 1000
MILLISECONDS = st.integers(min_value=1, max_value=50).map(lambda n: n / 1000)
SIZES = st.integers(min_value=1, max_value=6).map(lambda n: n * CHUNK_BYTES) | st.integers(
    min_value=0, max_value=CHUNK_BYTES
)
"""Whole chunks, or a part of one."""
S_PER_BYTE = st.sampled_from([0.0, 5e-8, 2e-7, 2e-6])


@st.composite
def devices(draw: st.DrawFn, name: DeviceId, segments: int) -> PlannedDevice:
    cores = draw(st.integers(min_value=1, max_value=4))
    threads = draw(st.integers(min_value=1, max_value=cores))
    instances = draw(st.integers(min_value=1, max_value=cores // threads))
    layouts = draw(st.sampled_from([(Layout.NCHW,), (Layout.NHWC,), (Layout.NCHW, Layout.NHWC)]))
    which = [host(threads=threads, instances=instances, layout=layout) for layout in layouts]
    which += draw(st.sampled_from([[], [npu()], [npu(instances=2)]]))
    if instances > 1:
        which.append(host(threads=cores))
    profiles = []
    for configuration in which:
        border_s_per_byte = draw(S_PER_BYTE)
        profiles.append(
            times(
                configuration,
                [draw(MILLISECONDS) for _ in range(segments)],
                overhead_s=draw(st.sampled_from([0.0, 0.0005])),
                border_s_per_byte=border_s_per_byte,
                turn_s_per_byte=border_s_per_byte * draw(st.sampled_from([0.0, 0.5])),
            )
        )
    return device(
        name,
        *profiles,
        cores=cores,
        send_s_per_byte=draw(S_PER_BYTE),
        receive_s_per_byte=draw(S_PER_BYTE),
        npu_memory_bytes=draw(st.sampled_from([None, 1 << 30])),
    )


@st.composite
def statistics(draw: st.DrawFn, name: DeviceId) -> DeviceStatistics:
    slowdowns = draw(
        st.sampled_from([(), ((HOST_UNIT, 1.5),), ((NPU, 2.0),), ((HOST_UNIT, 0.8), (NPU, 1.2))])
    )
    return DeviceStatistics(
        device=name,
        load_fraction=draw(st.sampled_from([0.0, 0.5, 1.0])),
        speed_fraction=draw(st.sampled_from([1.0, 0.6])),
        slowdowns=slowdowns,
    )


@st.composite
def problems(draw: st.DrawFn, *, media: bool = False) -> Problem:
    segments = draw(st.integers(min_value=1, max_value=6))
    names = [A, B, C][: draw(st.integers(min_value=1, max_value=3))]
    return problem(
        model(segments, [draw(SIZES) for _ in range(segments - 1)]),
        [draw(devices(name, segments)) for name in names],
        [
            link(
                source,
                target,
                latency_s=draw(st.sampled_from([0.0, 0.001, 0.01])),
                goodput_bytes_per_s=draw(st.sampled_from([1e5, 1e6, 1e7])),
                medium=draw(st.sampled_from(["", "wifi"])) if media else "",
                joules_per_byte=draw(st.sampled_from([0.0, 1e-7])),
            )
            for source, target in permutations(names, 2)
        ],
        statistics=[draw(statistics(name)) for name in names],
        input_bytes=draw(SIZES),
        output_bytes=draw(SIZES),
        chunk_bytes=CHUNK_BYTES,
    )


@st.composite
def routes(draw: st.DrawFn, made: Problem, *, share: float = 1.0) -> Route:
    segments = len(made.summary.segments)
    cuts = sorted(draw(st.sets(st.integers(min_value=1, max_value=segments), max_size=3)))
    ends = [*(cut for cut in cuts if cut < segments), segments]
    steps = []
    start = 0
    for stop in ends:
        where = draw(st.sampled_from(made.devices))
        which = draw(st.sampled_from([profile.configuration for profile in where.times]))
        steps.append(placed(start, stop, where.id, which))
        start = stop
    return route(*steps, share=share)
