"""A problem over two devices whose right answers are plain to see, and plans for it."""

from __future__ import annotations

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.distributions import Distribution, PlacedSubgraph, Route
from edge_agent.planning.metrics import evaluate
from edge_agent.plans import Target
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_models import configuration, segment, summary, times

LAB, PI = DeviceId("lab"), DeviceId("pi")
ONE = configuration(Layout.NCHW, 1)
FOUR = configuration(Layout.NCHW, 1, instances=4)
GPU = configuration(Layout.NATIVE, 0, unit="gpu")


def problem() -> Problem:
    """Three segments: 10 ms each on `lab`, 30 ms on four cores of `pi` at once, 2 ms on its GPU.

    A link of 1 MB/s with 5 ms of latency; 1 kB crosses each cut, 4 kB come in and 2 kB go out.
    """
    return Problem(
        summary=summary([segment(i, weight_bytes=1 << 20) for i in range(3)], [1000, 1000]),
        devices=(
            PlannedDevice(
                id=LAB,
                units=(PlannedUnit(id=UnitId("cpu"), idle_w=1.0, busy_w=3.0),),
                times=(times(ONE, [0.01] * 3),),
                memory_bytes=8 << 20,
                is_estimated=True,
            ),
            PlannedDevice(
                id=PI,
                units=(
                    PlannedUnit(id=UnitId("cpu"), idle_w=2.0, busy_w=6.0),
                    PlannedUnit(id=UnitId("gpu"), memory_bytes=16 << 20),
                ),
                times=(times(FOUR, [0.03] * 3), times(GPU, [0.002] * 3)),
                memory_bytes=8 << 20,
                cores=4,
            ),
        ),
        owner=LAB,
        links=(_link(LAB, PI), _link(PI, LAB)),
        input_bytes=4000,
        output_bytes=2000,
    )


def _link(source: DeviceId, target: DeviceId) -> Link:
    return Link(source=source, target=target, latency_s=0.005, goodput_bytes_per_s=1e6)


def placed(start: int, stop: int, device: DeviceId, which: Configuration) -> PlacedSubgraph:
    """Segments [start, stop) there."""
    return PlacedSubgraph(
        segments=SegmentRange(start=start, stop=stop), device=device, configuration=which
    )


def offloaded(share: float = 1.0) -> Route:
    """Segment 0 on `lab`, the rest on the GPU of `pi`: 10 + 6 + 4 + 7 ms."""
    return Route(steps=(placed(0, 1, LAB, ONE), placed(1, 3, PI, GPU)), share=share)


def whole(device: DeviceId, which: Configuration, share: float = 1.0) -> Route:
    """All of it there."""
    return Route(steps=(placed(0, 3, device, which),), share=share)


def distribution(target: Target, *routes: Route, slack: float = 0.0) -> Distribution:
    """A distribution of these routes; `slack` is how much worse than its bound it is."""
    metrics = evaluate(problem(), routes)
    worse = 1.0 + slack if target is Target.THROUGHPUT else 1.0 / (1.0 + slack)
    return Distribution(
        target=target, routes=routes, metrics=metrics, bound=metrics.value(target) * worse
    )
