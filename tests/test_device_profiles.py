"""The device profiles that come with edge-agent: each value is possible and says where from."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from edge_agent.devices import UnitKind
from edge_agent.hardware import DeviceProfile, Source, Sourced, SourceKind, UnitProfile
from edge_agent.profile_files import reading
from edge_agent.profiles import HOST_UNIT
from edge_agent.summaries import Arithmetic

FILES = sorted((Path(__file__).parents[1] / "device_profiles").glob("*.toml"))

THEORETICAL_GB_PER_S = {
    # Bits of the bus x transfers a second / 8.
    "framework-13-ryzen-ai-340-16gb": 128 * 5.6 / 8,
    "jetson-agx-orin-64gb": 256 * 6.4 / 8,
    "jetson-orin-nano-8gb": 128 * 4.266 / 8,
    "lattepanda-mu-n100-8gb": 64 * 4.8 / 8,
    "orange-pi-5-8gb": 64 * 4.224 / 8,
    "poweredge-xr5610-l4": 8 * 64 * 4.4 / 8,
    "raspberry-pi-4-4gb": 32 * 3.2 / 8,
    "raspberry-pi-5-8gb": 32 * 4.267 / 8,
    "raspberry-pi-zero-2-w": 32 * 0.9 / 8,
    "snapdragon-x-elite-dev-kit-32gb": 128 * 8.533 / 8,
    "verdin-imx8m-plus-4gb": 32 * 4.0 / 8,
    "zenbook-14-core-ultra-155h-32gb": 128 * 7.467 / 8,
}
"""Of the device's memory, by profile."""
MAKERS = {
    "framework-13-ryzen-ai-340-16gb": {"www.amd.com": "AMD"},
    "jetson-agx-orin-64gb": {"www.nvidia.com": "NVIDIA"},
    "jetson-orin-nano-8gb": {"www.nvidia.com": "NVIDIA"},
    "lattepanda-mu-n100-8gb": {"www.intel.com": "Intel", "docs.lattepanda.com": "LattePanda"},
    "orange-pi-5-8gb": {"www.orangepi.org": "Orange Pi"},
    "poweredge-xr5610-l4": {"www.nvidia.com": "NVIDIA"},
    "raspberry-pi-4-4gb": {"datasheets.raspberrypi.com": "Raspberry Pi"},
    "raspberry-pi-5-8gb": {"datasheets.raspberrypi.com": "Raspberry Pi"},
    "raspberry-pi-zero-2-w": {"datasheets.raspberrypi.com": "Raspberry Pi"},
    "snapdragon-x-elite-dev-kit-32gb": {"www.qualcomm.com": "Qualcomm"},
    "verdin-imx8m-plus-4gb": {"www.nxp.com": "NXP", "www.toradex.com": "Toradex"},
    "zenbook-14-core-ultra-155h-32gb": {"www.intel.com": "Intel", "www.asus.com": "Asus"},
}
"""Where the makers of a device and of its chips say what they can do, and who they are."""
L4_GB_PER_S = 192 * 12.5 / 8

SORTS: dict[str, Callable[[DeviceProfile], bool]] = {
    "Raspberry Pi 4": lambda profile: "Raspberry Pi 4" in profile.name,
    "Raspberry Pi 5": lambda profile: "Raspberry Pi 5" in profile.name,
    "Jetson Orin Nano": lambda profile: "Orin Nano" in profile.name and _has(profile, UnitKind.GPU),
    "RK3588 with its NPU": lambda profile: "RK3588" in profile.name and _has(profile, UnitKind.NPU),
    "Intel N100 box": lambda profile: "N100" in profile.name,
    "Snapdragon with its NPU": lambda profile: (
        "Snapdragon" in profile.name and _has(profile, UnitKind.NPU)
    ),
    "laptop with an integrated GPU": lambda profile: (
        "Laptop" in profile.name and _has(profile, UnitKind.GPU)
    ),
    "server GPU": lambda profile: any(unit.memory_bytes is not None for unit in profile.units),
}


def _has(profile: DeviceProfile, kind: UnitKind) -> bool:
    return any(unit.kind is kind for unit in profile.units)


