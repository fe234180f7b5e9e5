"""A loaded model that was measured here, and peers of which nothing but a profile is known."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.hardware import DeviceProfile
from edge_agent.problems import Link, PlanningPeer, Surroundings
from edge_agent.profiles import SegmentTimes, StageTimes
from edge_agent.store.profiled import ProfiledModel
from edge_agent.subgraphs import SegmentRange
from tests.planner.made_problems import profiled
from tests.planning.made_models import configuration, times
from tests.planning.made_profiles import board, worked

ONE, FOUR = configuration(), configuration(threads=4)
MODEL = worked(
    (10_000_000, 20_000_000, 40_000_000, 10_000_000),
    (200_000, 50_000, 100_000),
    weight_bytes=1_000_000,
    working_bytes=500_000,
)
# One thread is estimated to take 2, 4, 8 and 2 ms, four of them a quarter.
MEASURED = (
    times(ONE, (3e-3, 5e-3, 9e-3, 2e-3), overhead_s=40e-6),
    times(FOUR, (1e-3, 2e-3, 3e-3, 1e-3), overhead_s=60e-6),
)
PI, BOX = DeviceId("pi2abc"), DeviceId("box3def")
KEY = "that processor"


def loaded(*measured: SegmentTimes) -> ProfiledModel:
    """The model as this device measured it; it takes 600 kB and gives 4 kB."""
    made = profiled()
    return replace(
        made,
        summary=MODEL,
        profile=replace(made.profile, model=MODEL.model, times=measured or MEASURED),
        cores=4,
        input_bytes=600_000,
        output_bytes=4000,
    )


def peer(device: DeviceId, name: str, profile: DeviceProfile | None) -> PlanningPeer:
    return PlanningPeer(device=device, name=name, profile=profile, device_key=KEY)


def links(*devices: DeviceId, bytes_per_s: float = 1e9) -> tuple[Link, ...]:
    """Between all of these and this one, each way."""
    every = (THIS_DEVICE, *devices)
    return tuple(
        Link(source=a, target=b, latency_s=2e-4, goodput_bytes_per_s=bytes_per_s)
        for a in every
        for b in every
        if a != b
    )


def around(*peers: PlanningPeer, bytes_per_s: float = 1e9) -> Surroundings:
    """This device is a board, and these are its peers."""
    ids = [one.device for one in peers]
    return Surroundings(peers=peers, links=links(*ids, bytes_per_s=bytes_per_s), profile=board())


def stage(start: int, *measured: SegmentTimes) -> StageTimes:
    """What a peer measured from that segment on."""
    stop = start + len(measured[0].segment_s)
    return StageTimes(
        segments=SegmentRange(start=start, stop=stop),
        times=measured,
        device_key=KEY,
        division=MODEL.division,
    )
