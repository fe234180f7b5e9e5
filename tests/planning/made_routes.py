"""Made-up problems over several devices, and plain enumeration of their linear routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.planning.metrics import (
    Computing,
    latency_s,
    legs,
    memory_bytes,
    resource_loads,
    route_bytes,
    route_joules,
)
from edge_agent.planning.shortest import as_route
from edge_agent.planning.tables import Tables
from edge_agent.problems import (
    DeviceStatistics,
    Link,
    PlannedDevice,
    PlannedUnit,
    Problem,
    SegmentPin,
)
from edge_agent.profiles import Configuration, SegmentTimes
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import CutPoint, ModelSummary, Segment
from tests.planning.made_models import configuration

GPU = UnitId("gpu0")
_CHOICES = (
    configuration(Layout.NCHW, 1),
    configuration(Layout.NHWC, 1),
    configuration(Layout.NHWC, 2),
    configuration(Layout.NATIVE, 0, unit="gpu0"),
    configuration(Layout.NHWC, 0, unit="gpu0"),
)
Pieces = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What a linear route demands, by the formulas of `planning.metrics`."""

    pieces: Pieces
    seconds: float
    joules: float
    size_bytes: float
    loads: Mapping[str, float]
    memory: Mapping[str, float]


def priced(tables: Tables, pieces: Pieces) -> Priced | None:
    """A route by (first segment, choice), priced; None if there is no such route."""
    problem = tables.problem
    route = as_route(tables, pieces)
    try:
        found = legs(problem, route)
    except ValueError:
        return None
    for leg in found:
        if isinstance(leg, Computing):
            inside = range(leg.segments.start, leg.segments.stop)
            times = next(
                t
                for t in problem.device(leg.device).times
                if t.configuration == leg.what.configuration
            )
            is_whole = len(inside) == tables.places
            if set(inside) & set(times.refused) or not (is_whole or times.is_divisible):
                return None
        else:
            most = problem.device(leg.link.target).most_crossing_bytes
            if most is not None and leg.size_bytes > most:
                return None
    for pin in problem.pins:
        _, c = [piece for piece in pieces if piece[0] <= pin.segment][-1]
        choice = tables.choices[c]
        if choice.device != pin.device or pin.unit not in (None, choice.configuration.unit):
            return None
    return Priced(
        pieces=pieces,
        seconds=latency_s(found),
        joules=route_joules(problem, found),
        size_bytes=route_bytes(found),
        loads=resource_loads(problem, [(1.0, found)]),
        memory=memory_bytes(problem, (route,)),
    )


def every_route(tables: Tables) -> Iterator[Priced]:
    """All linear routes, each segment in each choice, neighbours in equal choices joined."""
    for chosen in product(range(len(tables.choices)), repeat=tables.places):
        starts = [p for p in range(len(chosen)) if p == 0 or chosen[p] != chosen[p - 1]]
        found = priced(tables, tuple((p, chosen[p]) for p in starts))
        if found is not None:
            yield found


def made_summary(
    weights: tuple[int, ...], working: tuple[int, ...], crossing: tuple[int | None, ...]
) -> ModelSummary:
    """Segments with these bytes."""
    segments = tuple(
        Segment(
            index=i,
            start=i,
            stop=i + 1,
            operators=(("Conv", 1),),
            operations=1000,
            activation_bytes=1000,
            weight_bytes=weight,
            parallel_operations=1000,
            working_bytes=work,
        )
        for i, (weight, work) in enumerate(zip(weights, working, strict=True))
    )
    return ModelSummary(
        model=ModelId("3f" * 32),
        inputs=(),
        outputs=(),
        shapes=(),
        nodes=len(segments),
        segments=segments,
        cuts=tuple(
            CutPoint(position=i + 1, crossing=(), crossing_bytes=size)
            for i, size in enumerate(crossing)
        ),
        weight_bytes=sum(weights),
    )


