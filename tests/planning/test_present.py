"""What live statistics make of speeds, memories and willingness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.planning.present import (
    budget_bytes,
    is_banned,
    is_spared,
    pool_bytes,
    slowdown,
)
from edge_agent.profiles import HOST_UNIT
from tests.planning.made_pairs import now, quick_neighbour, with_device, with_unit
from tests.simulation.made_problems import NPU, A, B


@pytest.mark.parametrize(
    ("state", "on_host", "on_npu"),
    [
        ({}, 1.0, 1.0),
        ({"load_fraction": 0.75}, 4.0, 1.0),
        ({"load_fraction": 1.0}, 20.0, 1.0),
        ({"speed_fraction": 0.5}, 2.0, 2.0),
        ({"load_fraction": 0.5, "speed_fraction": 0.5}, 4.0, 2.0),
        ({"load_fraction": 0.5, "slowdowns": ((NPU, 3.0),)}, 2.0, 3.0),
        ({"load_fraction": 0.5, "speed_fraction": 0.5, "slowdowns": ((HOST_UNIT, 0.9),)}, 0.9, 2.0),
    ],
)
def test_units_are_slowed_down_by_what_is_known_of_them(
    state: dict[str, object], on_host: float, on_npu: float
) -> None:
    made = now(quick_neighbour(), B, **state)
    assert slowdown(made, B, HOST_UNIT) == pytest.approx(on_host)
    assert slowdown(made, B, NPU) == pytest.approx(on_npu)
    assert slowdown(made, A, HOST_UNIT) == 1.0


def test_a_budget_is_what_is_free_of_what_may_be_used() -> None:
    made = with_device(quick_neighbour(), B, memory_bytes=1000)
    assert budget_bytes(made, B) == 1000
    assert budget_bytes(now(made, B, free_memory_bytes=400), B) == 400
    assert budget_bytes(now(made, B, free_memory_bytes=4000), B) == 1000


def test_memories_are_named_like_devices_and_units() -> None:
    made = with_unit(with_device(quick_neighbour(), B, memory_bytes=1000), B, NPU, memory_bytes=70)
    made = now(made, B, free_memory_bytes=400)
    assert pool_bytes(made, "b") == 400
    assert pool_bytes(made, "b/npu0") == 70


@pytest.mark.parametrize(("charge", "is_low"), [(None, False), (0.0, True), (0.2, False)])
def test_a_low_battery_spares_all_but_the_owner(charge: float | None, is_low: bool) -> None:
    assert is_spared(now(quick_neighbour(), B, battery_fraction=charge), B) is is_low
    assert not is_spared(now(quick_neighbour(), A, battery_fraction=charge), A)


def test_how_low_is_low_is_up_to_the_problem() -> None:
    made = now(quick_neighbour(), B, battery_fraction=0.0)
    assert not is_spared(replace(made, least_battery_fraction=0.0), B)


def test_a_device_is_banned_once_none_of_its_units_may_be_used() -> None:
    made = with_unit(quick_neighbour(), B, HOST_UNIT, banned_because="it is loud")
    assert not is_banned(made, B)
    assert is_banned(with_unit(made, B, NPU, banned_because="it is hot"), B)
    # One without units is not.
    assert not is_banned(with_device(made, B, units=(), times=()), B)
    # The owner has every request and every answer in any case.
    whole = with_unit(quick_neighbour(), A, HOST_UNIT, banned_because="it is loud")
    assert not is_banned(with_unit(whole, A, NPU, banned_because="it is hot"), A)
