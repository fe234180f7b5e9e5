"""What a loaded model, this device and its peers are as a planning problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import THIS_DEVICE, DeviceId, UnitId
from edge_agent.distributions import LeftOut
from edge_agent.errors import BadRequest
from edge_agent.hardware import NetworkProfile
from edge_agent.planner.posing import Posed, pose, whole_bytes
from edge_agent.planning.estimate import planned_device
from edge_agent.problems import (
    DeviceStatistics,
    PlannedDevice,
    PlanningPeer,
    SegmentPin,
    Surroundings,
)
from edge_agent.profiles import SegmentTimes
from edge_agent.summaries import Arithmetic
from edge_agent.tensors import WireType
from tests.planner.made_problems import profiled
from tests.planner.made_surroundings import (
    BOX,
    MEASURED,
    MODEL,
    ONE,
    PI,
    around,
    loaded,
    peer,
    stage,
)
from tests.planning.made_models import configuration, times
from tests.planning.made_profiles import accelerator_profile, board, processor, sourced

EQUAL = peer(PI, "pi", board())


def posed(*peers: PlanningPeer) -> Posed:
    return pose(loaded(), around(*(peers or (EQUAL,))), is_for_throughput=False)


def device(found: Posed, which: DeviceId = PI) -> PlannedDevice:
    return found.problem.device(which)


def plain(found: SegmentTimes) -> SegmentTimes:
    return replace(found, error_fraction=0.0)


def test_without_peers_there_is_this_device_as_it_was_measured() -> None:
    found = pose(profiled())
    (own,) = found.problem.devices
    assert (own.id, own.times, own.memory_bytes) == (
        THIS_DEVICE,
        profiled().profile.times,
        1 << 33,
    )
    assert found.problem.with_branches
    assert (found.notes, found.names, found.left_out, found.whole) == ((), (), (), None)


def test_an_equal_peer_is_as_fast_as_this_device() -> None:
    found = device(posed())
    assert tuple(map(plain, found.times)) == MEASURED
    assert found.is_estimated


def test_a_peer_at_half_the_rates_takes_twice_as_long() -> None:
    found = device(posed(peer(PI, "pi", board(processor(0.5)))))
    for got, own in zip(found.times, MEASURED, strict=True):
        assert got.segment_s == pytest.approx([2 * s for s in own.segment_s])


def test_without_a_profile_of_this_device_peers_are_estimated_from_theirs_alone() -> None:
    found = pose(loaded(), replace(around(EQUAL), profile=None), is_for_throughput=False)
    assert device(found).times == planned_device(board(), MODEL).times
    assert found.notes == ("Times on pi are estimated from device profiles.",)


def test_for_the_throughput_a_peer_may_run_several_at_once() -> None:
    at_once = configuration(threads=1, instances=4)
    used = [t.configuration for t in device(pose(loaded(), around(EQUAL))).times]
    assert at_once in used
    assert at_once not in [t.configuration for t in device(posed()).times]


def test_what_is_sent_costs_both_processors_what_their_profiles_say_of_encryption() -> None:
    told = replace(board(), network=NetworkProfile(encrypted_send_s_per_byte=sourced(5e-9)))
    surroundings = replace(around(peer(PI, "pi", told)), profile=told)
    own, other = pose(loaded(), surroundings).problem.devices
    assert (own.send_s_per_byte, other.send_s_per_byte) == (5e-9, 5e-9)
    assert own.receive_s_per_byte == other.receive_s_per_byte > 0.0
    assert pose(loaded(), around(EQUAL)).problem.devices[0].send_s_per_byte > 0.0


def test_stages_that_a_peer_measured_beat_what_is_expected() -> None:
    measured = stage(1, times(ONE, (50e-3, 90e-3), overhead_s=1e-3))
    found = pose(loaded(), around(EQUAL), {PI: [measured]}, is_for_throughput=False)
    # Both took ten times as long as expected.
    (one,) = (t for t in device(found).times if t.configuration == ONE)
    assert one.segment_s == pytest.approx((30e-3, 50e-3, 90e-3, 20e-3))
    assert one.overhead_s == 1e-3
    assert found.measured == {PI: {ONE: {1, 2}}}
    assert found.notes == (
        "Times on pi (of its 4 segments 2 were measured there) are estimated from device "
        "profiles, and from what was measured of the model on this device.",
    )


@pytest.mark.parametrize("change", [{"device_key": "before"}, {"division": "another"}])
def test_stages_of_another_division_or_processor_are_not_used(change: dict[str, str]) -> None:
    measured = replace(stage(0, times(ONE, (1.0,) * 4)), **change)
    stages = {PI: [measured]}
    assert pose(loaded(), around(EQUAL), stages) == pose(loaded(), around(EQUAL))


def test_a_peer_that_cannot_take_part_is_left_out_and_that_is_told() -> None:
    takes = replace(processor(), takes=(Arithmetic.INT8,))
    others = {
        DeviceId("a"): (peer(DeviceId("a"), "one", None), "it has not told yet what it can do"),
        DeviceId("b"): (
            replace(peer(DeviceId("b"), "two", board()), banned_because="its stage died"),
            "its stage died",
        ),
        DeviceId("c"): (peer(DeviceId("c"), "three", board()), "no link to it is known"),
        DeviceId("d"): (peer(DeviceId("d"), "four", board()), "no link back from it is known"),
        DeviceId("e"): (
            peer(DeviceId("e"), "five", board(takes)),
            "none of its units takes any part of the model",
        ),
    }
    surroundings = around(EQUAL, *(one for one, _ in others.values()))
    known = tuple(
        link
        for link in surroundings.links
        if "c" not in (link.source, link.target) and link.source != "d"
    )
    found = pose(loaded(), replace(surroundings, links=known))
    assert [one.id for one in found.problem.devices] == [THIS_DEVICE, PI]
    assert found.left_out == tuple(
        LeftOut(device=which, reason=reason) for which, (_, reason) in others.items()
    )
    assert found.notes[:5] == tuple(
        f"{one.name} is left out: {reason}." for one, reason in others.values()
    )
    assert {(link.source, link.target) for link in found.problem.links} == {
        (THIS_DEVICE, PI),
        (PI, THIS_DEVICE),
    }
    assert dict(found.names)[DeviceId("e")] == "five"


def test_a_peer_with_a_low_battery_is_spared_and_that_is_told() -> None:
    low = replace(EQUAL, statistics=DeviceStatistics(device=PI, battery_fraction=0.1))
    assert "pi is left out: its battery is at 10 %" in posed(low).notes[0]


def test_what_a_plan_holds_now_may_be_used_by_the_next() -> None:
    statistics = DeviceStatistics(
        device=DeviceId("whoever"),
        load_fraction=0.5,
        free_memory_bytes=1000,
        slowdowns=((UnitId("cpu"), 1.5), (UnitId("npu9"), 2.0)),
    )
    busy = replace(EQUAL, statistics=statistics, held_bytes=300)
    surroundings = replace(around(busy), statistics=statistics, held_bytes=70)
    problem = pose(loaded(), surroundings).problem
    for which, free_bytes in ((PI, 1300), (THIS_DEVICE, 1070)):
        assert problem.statistics_of(which) == DeviceStatistics(
            device=which,
            load_fraction=0.5,
            free_memory_bytes=free_bytes,
            slowdowns=((UnitId("cpu"), 1.5),),
        )


def test_the_memory_of_this_device_is_what_its_profile_leaves() -> None:
    small = replace(around(EQUAL), profile=board(memory_bytes=3e9))
    assert pose(loaded(), small).problem.devices[0].memory_bytes == 3_000_000_000


def test_the_whole_model_that_stays_in_memory_counts() -> None:
    # Four segments of 1 MB, and 500 kB to work with.
    assert whole_bytes(MODEL) == 4_500_000
    statistics = DeviceStatistics(device=THIS_DEVICE, free_memory_bytes=7_000_000)
    surroundings = replace(
        around(EQUAL),
        profile=board(memory_bytes=10e6),
        statistics=statistics,
        keeps_whole=True,
    )
    found = pose(loaded(), surroundings)
    own = found.problem.devices[0]
    assert own.memory_bytes == 5_500_000
    assert found.problem.statistics_of(THIS_DEVICE).free_memory_bytes == 7_000_000
    assert found.notes[-1] == (
        "The whole model stays in memory on this device, to fall back on: 4.29 MiB."
    )
    # Alone it has the memory of what it keeps too.
    assert found.whole is not None
    alone, other = found.whole.devices
    assert (alone.memory_bytes, other.times) == (10_000_000, ())
    assert found.whole.statistics_of(THIS_DEVICE).free_memory_bytes == 11_500_000


def test_a_model_that_does_not_fit_is_not_kept_whole() -> None:
    surroundings = replace(around(EQUAL), profile=board(memory_bytes=4e6), keeps_whole=True)
    found = pose(loaded(), surroundings)
    assert found.problem.devices[0].memory_bytes == 4_000_000
    assert found.whole is None


def test_alone_nothing_is_kept_beside() -> None:
    own = Surroundings(keeps_whole=True, profile=board(memory_bytes=10e6))
    found = pose(loaded(), own)
    assert (found.problem.devices[0].memory_bytes, found.whole) == (10_000_000, None)


def test_what_was_pinned_to_this_device_stays_here() -> None:
    pinned = replace(loaded(), pinned=(None, UnitId("cpu"), None, None))
    (pin,) = pose(pinned, around(EQUAL)).problem.pins
    assert (pin.segment, pin.device, pin.unit) == (1, THIS_DEVICE, None)
    assert pose(pinned).problem.pins == ()


def test_a_pin_to_a_device_that_is_left_out_is_refused_with_the_reason() -> None:
    pin = SegmentPin(segment=0, device=BOX, pattern="conv*")
    with pytest.raises(BadRequest, match=r'pin "conv\*": box is left out: it has not told yet'):
        pose(loaded(), around(peer(BOX, "box", None)), pins=(pin,))
    with pytest.raises(BadRequest, match="which is not there"):
        pose(loaded(), pins=(pin,))


def test_what_a_request_brings_is_sent() -> None:
    problem = pose(loaded(), around(EQUAL), most_routes=2).problem
    assert (problem.input_bytes, problem.output_bytes) == (600_000, 4000)
    assert problem.most_routes == 2
    assert not problem.with_branches


def test_most_that_each_takes_at_once_is_known() -> None:
    limited = replace(around(replace(EQUAL, most_crossing_bytes=5)), most_crossing_bytes=7)
    assert [d.most_crossing_bytes for d in pose(loaded(), limited).problem.devices] == [7, 5]


def test_powers_are_those_of_the_profile() -> None:
    powered = replace(board(replace(processor(), busy_w=sourced(9.0))), idle_w=sourced(2.0))
    own = pose(loaded(), Surroundings(profile=powered)).problem.devices[0]
    assert [(u.id, u.idle_w, u.busy_w) for u in own.units] == [("cpu", 2.0, 9.0)]


def test_an_accelerator_of_a_peer_has_plain_estimates_where_none_was_measured_here() -> None:
    unit = accelerator_profile()
    found = device(posed(peer(PI, "pi", board(processor(), unit))))
    assert found.times[:2] == device(posed()).times
    (gpu,) = found.times[2:]
    assert gpu.segment_s == pytest.approx((0.2e-3, 0.4e-3, 0.8e-3, 0.2e-3))


def test_a_model_of_which_no_work_was_counted_is_refused_with_the_cure() -> None:
    bare = tuple(replace(one, work=()) for one in MODEL.segments)
    model = replace(loaded(), summary=replace(MODEL, segments=bare))
    with pytest.raises(BadRequest, match="no work by class"):
        pose(model, around(EQUAL))


def test_tensors_are_sent_in_fewer_bits_where_that_is_allowed_and_pays() -> None:
    slow = replace(around(EQUAL, bytes_per_s=1e6), wire=WireType.FP16)
    found = pose(loaded(), slow)
    assert [(k.source, k.target, k.wire, k.ratio) for k in found.problem.links] == [
        (THIS_DEVICE, PI, WireType.FP16, 0.5),
        (PI, THIS_DEVICE, WireType.FP16, 0.5),
    ]
    assert found.notes[-1] == (
        "Tensors are sent as fp16 where that pays: this device → pi (50 % of the bytes), "
        "pi → this device (50 % of the bytes)."
    )
    quick = NetworkProfile(
        encrypted_send_s_per_byte=sourced(1e-12), encrypted_receive_s_per_byte=sourced(1e-12)
    )
    there = replace(board(), network=quick)
    surroundings = replace(
        around(peer(PI, "pi", there), bytes_per_s=1e11), wire=WireType.FP16, profile=there
    )
    found = pose(loaded(), surroundings)
    assert [k.wire for k in found.problem.links] == [None, None]
    assert found.notes[-1] == "Tensors are sent as fp16 where that pays: nowhere."
    assert not any("sent as" in note for note in pose(loaded(), around(EQUAL)).notes)


def test_a_peer_that_says_what_cannot_be_is_left_out_and_the_others_are_not() -> None:
    other = peer(BOX, "box", board())
    wrong = stage(1, times(ONE, (50e-3, float("nan"))))
    found = pose(loaded(), around(EQUAL, other), {PI: [wrong]})
    assert [device.id for device in found.problem.devices] == [THIS_DEVICE, BOX]
    (out,) = found.left_out
    assert out.device == PI
    assert out.reason.startswith("what it says of itself cannot be: device pi2abc, ")