def _values(found: object) -> Iterator[Sourced]:
    """All values below, with their sources."""
    if isinstance(found, Sourced):
        yield found
    elif isinstance(found, tuple):
        for one in found:
            yield from _values(one)
    elif dataclasses.is_dataclass(found) and not isinstance(found, (type, Source)):
        for field in dataclasses.fields(found):
            yield from _values(getattr(found, field.name))


def _host(profile: DeviceProfile) -> UnitProfile:
    return next(unit for unit in profile.units if unit.id == HOST_UNIT)


@pytest.fixture(scope="module")
def profiles() -> tuple[DeviceProfile, ...]:
    return tuple(reading.load(path) for path in FILES)


@pytest.fixture(params=FILES, ids=[path.stem for path in FILES])
def profile(request: pytest.FixtureRequest) -> DeviceProfile:
    return reading.load(request.param)


def test_a_profile_is_called_as_its_file() -> None:
    assert [reading.load(path).id for path in FILES] == [path.stem for path in FILES]


def test_no_two_profiles_have_one_name(profiles: tuple[DeviceProfile, ...]) -> None:
    assert len(profiles) >= 10
    assert len({profile.name for profile in profiles}) == len(profiles)


@pytest.mark.parametrize("sort", SORTS)
def test_a_device_of_each_sort_that_people_have_is_there(
    profiles: tuple[DeviceProfile, ...], sort: str
) -> None:
    assert any(SORTS[sort](profile) for profile in profiles)


def test_every_source_is_used(profile: DeviceProfile) -> None:
    used = {value.source.key for value in _values(profile)}
    assert used == {source.key for source in profile.sources}


def test_every_source_says_what_it_is_and_when_it_was_read(profile: DeviceProfile) -> None:
    for source in profile.sources:
        assert len(source.text) >= 30, source.key
        assert source.date >= datetime.date(2026, 1, 1), source.key
        assert not source.url or source.url.startswith(("https://", "http://")), source.key


def test_a_data_sheet_is_of_a_maker_who_is_named_and_at_whose_address_it_is(
    profile: DeviceProfile,
) -> None:
    for source in profile.sources:
        if source.kind is SourceKind.DATA_SHEET:
            host = urlsplit(source.url).hostname
            assert host in MAKERS[profile.id], source.key
            assert source.text.startswith(MAKERS[profile.id][host]), source.key


def test_what_others_say_of_a_specification_has_their_address(profile: DeviceProfile) -> None:
    told = [source for source in profile.sources if source.kind is SourceKind.THIRD_PARTY]
    assert all(source.url for source in told)


def test_what_was_computed_says_how_and_everything_that_says_how_was(
    profile: DeviceProfile,
) -> None:
    for source in profile.sources:
        if source.kind is SourceKind.COMPUTED:
            assert re.search(r"\d.* x |halved", source.text), source.key
        if source.kind in (SourceKind.DATA_SHEET, SourceKind.THIRD_PARTY):
            assert not re.search(r" x [\d.]+ GHz|operations a cycle|halved", source.text), (
                source.key
            )


def test_what_was_measured_elsewhere_can_be_looked_up(profile: DeviceProfile) -> None:
    published = [s for s in profile.sources if s.kind is SourceKind.PUBLISHED]
    assert all(source.url for source in published)


def test_nothing_claims_to_have_been_measured_here(profile: DeviceProfile) -> None:
    assert all(source.kind is not SourceKind.MEASURED for source in profile.sources)


def test_cores_memory_and_float_peak_are_no_estimates(profile: DeviceProfile) -> None:
    host = _host(profile)
    assert host.cores is not None
    facts = (profile.memory_bytes, host.cores, dict(host.operations_per_s)[Arithmetic.FLOAT32])
    assert all(value.source.kind is not SourceKind.ESTIMATE for value in facts)


def test_memory_is_of_a_size_that_is_sold(profile: DeviceProfile) -> None:
    assert 2**29 <= profile.memory_bytes.value <= 2**40
    if profile.available_bytes is not None:
        assert profile.memory_bytes.value / 2 < profile.available_bytes.value


def test_narrower_numbers_are_no_slower(profile: DeviceProfile) -> None:
    for unit in profile.units:
        rates = [rate.value for _, rate in unit.operations_per_s]
        assert rates == sorted(rates), unit.id