def device(
    name: str,
    times: tuple[SegmentTimes, ...],
    *,
    memory_bytes: int = 2**40,
    gpu_memory_bytes: int | None = None,
    cores: int = 2,
    core_s_per_byte: float = 0.0,
    most_crossing_bytes: int | None = None,
) -> PlannedDevice:
    """A device with a processor of 10 W and an accelerator of 40 W."""
    return PlannedDevice(
        id=DeviceId(name),
        units=(
            PlannedUnit(id=UnitId("cpu"), idle_w=2.0, busy_w=10.0),
            PlannedUnit(id=GPU, idle_w=5.0, busy_w=40.0, memory_bytes=gpu_memory_bytes),
        ),
        times=times,
        memory_bytes=memory_bytes,
        cores=cores,
        send_s_per_byte=core_s_per_byte,
        receive_s_per_byte=core_s_per_byte * 2,
        most_crossing_bytes=most_crossing_bytes,
    )


@st.composite
def _times(draw: DrawFn, which: Configuration, n: int, divisible: bool) -> SegmentTimes:
    refused = draw(st.frozensets(st.integers(0, n - 1), max_size=1)) if n > 2 else frozenset()
    per_byte = draw(st.sampled_from([0.0, 1e-4, 3e-3]))
    seconds = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    return SegmentTimes(
        configuration=which,
        segment_s=tuple(0.0 if i in refused else s / 7.0 for i, s in enumerate(seconds)),
        overhead_s=draw(st.sampled_from([0.0, 0.1, 2.0])),
        border_s_per_byte=per_byte,
        error_fraction=0.0,
        is_divisible=divisible,
        refused=tuple(sorted(refused)),
        turn_s_per_byte=per_byte * draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@st.composite
def _device(draw: DrawFn, name: str, n: int, most_choices: int) -> PlannedDevice:
    chosen = draw(
        st.lists(st.sampled_from(_CHOICES), min_size=1, max_size=most_choices, unique=True)
    )
    times = tuple(
        draw(_times(which, n, draw(st.sampled_from([True] * 7 + [False])))) for which in chosen
    )
    return device(
        name,
        times,
        memory_bytes=draw(st.integers(500, 5000)),
        gpu_memory_bytes=draw(st.none() | st.integers(500, 5000)),
        cores=draw(st.integers(max(1, *(which.cores for which in chosen)), 4)),
        core_s_per_byte=draw(st.sampled_from([0.0, 1e-3])),
        most_crossing_bytes=draw(st.none() | st.none() | st.integers(50, 400)),
    )


@st.composite
def problems(draw: DrawFn, *, most_segments: int = 5, most_routes: int = 4000) -> Problem:
    """Of 2 to 5 segments, 1 to 3 devices with 1 to 3 configurations each."""
    n = draw(st.integers(2, most_segments))
    count = draw(st.integers(1, 3))
    most_choices = max(k for k in (1, 2, 3) if k == 1 or (k * count) ** n <= most_routes)
    sizes: SearchStrategy[int] = st.sampled_from([0, 100, 300, 700])
    crossing: SearchStrategy[int | None] = st.sampled_from([10, 100, 300, 500, 900, None])
    summary = made_summary(
        tuple(draw(st.lists(sizes, min_size=n, max_size=n))),
        tuple(draw(st.lists(sizes, min_size=n, max_size=n))),
        tuple(draw(st.lists(crossing, min_size=n - 1, max_size=n - 1))),
    )
    devices = tuple(draw(_device(f"d{i}", n, most_choices)) for i in range(count))
    names = [d.id for d in devices]
    media = draw(st.sampled_from(["", "air"]))
    links = tuple(
        Link(
            source=a,
            target=b,
            latency_s=draw(st.sampled_from([0.0, 0.5])),
            goodput_bytes_per_s=draw(st.sampled_from([50.0, 1000.0])),
            medium=media,
            joules_per_byte=draw(st.sampled_from([0.0, 0.01])),
        )
        for a in names
        for b in names
        if a != b and draw(st.sampled_from([True] * 5 + [False]))
    )
    pins: tuple[SegmentPin, ...] = ()
    if draw(st.sampled_from([True] + [False] * 7)):
        pins = (
            SegmentPin(segment=draw(st.integers(0, n - 1)), device=draw(st.sampled_from(names))),
        )
    return Problem(
        summary=summary,
        devices=devices,
        owner=names[0],
        links=links,
        statistics=tuple(
            DeviceStatistics(device=name, load_fraction=draw(st.sampled_from([0.0, 0.5])))
            for name in names
        ),
        pins=pins,
        input_bytes=draw(st.sampled_from([0, 60, 400])),
        output_bytes=draw(st.sampled_from([0, 60])),
        chunk_bytes=100,
    )
