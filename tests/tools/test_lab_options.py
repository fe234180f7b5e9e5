"""How labs are asked for, and what is told of what cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import groups, network, options, state
from lab.__main__ import main
from lab.errors import LabError, UsageError
from lab.groups import Setting
from lab.options import Device, Link, Plan

ROOT = Path(__file__).resolve().parents[2]


def link(first: int, second: int, **parts: Any) -> Link:
    return Link(first=first, second=second, **parts)


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("", []),
        ("0-1=100Mbit", [link(0, 1, bits_per_s=100e6)]),
        ("1-0=1.5Gbit", [link(0, 1, bits_per_s=1.5e9)]),
        ("0-1=64kbit", [link(0, 1, bits_per_s=64e3)]),
        ("0-1=8000bit", [link(0, 1, bits_per_s=8e3)]),
        ("0-1=10Mbit/20ms", [link(0, 1, bits_per_s=10e6, rtt_s=0.02)]),
        ("0-1=20ms", [link(0, 1, rtt_s=0.02)]),
        ("0-1=0.5s", [link(0, 1, rtt_s=0.5)]),
        ("10-12=500us", [link(10, 12, rtt_s=0.0005)]),
        ("0-1=none", [link(0, 1, is_cut=True)]),
        (
            "0-1=1Mbit, 1-2=none,0-2=2ms",
            [link(0, 1, bits_per_s=1e6), link(1, 2, is_cut=True), link(0, 2, rtt_s=0.002)],
        ),
    ],
)
def test_links_are_a_rate_a_round_trip_both_or_none(text: str, links: list[Link]) -> None:
    assert options.parse_links(text) == tuple(links)


@pytest.mark.parametrize(
    "text",
    [
        "0-1",
        "0-1=",
        "0=1Mbit",
        "a-b=1Mbit",
        "0-1=1Mbit,",
        ",",
        "0-1=/20ms",
        "0-1=1Mbit/",
        "0-1=fast",
        "0-1=100",
        "0-1=100MB",
        "0-1=-1Mbit",
        "0-1=1Mbit/20",
        "0-1=1Mbit/20ms/1",
        "0-1=none/20ms",
        "0-1=20ms/1Mbit",
        "0-1=0Mbit",
        "0-1=1bit",
        "0-1=1e9Gbit",
        "0-1=11s",
        "-1-0=1Mbit",
    ],
)
def test_links_that_are_written_otherwise_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--links.*: got "):
        options.parse_links(text)


@pytest.mark.parametrize(
    "text", ["0-1=100Mbit", "0-1=10Mbit/20ms", "2-3=5ms", "0-1=none", "0-1=1.5Gbit", "0-9=1s"]
)
def test_a_link_is_shown_as_it_was_written(text: str) -> None:
    assert [link.text() for link in options.parse_links(text)] == [text]


def test_lists_have_an_entry_for_each_device_or_a_dash() -> None:
    assert options.parse_cores("0, 1,-") == (0, 1, None)
    assert options.parse_speeds("1,0.5,.25,-") == (1.0, 0.5, 0.25, 1.0)
    assert options.parse_memory("512MiB,1GB,-,4096 KiB") == (2**29, 10**9, None, 2**22)
    assert options.parse_cores("") == options.parse_speeds("") == options.parse_memory("") == ()


@pytest.mark.parametrize("text", ["a", "0,,1", "0,", "-1", "1.0", "0 1", "99999"])
def test_cores_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r'^--cores: got ".*", want the number of a core or -$'):
        options.parse_cores(text)


@pytest.mark.parametrize("text", ["a", "1,", "-1", "1e3", "nan", "50%", "1."])
def test_speeds_that_are_no_shares_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--speeds: got "):
        options.parse_speeds(text)


@pytest.mark.parametrize("text", ["a", "512", "1GiB,", "-1GiB", "1Gbit", "2e9GiB"])
def test_memory_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--memory: got "):
        options.parse_memory(text)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"devices": 0}, "--devices: got 0, want 1 to 100"),
        ({"devices": 101}, "--devices: got 101, want 1 to 100"),
        ({"name": "a-b"}, '--name: got "a-b", want 1 to 24 of a-z and 0-9'),
        ({"name": ""}, '--name: got "", want 1 to 24 of a-z and 0-9'),
        ({"name": "x" * 25}, f'--name: got "{"x" * 25}", want 1 to 24 of a-z and 0-9'),
        ({"cores": (0,)}, "--cores: got 1 entries, want one for each of the 2 devices"),
        ({"cores": (0, 4)}, "--cores: got core 4, want some of 0, 3"),
        ({"speeds": (1.0, 1.5)}, "--speeds: got 1.5, want 0.01 to 1"),
        ({"speeds": (1.0, 0.0)}, "--speeds: got 0, want 0.01 to 1"),
        ({"speeds": (1.0,) * 3}, "--speeds: got 3 entries, want one for each of the 2 devices"),
        ({"memory": (2**20, None)}, "--memory: got 1 MiB, want at least 4 MiB"),
        ({"links": [link(0, 2)]}, "--links: got 0-2, want two different devices of 0 to 1"),
        ({"links": [link(1, 1)]}, "--links: got 1-1, want two different devices of 0 to 1"),
        ({"links": [link(0, 1)] * 2}, "--links: got 0-1 twice, want each pair once at most"),
    ],
)
def test_parts_that_do_not_fit_are_refused(asked: dict[str, Any], told: str) -> None:
    parts = {"name": "some", "devices": 2, "usable_cores": [3, 0], **asked}
    with pytest.raises(UsageError) as refused:
        options.plan(**parts)
    assert str(refused.value) == told


def test_a_plan_has_a_device_for_each_entry() -> None:
    plan = options.plan(
        name="some",
        devices=2,
        cores=(1, None),
        speeds=(0.5, 1.0),
        memory=(None, 2**30),
        links=[link(0, 1)],
        usable_cores=[0, 1],
    )
    assert plan.devices == (Device(core=1, speed=0.5), Device(memory_bytes=2**30))
    assert options.plan(name="some", devices=2, usable_cores=[0]).devices == (Device(), Device())


def test_a_queue_holds_50_ms_or_a_round_trip_and_ten_packets_at_least() -> None:
    assert network.queue_bytes(1e6, 0) == 10 * 1514
    assert network.queue_bytes(100e6, 0.02) == 625_000
    assert network.queue_bytes(100e6, 0.2) == 2_500_000
    assert [network.burst_bytes(rate) for rate in (1e6, 1e9, 100e9)] == [3028, 250_000, 2**20]


MOUNTS = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


def test_controllers_are_found_among_the_mounts() -> None:
    place = Path("/sys/fs/cgroup")
    assert groups.hierarchies(MOUNTS) == {
        "cpu": place / "cpu,cpuacct",
        "memory": place / "memory",
        "unified": place / "unified",
    }


@pytest.mark.parametrize(
    ("device", "cores", "written"),
    [
        (Device(), [0, 1], []),
        (Device(core=1, speed=0.5), [0, 1], ["1", "10000", "5000"]),
        (Device(speed=0.5), [0, 1], ["10000", "10000"]),
        (Device(core=0, speed=0.05), [0, 1], ["0", "100000", "5000"]),
        (Device(memory_bytes=2**29), [0, 1], [str(2**29)] * 2),
    ],
)
def test_limits_are_settings_of_control_groups(
    device: Device, cores: list[int], written: list[str]
) -> None:
    assert [setting.value for setting in groups.settings(device, cores)] == written


def test_a_controller_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    monkeypatch.setattr(groups, "MOUNTS", mounts)
    limit = Setting(controller="memory", file="memory.limit_in_bytes", value="1")
    with pytest.raises(LabError, match="no control groups of version 1 for memory: leave out"):
        groups.make("some", 0, (limit,))


def plan_named(name: str) -> Plan:
    parts = {"core": 1, "speed": 0.5, "memory_bytes": 2**30}
    devices = (Device(**parts), Device())  # type: ignore[arg-type]
    return Plan(name=name, devices=devices, links=(link(0, 1, bits_per_s=1e6, rtt_s=0.1),))


def test_what_is_written_down_is_read_again_by_any_process(tmp_path: Path) -> None:
    one = state.write(plan_named("one"), tmp_path)
    two = state.write(plan_named("two"), tmp_path)
    assert state.read("one", tmp_path) == one
    assert (one.addresses, two.addresses) == (
        ("10.213.0.1", "10.213.0.2"),
        ("10.213.1.1", "10.213.1.2"),
    )
    kept = tmp_path / "kept"
    kept.mkdir()
    state.make_folders(one.plan, kept)
    with pytest.raises(LabError, match="File exists: tools/testbed down --name one removes it"):
        state.make_folders(one.plan, kept)
    assert state.remove("one", tmp_path, kept)
    assert list(kept.iterdir()) == []
    kept.rmdir()
    assert not state.remove("one", tmp_path)
    assert state.write(plan_named("three"), tmp_path).subnet == 0
    assert state.remove("two", tmp_path)
    assert state.remove("three", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_taken_once_and_one_that_is_half_written_is_told(tmp_path: Path) -> None:
    state.write(plan_named("one"), tmp_path)
    with pytest.raises(LabError, match="lab one is up already: tools/testbed down --name one"):
        state.write(plan_named("one"), tmp_path)
    state.record_file("two", tmp_path).write_text('{"plan": {"na')
    with pytest.raises(LabError, match="lab two is only half there: tools/testbed down --name two"):
        state.read("two", tmp_path)
    with pytest.raises(LabError, match="no lab three is up: tools/testbed up makes one"):
        state.read("three", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "up --devices 2 --links 0-1=fast",
            '--links 0-1=fast: got "fast", want bits per second as in ',
        ),
        ("up --devices 2 --links 0-2=1Mbit", "--links: got 0-2, want two different devices of "),
        ("up --devices 1 --cores 4096", "--cores: got core 4096, want some of "),
        ("up --devices 1 --name A", '--name: got "A", want 1 to 24 of a-z and 0-9'),
        ("up --devices 1 --", "up: got nothing behind --, want a command"),
        ("run --on 0", "run: got no command, want one, as in "),
        ("down --name ../x", '--name: got "../x", want 1 to 24 of a-z and 0-9'),
    ],
)
def test_a_mistake_in_usage_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: str, told: str
) -> None:
    assert main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tools/testbed: {told}")


def test_without_root_or_iproute2_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["up", "--devices", "1"]) == 1
    assert "not root: network namespaces need it; run this with sudo" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["down"]) == 1
    assert "found no program ip: install iproute2" in capsys.readouterr().err


def test_json_of_a_record_is_what_json_can_hold(tmp_path: Path) -> None:
    state.write(plan_named("one"), tmp_path)
    found = json.loads(state.record_file("one", tmp_path).read_text())
    assert found["plan"]["links"][0]["rtt_s"] == 0.1


def test_a_command_that_does_not_exist_is_told_as_a_shell_does() -> None:
    enter = [sys.executable, "-I", "-S", str(ROOT / "tools/lab/enter.py"), "-", "-", "--"]
    missing = subprocess.run([*enter, "no-such"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stderr) == (
        127,
        "cannot run no-such: No such file or directory\n",
    )
    folder = subprocess.run([*enter, "/"], capture_output=True, text=True, check=False)
    assert folder.returncode == 126
