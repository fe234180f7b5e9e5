"""What is wrong with a planning problem is told: where, what was got, what is wanted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from edge_agent.devices import DeviceId, UnitId
from edge_agent.plans import UNITS, Bound, Target
from edge_agent.problems import (
    DeviceStatistics,
    Link,
    PlannedDevice,
    PlannedUnit,
    Problem,
    SegmentPin,
)
from edge_agent.profiles import HOST_UNIT
from tests.planning.made_pairs import HOST, quick_neighbour
from tests.simulation.made_problems import NPU, A, B, C, device, host, link, npu, times

DEVICE = device(A, times(HOST, [0.01] * 3))
UNIT = PlannedUnit(id=HOST_UNIT, idle_w=1.0, busy_w=2.0)
LINK = link(A, B)
STATE = DeviceStatistics(device=B)
NOT_NUMBERS = [(-1.0, "-1"), (math.nan, "nan"), (math.inf, "inf")]


def refuses(made: Any, message: str, **changes: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(made, **changes)


# Units


@pytest.mark.parametrize("key", ["idle_w", "busy_w"])
@pytest.mark.parametrize(("number", "text"), NOT_NUMBERS)
def test_a_power_is_a_number_of_at_least_0(key: str, number: float, text: str) -> None:
    refuses(UNIT, f"unit cpu: got {key} {text}, want a number of at least 0", **{key: number})


def test_a_unit_draws_no_less_when_it_works() -> None:
    refuses(UNIT, "unit cpu: got busy_w 0.5 below idle_w 1", busy_w=0.5)


def test_a_memory_of_its_own_is_not_negative() -> None:
    refuses(UNIT, "unit cpu: got memory_bytes -1, want at least 0", memory_bytes=-1)


# Devices


@pytest.mark.parametrize("key", ["send_s_per_byte", "receive_s_per_byte"])
@pytest.mark.parametrize(("number", "text"), NOT_NUMBERS)
def test_processor_time_of_a_byte_is_a_number_of_at_least_0(
    key: str, number: float, text: str
) -> None:
    refuses(DEVICE, f"device a: got {key} {text}, want a number of at least 0", **{key: number})


def test_a_memory_budget_is_not_negative() -> None:
    refuses(DEVICE, "device a: got memory_bytes -1, want a number of at least 0", memory_bytes=-1)


def test_the_largest_message_is_not_negative() -> None:
    refuses(
        DEVICE,
        "device a: got most_crossing_bytes -1, want a number of at least 0",
        most_crossing_bytes=-1,
    )


def test_a_device_has_a_core() -> None:
    refuses(DEVICE, "device a: got 0 cores, want at least 1", cores=0)


def test_a_device_has_each_unit_once() -> None:
    refuses(DEVICE, "device a: got one unit twice among cpu, cpu", units=(UNIT, UNIT))


def test_times_are_of_a_unit_of_the_device() -> None:
    refuses(
        DEVICE,
        "device a: got times of unit npu0, which it has not: it has cpu",
        units=(UNIT,),
        times=(times(npu(), [0.01]),),
    )
    refuses(DEVICE, "it has none", units=())


def test_a_configuration_has_its_times_once() -> None:
    refuses(DEVICE, f"device a: got the times of {HOST} twice", times=DEVICE.times * 2)


@pytest.mark.parametrize(
    "key", ["overhead_s", "border_s_per_byte", "error_fraction", "turn_s_per_byte"]
)
@pytest.mark.parametrize(("number", "text"), NOT_NUMBERS)
def test_a_fitted_time_is_a_number_of_at_least_0(key: str, number: float, text: str) -> None:
    (fitted,) = DEVICE.times
    wrong = replace(fitted, **{key: number})  # type: ignore[arg-type]
    message = f"device a, {HOST}: got {key} {text}, want a number of at least 0"
    refuses(DEVICE, message, times=(wrong,))


@pytest.mark.parametrize(("number", "text"), NOT_NUMBERS)
def test_a_time_of_a_segment_is_a_number_of_at_least_0(number: float, text: str) -> None:
    (fitted,) = DEVICE.times
    wrong = replace(fitted, segment_s=(0.01, number, 0.01))
    message = f"device a, {HOST}: got segment_s {text} of segment 1, want a number of at least 0"
    refuses(DEVICE, message, times=(wrong,))


def test_no_more_of_a_border_is_spent_on_turning_than_there_is() -> None:
    (fitted,) = DEVICE.times
    wrong = replace(fitted, border_s_per_byte=1e-9, turn_s_per_byte=2e-9)
    message = f"device a, {HOST}: got turn_s_per_byte 2e-09 above border_s_per_byte 1e-09"
    refuses(DEVICE, message, times=(wrong,))


def test_a_configuration_runs_at_least_once_at_a_time() -> None:
    none = host(instances=0)
    message = f"device a, {none}: got 0 instances, want at least 1"
    refuses(DEVICE, message, times=(times(none, [0.01] * 3),))


@pytest.mark.parametrize("segment", [-1, 3])
def test_a_refused_segment_is_one_of_the_model(segment: int) -> None:
    made = quick_neighbour()
    (fitted,) = made.devices[0].times
    wrong = replace(made.devices[0], times=(replace(fitted, refused=(segment,)),))
    refuses(
        made,
        f"device a, {HOST}: got refused segment {segment}, want 0 to 2",
        devices=(wrong, made.devices[1]),
    )


# Links


@pytest.mark.parametrize("key", ["latency_s", "joules_per_byte"])
@pytest.mark.parametrize(("number", "text"), NOT_NUMBERS)
def test_what_a_link_costs_is_a_number_of_at_least_0(key: str, number: float, text: str) -> None:
    refuses(LINK, f"link a-b: got {key} {text}, want a number of at least 0", **{key: number})


@pytest.mark.parametrize(("number", "text"), [*NOT_NUMBERS, (0.0, "0")])
def test_a_link_carries_something(number: float, text: str) -> None:
    message = f"link a-b: got goodput_bytes_per_s {text}, want above 0"
    refuses(LINK, message, goodput_bytes_per_s=number)


def test_a_link_goes_from_one_device_to_another() -> None:
    refuses(LINK, "link a-a: got a link from a device to itself", target=A)


# Statistics


@pytest.mark.parametrize("key", ["load_fraction", "speed_fraction", "battery_fraction"])
@pytest.mark.parametrize(("number", "text"), [*NOT_NUMBERS, (1.5, "1.5")])
def test_a_fraction_is_from_0_to_1(key: str, number: float, text: str) -> None:
    refuses(STATE, f"statistics of b: got {key} {text}, want 0 to 1", **{key: number})


def test_a_device_without_any_speed_is_left_out() -> None:
    message = "statistics of b: got speed_fraction 0, want above 0; leave the device out"
    refuses(STATE, message, speed_fraction=0.0)


def test_free_memory_is_not_negative() -> None:
    message = "statistics of b: got free_memory_bytes -1, want at least 0"
    refuses(STATE, message, free_memory_bytes=-1)


@pytest.mark.parametrize(("number", "text"), [*NOT_NUMBERS, (0.0, "0")])
def test_a_slowdown_is_above_0(number: float, text: str) -> None:
    message = f"statistics of b: got slowdown {text} of cpu, want above 0"
    refuses(STATE, message, slowdowns=((HOST_UNIT, number),))


def test_a_unit_is_slowed_down_once() -> None:
    message = "statistics of b: got the slowdown of one unit twice"
    refuses(STATE, message, slowdowns=((HOST_UNIT, 1.0), (HOST_UNIT, 2.0)))


@pytest.mark.parametrize(("number", "text"), NOT_NUMBERS)
@pytest.mark.parametrize("target", list(Target))
def test_a_bound_is_a_number_of_at_least_0(target: Target, number: float, text: str) -> None:
    told = f"bound on {target}: got {text}, want a finite number of at least 0, in {UNITS[target]}"
    with pytest.raises(ValueError, match=f"^{told}$"):
        Bound(target=target, limit=number)


# Problems


def _twice(key: str) -> dict[str, Any]:
    return {key: getattr(quick_neighbour(), key) * 2}


NOWHERE = DeviceId("nowhere")
WRONG: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: _twice("devices"), "got one device twice among a, b, a, b"),
    (
        lambda: {"owner": NOWHERE},
        "owner: got device nowhere, which is not there: there are a, b",
    ),
    (
        lambda: {"links": (link(A, NOWHERE),)},
        "link: got device nowhere, which is not there: there are a, b",
    ),
    (lambda: {"links": (link(C, A),)}, "link: got device c, which is not there: there are a, b"),
    (
        lambda: {"statistics": (DeviceStatistics(device=NOWHERE),)},
        "statistics: got device nowhere, which is not there: there are a, b",
    ),
    (
        lambda: {"pins": (SegmentPin(segment=0, device=NOWHERE),)},
        "pin: got device nowhere, which is not there: there are a, b",
    ),
    (lambda: _twice("links"), "link a-b: got it twice"),
    (lambda: {"statistics": (STATE, STATE)}, "statistics b: got it twice"),
    (
        lambda: {"bounds": (Bound(target=Target.ENERGY, limit=1.0),) * 2},
        "bound energy: got it twice",
    ),
    (lambda: {"input_bytes": -1}, "problem: got input_bytes -1, want a number of at least 0"),
    (lambda: {"output_bytes": -1}, "problem: got output_bytes -1, want a number of at least 0"),
    (
        lambda: {"least_battery_fraction": 1.1},
        "problem: got least_battery_fraction 1.1, want 0 to 1",
    ),
    (
        lambda: {"least_battery_fraction": math.nan},
        "problem: got least_battery_fraction nan, want 0 to 1",
    ),
    (lambda: {"chunk_bytes": 0}, "chunk_bytes: got 0, want at least 1"),
    (lambda: {"most_routes": 0}, "most_routes: got 0, want at least 1"),
    (
        lambda: {"devices": (device(A, times(HOST, [0.01] * 2)), quick_neighbour().devices[1])},
        f"device a, {HOST}: got times of 2 segments, want 3",
    ),
    (
        lambda: {"pins": (SegmentPin(segment=3, device=A, pattern="conv*"),)},
        'pin "conv*": got segment 3, want 0 to 2',
    ),
    (
        lambda: {"pins": (SegmentPin(segment=-1, device=A, pattern="conv*"),)},
        'pin "conv*": got segment -1, want 0 to 2',
    ),
    (
        lambda: {"pins": (SegmentPin(segment=0, device=A, unit=UnitId("gpu7"), pattern="conv*"),)},
        'pin "conv*": a has no unit gpu7, it has cpu, npu0',
    ),
    (
        lambda: {"statistics": (DeviceStatistics(device=A, slowdowns=((UnitId("gpu7"), 2.0),)),)},
        "statistics of a: got a slowdown of unit gpu7, it has cpu, npu0",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_problem_that_cannot_be_is_refused(
    changes: Callable[[], dict[str, Any]], message: str
) -> None:
    refuses(quick_neighbour(), message, **changes())


def test_what_is_at_the_limits_is_taken() -> None:
    assert isinstance(replace(UNIT, idle_w=0.0, busy_w=0.0, memory_bytes=0), PlannedUnit)
    assert isinstance(replace(DEVICE, memory_bytes=0, most_crossing_bytes=0), PlannedDevice)
    assert isinstance(replace(LINK, latency_s=0.0, goodput_bytes_per_s=1e-300), Link)
    assert isinstance(
        replace(
            STATE,
            load_fraction=1.0,
            free_memory_bytes=0,
            speed_fraction=1e-9,
            battery_fraction=0.0,
            slowdowns=((HOST_UNIT, 1e-9), (NPU, 1e9)),
        ),
        DeviceStatistics,
    )
    pins = tuple(SegmentPin(segment=s, device=A, unit=HOST_UNIT) for s in (0, 2))
    assert isinstance(replace(quick_neighbour(), pins=pins, chunk_bytes=1), Problem)


def test_what_is_not_said_is_an_idle_device_and_no_bound() -> None:
    made = quick_neighbour()
    assert made.statistics_of(B) == DeviceStatistics(device=B)
    assert made.bound(Target.LATENCY) is None
    made = replace(made, bounds=(Bound(target=Target.LATENCY, limit=0.5),))
    assert made.bound(Target.LATENCY) == 0.5
    assert made.device(B).id == B


def test_links_of_one_medium_are_one_resource() -> None:
    there, back = link(A, B), link(B, A)
    assert there.resource != back.resource
    assert replace(there, medium="air").resource == replace(back, medium="air").resource


def test_a_changed_problem_has_the_links_devices_and_state_that_it_was_given() -> None:
    """And not those that were looked up in the one before."""
    before = replace(quick_neighbour(), links=(LINK,), statistics=(STATE,))
    assert before.link(A, B) is LINK
    assert before.link(B, A) is None
    assert (before.device(B), before.statistics_of(B)) == (before.devices[1], STATE)
    back, busy = link(B, A), replace(STATE, load_fraction=0.5)
    slower = replace(before.devices[1], send_s_per_byte=1.0)
    after = replace(before, links=(back,), statistics=(busy,), devices=(before.devices[0], slower))
    assert (after.link(A, B), after.link(B, A)) == (None, back)
    assert (after.device(B), after.statistics_of(B)) == (slower, busy)


def test_what_was_looked_up_makes_no_difference_between_problems() -> None:
    asked, fresh = quick_neighbour(), quick_neighbour()
    assert (asked.device(A), asked.link(A, B)) == (fresh.devices[0], fresh.links[0])
    assert (asked, hash(asked), repr(asked)) == (fresh, hash(fresh), repr(fresh))
    assert msgspec.to_builtins(asked) == msgspec.to_builtins(fresh)
