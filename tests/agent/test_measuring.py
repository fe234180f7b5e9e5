"""This device is measured by child processes: slice by slice, and they end when they must."""

from __future__ import annotations

import threading

import msgspec
import pytest

from edge_agent.agent.measuring import Measuring, measured_here
from edge_agent.devices import ComputeUnit, Device, Layout, UnitId, UnitKind
from edge_agent.errors import BuilderLost
from edge_agent.summaries import Arithmetic

CPU = ComputeUnit(
    id=UnitId("cpu"),
    kind=UnitKind.CPU,
    provider="CPUExecutionProvider",
    provider_version="1",
    layouts=(Layout.NCHW,),
    cores=1,
)
DEVICE = Device(
    hostname="pi",
    processor="A76",
    cores=(0,),
    memory_bytes=8 << 30,
    runtime_version="1",
    runtime_build="onnxruntime",
    units=(CPU,),
)


def say_nothing(_what: str) -> None:
    pass


def test_every_slice_waits_for_its_turn_and_who_stops_it_ends_it_there() -> None:
    asked = threading.Event()
    told: list[str] = []

    def wait_for_turn() -> None:
        asked.set()
        measuring.stop()

    measuring = Measuring(told.append, wait_for_turn, is_background=True)
    with pytest.raises(BuilderLost, match=r"^stopped$"):
        measuring.ask("rates", _cpu_text())
    assert asked.is_set()
    with pytest.raises(BuilderLost, match=r"^stopped$"):
        measuring.ask("installed")


def test_one_that_is_stopped_from_another_thread_does_not_hang() -> None:
    begun = threading.Event()
    never = threading.Event()

    def wait_for_turn() -> None:
        begun.set()
        assert never.wait(10)

    def stop() -> None:
        assert begun.wait(10)
        measuring.stop()
        never.set()

    measuring = Measuring(say_nothing, wait_for_turn)
    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(BuilderLost, match=r"^stopped$"):
        measuring.ask("rates", _cpu_text())
    stopping.join()


def test_a_child_that_crashes_or_says_nothing_is_told() -> None:
    measuring = Measuring(say_nothing)
    with pytest.raises(BuilderLost, match=r"^measuring ended with code 1: .*Error"):
        measuring.ask("rates", "no JSON")
    with pytest.raises(BuilderLost, match=r"^measuring did not end within 0\.01 s$"):
        measuring.ask("rates", _cpu_text(), limit_s=0.01)


@pytest.mark.long
@pytest.mark.alone
def test_a_processor_is_measured_with_its_rates_and_their_source() -> None:
    source = measured_here(DEVICE)
    found = Measuring(say_nothing, is_background=True).profile(DEVICE, source, 60.0)
    (cpu,) = found.profile.units
    assert {arithmetic for arithmetic, _ in cpu.operations_per_s} == {
        Arithmetic.FLOAT32,
        Arithmetic.INT8,
    }
    assert cpu.bandwidth_bytes_per_s.source == source
    assert 0.0 <= found.load_fraction <= 1.0


def _cpu_text() -> str:
    return msgspec.json.encode(CPU).decode()
