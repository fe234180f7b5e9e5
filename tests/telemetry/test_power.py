from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.telemetry.power import PowerMeter, find_meter


def _write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def _zone(root: Path, number: str, name: str, energy_uj: int) -> Path:
    folder = f"sys/class/powercap/intel-rapl:{number}"
    _write(root, f"{folder}/name", f"{name}\n")
    _write(root, f"{folder}/max_energy_range_uj", "1000000000\n")
    return _write(root, f"{folder}/energy_uj", f"{energy_uj}\n")


class _Clock:
    """Time that passes when somebody sleeps, and what happens then."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then
        self.now_s = 100.0

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self._then()

    def measured_w(self, meter: PowerMeter, duration_s: float) -> float | None:
        return meter.measure_w(duration_s, self.sleep, lambda: self.now_s)


def test_a_device_without_a_meter_has_none(tmp_path: Path) -> None:
    assert find_meter(tmp_path) is None


def test_the_energy_of_all_processors_over_the_time_is_their_power(tmp_path: Path) -> None:
    first = _zone(tmp_path, "0", "package-0", 5_000_000)
    second = _zone(tmp_path, "1", "package-1", 0)
    _zone(tmp_path, "0:0", "core", 1)
    meter = find_meter(tmp_path)
    assert meter is not None
    assert meter.text == "2 processors, RAPL package"

    def use() -> None:
        first.write_text("25000000\n")
        second.write_text("10000000\n")

    assert _Clock(use).measured_w(meter, 2.0) == pytest.approx((20 + 10) / 2)


def test_a_counter_that_wraps_goes_on_from_its_range(tmp_path: Path) -> None:
    counter = _zone(tmp_path, "0", "package-0", 999_000_000)
    meter = find_meter(tmp_path)
    assert meter is not None
    clock = _Clock(lambda: counter.write_text("3000000\n"))
    assert clock.measured_w(meter, 1.0) == pytest.approx(4.0)


def test_what_sees_the_whole_platform_is_preferred(tmp_path: Path) -> None:
    _zone(tmp_path, "0", "package-0", 1)
    platform = _zone(tmp_path, "1", "psys", 1)
    meter = find_meter(tmp_path)
    assert meter is not None
    assert meter.energies == (platform,)


def test_a_counter_that_only_root_may_read_is_no_meter(tmp_path: Path) -> None:
    counter = _zone(tmp_path, "0", "package-0", 1)
    counter.unlink()
    assert find_meter(tmp_path) is None


def test_the_supply_of_a_board_is_volts_times_amperes(tmp_path: Path) -> None:
    _zone(tmp_path, "0", "package-0", 1)
    folder = "sys/class/hwmon/hwmon3"
    _write(tmp_path, f"{folder}/name", "ina3221\n")
    for number, supply, millivolts, milliamperes in (
        (1, "VDD_IN", 5000, 1200),
        (2, "VDD_CPU_GPU_CV", 5000, 300),
    ):
        _write(tmp_path, f"{folder}/in{number}_label", f"{supply}\n")
        _write(tmp_path, f"{folder}/in{number}_input", f"{millivolts}\n")
        _write(tmp_path, f"{folder}/curr{number}_input", f"{milliamperes}\n")
    meter = find_meter(tmp_path)
    assert meter is not None
    assert meter.text == "the whole board, ina3221 at VDD_IN"
    assert _Clock().measured_w(meter, 0.2) == pytest.approx(6.0)


def test_samples_of_a_power_are_averaged(tmp_path: Path) -> None:
    folder = "sys/class/hwmon/hwmon0"
    _write(tmp_path, f"{folder}/name", "ina226\n")
    power = _write(tmp_path, f"{folder}/power1_input", "2000000\n")
    meter = find_meter(tmp_path)
    assert meter is not None
    clock = _Clock(lambda: power.write_text("4000000\n"))
    # 2 W, then 4 W.
    assert clock.measured_w(meter, 0.08) == pytest.approx(3.0)


def test_a_meter_that_goes_away_gives_nothing(tmp_path: Path) -> None:
    counter = _zone(tmp_path, "0", "package-0", 1)
    meter = find_meter(tmp_path)
    assert meter is not None
    assert _Clock(counter.unlink).measured_w(meter, 1.0) is None