def test_a_core_does_what_vector_units_allow(profile: DeviceProfile) -> None:
    host = _host(profile)
    assert host.cores is not None
    peaks = {arithmetic: rate.value for arithmetic, rate in host.operations_per_s}
    of_one = {arithmetic: rate.value for arithmetic, rate in host.core_operations_per_s}
    # From one 128-bit FMA a cycle at 1 GHz to two of 512 bits at 4 GHz.
    for one in (peaks[Arithmetic.FLOAT32] / host.cores.value, of_one.get(Arithmetic.FLOAT32, 8e9)):
        assert 8e9 <= one <= 256e9
    # AVX-512 VNNI and the Arm dot product do four times as many int8 operations as float32 ones,
    # some pipelines a little more in a measurement.
    assert peaks[Arithmetic.INT8] <= 4.1 * peaks[Arithmetic.FLOAT32]


def test_no_unit_moves_more_than_its_memory_can(profile: DeviceProfile) -> None:
    for unit in profile.units:
        theoretical = THEORETICAL_GB_PER_S[profile.id] if unit.memory_bytes is None else L4_GB_PER_S
        rate = unit.bandwidth_bytes_per_s.value
        assert theoretical / 5 <= rate / 1e9 <= theoretical, unit.id


def test_what_one_core_gets_of_the_memory_is_known(profile: DeviceProfile) -> None:
    host = _host(profile)
    assert host.core_bandwidth_bytes_per_s is not None
    assert host.cores is not None
    share = host.core_bandwidth_bytes_per_s.value / host.bandwidth_bytes_per_s.value
    assert 1 / host.cores.value <= share <= 1


def test_an_operator_costs_less_than_a_launch(profile: DeviceProfile) -> None:
    for unit in profile.units:
        assert 5e-6 <= unit.launch_s.value <= 1e-3, unit.id
        assert 0.2e-6 <= unit.operator_s.value <= unit.launch_s.value / 3, unit.id


def test_an_accelerator_takes_longer_to_start_than_the_processor(profile: DeviceProfile) -> None:
    host = _host(profile)
    for unit in profile.units:
        if unit is not host:
            assert unit.launch_s.value > host.launch_s.value, unit.id
            assert unit.operator_s.value > host.operator_s.value, unit.id


def test_bytes_on_their_way_to_a_unit_take_time(profile: DeviceProfile) -> None:
    for unit in profile.units:
        if unit.kind is not UnitKind.CPU:
            assert unit.border_s_per_byte is not None, unit.id
            assert 10e-12 <= unit.border_s_per_byte.value <= 1e-9, unit.id


def test_receiving_and_encryption_cost_more(profile: DeviceProfile) -> None:
    network = profile.network
    paces = (
        network.send_s_per_byte,
        network.receive_s_per_byte,
        network.encrypted_send_s_per_byte,
        network.encrypted_receive_s_per_byte,
    )
    values = [pace.value for pace in paces if pace is not None]
    assert len(values) == 4
    assert values == sorted(values)
    assert 0.1e-9 <= values[0] <= values[-1] <= 30e-9


def test_work_costs_power(profile: DeviceProfile) -> None:
    assert profile.idle_w is not None
    assert 0.2 <= profile.idle_w.value <= 400
    for unit in profile.units:
        assert unit.busy_w is not None, unit.id
        above_idle_w = unit.busy_w.value - profile.idle_w.value
        assert 1 <= above_idle_w <= 300, unit.id
        rates = dict(unit.operations_per_s)
        if Arithmetic.INT8 in rates:
            # At its peak, from what an old in-order core does to what the best NPUs claim.
            assert 1e10 <= rates[Arithmetic.INT8].value / above_idle_w <= 1e13, unit.id


def test_an_npu_for_whole_numbers_says_so(profile: DeviceProfile) -> None:
    for unit in profile.units:
        if Arithmetic.FLOAT32 not in dict(unit.operations_per_s):
            assert unit.kind is UnitKind.NPU, unit.id
            assert Arithmetic.INT8 in unit.takes, unit.id
            assert Arithmetic.FLOAT32 not in unit.takes, unit.id


def test_thread_counts_go_from_one_to_the_cores(profile: DeviceProfile) -> None:
    host = _host(profile)
    assert host.cores is not None
    assert host.threads[0] == 1
    assert host.threads[-1] <= host.cores.value
