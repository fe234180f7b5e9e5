"""This device is measured once, and again only if there is a reason."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.agent import own_profile
from edge_agent.agent.measuring import Measured
from edge_agent.agent.own_profile import OwnProfile
from edge_agent.agent.turns import Turn
from edge_agent.config import Settings
from edge_agent.devices import Device
from edge_agent.errors import BuilderLost
from edge_agent.hardware import DeviceProfile
from edge_agent.store.folder import make_folder
from tests.agent.test_measuring import CPU, DEVICE
from tests.made_profiles import profile
from tests.system.running import wait_until

QUIET = Measured(profile=profile("quiet"), load_fraction=0.01)
BUSY = Measured(profile=profile("busy"), load_fraction=0.6)
BUSIER = Measured(profile=profile("busier"), load_fraction=0.7)


class Idle:
    """No request is under way."""

    def quiet_for_s(self) -> float:
        return 1e9


class Prober:
    """Knows the device, which may become another one."""

    def __init__(self, device: Device) -> None:
        self.known: Device | None = device

    def device(self) -> Device:
        assert self.known is not None
        return self.known


class Host:
    """What there is of the agent."""

    def __init__(self, device: Device) -> None:
        self.building = Turn()
        self.prober = Prober(device)


class Bench:
    """Finds what a test says, one after the other, and then fails."""

    def __init__(self, *found: Measured) -> None:
        self.left = list(found)
        self.count = 0

    def measure(self, device: Device) -> Measured:
        self.count += 1
        if not self.left:
            raise BuilderLost("nothing is left")
        found = self.left.pop(0)
        memory = replace(found.profile.memory_bytes, value=float(device.memory_bytes))
        return replace(found, profile=replace(found.profile, memory_bytes=memory))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_profile, "FIRST_S", 0.0)
    monkeypatch.setattr(own_profile, "FIRST_AGAIN_S", 0.02)
    monkeypatch.setattr(own_profile, "LOOK_S", 0.02)


@contextmanager
def begun(folder: Path, bench: Bench, host: Host) -> Iterator[list[DeviceProfile]]:
    """The profiles that are known one after the other."""
    make_folder(folder)
    known: list[DeviceProfile] = []
    settings = Settings(socket=folder / "socket", state=folder, cache=folder)
    made = OwnProfile(
        settings,
        Idle(),
        host,  # type: ignore[arg-type]
        lambda found, _speed: known.append(found),
        bench.measure,
    )
    made.begin()
    try:
        yield known
    finally:
        made.stop()


def names(known: list[DeviceProfile]) -> list[str]:
    return [found.id for found in known]


def test_it_is_measured_once_and_comes_from_disk_after_a_start(tmp_path: Path) -> None:
    bench, host = Bench(QUIET), Host(DEVICE)
    with begun(tmp_path, bench, host) as known:
        wait_until(lambda: names(known) == ["quiet"], "the profile")
    with begun(tmp_path, bench, host) as known:
        wait_until(lambda: names(known) == ["quiet"], "the profile")
        threading.Event().wait(0.1)
    assert bench.count == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(DEVICE, runtime_version="2"),
        replace(DEVICE, runtime_build="onnxruntime-webgpu"),
        replace(DEVICE, processor="A720"),
        replace(DEVICE, units=(replace(CPU, cores=2),)),
        replace(DEVICE, memory_bytes=4 << 30),
    ],
    ids=["version", "build", "processor", "cores", "memory"],
)
def test_another_device_is_measured_again_after_a_start_and_while_the_agent_runs(
    tmp_path: Path, other: Device
) -> None:
    bench, host = Bench(QUIET, BUSY), Host(DEVICE)
    with begun(tmp_path, bench, host) as known:
        wait_until(lambda: names(known) == ["quiet"], "the profile")
    bench.left = [replace(QUIET, profile=profile("other"))]
    with begun(tmp_path, bench, Host(other)) as known:
        # Until the device is known, what was measured is better than nothing.
        wait_until(lambda: names(known) == ["quiet", "other"], "the profile of the other one")
    host = Host(other)
    with begun(tmp_path, bench, host) as known:
        wait_until(lambda: names(known) == ["other"], "the profile")
        bench.left = [replace(QUIET, profile=profile("back"))]
        host.prober.known = DEVICE
        wait_until(lambda: names(known) == ["other", "back"], "the profile of the first one")


def test_a_change_of_memory_that_the_kernel_makes_is_none(tmp_path: Path) -> None:
    bench = Bench(QUIET)
    with begun(tmp_path, bench, Host(DEVICE)) as known:
        wait_until(lambda: names(known) == ["quiet"], "the profile")
    other = replace(DEVICE, memory_bytes=DEVICE.memory_bytes - (1 << 20))
    with begun(tmp_path, bench, Host(other)) as known:
        wait_until(lambda: names(known) == ["quiet"], "the profile")
        threading.Event().wait(0.1)
    assert bench.count == 1


def test_what_others_disturbed_is_used_and_measured_again_until_it_is_quiet(
    tmp_path: Path,
) -> None:
    bench = Bench(BUSY, BUSIER, QUIET)
    with begun(tmp_path, bench, Host(DEVICE)) as known:
        # The busier one is not better than what there is.
        wait_until(lambda: names(known) == ["busy", "quiet"], "the quiet one")
        threading.Event().wait(0.1)
    assert bench.count == 3


def test_what_others_disturbed_is_measured_again_after_a_start(tmp_path: Path) -> None:
    with begun(tmp_path, Bench(BUSY), Host(DEVICE)) as known:
        wait_until(lambda: names(known) == ["busy"], "the profile")
    with begun(tmp_path, Bench(QUIET), Host(DEVICE)) as known:
        wait_until(lambda: names(known) == ["busy", "quiet"], "the quiet one")


def test_what_fails_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with begun(tmp_path, bench, Host(DEVICE)) as known:
        wait_until(lambda: bench.count >= 2, "another attempt")
        bench.left = [QUIET]
        wait_until(lambda: names(known) == ["quiet"], "the profile")
    told = "the profile of this device could not be measured: nothing is left"
    assert told in caplog.messages


def test_a_damaged_file_means_that_it_is_measured_again(tmp_path: Path) -> None:
    with begun(tmp_path, Bench(QUIET), Host(DEVICE)) as known:
        wait_until(lambda: names(known) == ["quiet"], "the profile")
    (tmp_path / "device-profile.json").write_text("damaged")
    with begun(tmp_path, Bench(BUSY, QUIET), Host(DEVICE)) as known:
        wait_until(lambda: names(known)[:1] == ["busy"], "the profile")


def test_one_that_was_never_begun_can_be_stopped(tmp_path: Path) -> None:
    settings = Settings(socket=tmp_path / "socket", state=tmp_path, cache=tmp_path)
    host = Host(DEVICE)
    OwnProfile(settings, Idle(), host, lambda *_: None).stop()  # type: ignore[arg-type]
