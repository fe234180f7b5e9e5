"""Labs that are really made: who reaches whom, how fast, with how much of the machine, and that
nothing of them is left. They need root; what is never possible is in test_lab_options.py."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import edge_agent
import lab
from lab import groups, labs, network, state
from tests.system.running import has_ended, wait_until

ROOT = Path(__file__).resolve().parents[2]
TRAFFIC = Path(__file__).with_name("traffic.py")
MAY_ADMINISTER = 1 << 21
"""CAP_SYS_ADMIN"""
PAYLOAD_FRACTION = 1448 / 1514
"""Of what a link carries, in packets of full size."""


def missing() -> str | None:
    """Why no lab can be made here, or None."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return "needs root on Linux"
    status = Path("/proc/self/status").read_text()
    if not int(re.findall(r"^CapEff:\t(\w+)", status, re.MULTILINE)[0], 16) & MAY_ADMINISTER:
        return "needs root that may make network namespaces (CAP_SYS_ADMIN)"
    absent = [program for program in ("ip", "tc") if not shutil.which(program)]
    return f"needs {', '.join(absent)}" if absent else None


pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
needs_controllers = pytest.mark.skipif(
    not {"cpu", "cpuset", "memory"} <= set(groups.mounted()),
    reason="needs control groups of version 1 for cpu, cpuset and memory",
)
needs_tun = pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="needs /dev/net/tun")


def said(made: lab.Lab, device: int, *command: str, code: int = 0) -> str:
    """What a short command on a device prints."""
    with made.popen(device, command, stdout=subprocess.PIPE, text=True) as process:
        out: str = process.communicate(timeout=30)[0]
    assert process.returncode == code, out
    return out.strip()


def python(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


@contextmanager
def serving(made: lab.Lab, device: int, what: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(TRAFFIC), what, made.address(device)]
    with made.popen(device, command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def bits_per_s(made: lab.Lab, source: int, target: int, seconds: float) -> float:
    """How much a stream between two devices carries."""
    with serving(made, target, "receive") as receiver:
        said(made, source, sys.executable, str(TRAFFIC), "send", made.address(target), str(seconds))
        return float(receiver.communicate(timeout=30)[0])


def round_trip(made: lab.Lab, source: int, target: int) -> tuple[float, str]:
    """Median seconds, and whether packets came back in order."""
    with serving(made, target, "answer"):
        told = said(made, source, sys.executable, str(TRAFFIC), "ask", made.address(target), "20")
    rtt_s, order = told.split(" ", 1)
    return float(rtt_s), order


CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=5)"


def refusal(made: lab.Lab, source: int, target: int) -> str:
    """Why no connection to a closed port of another device is made."""
    command = [*python(CONNECT), made.address(target)]
    with made.popen(source, command, stderr=subprocess.PIPE, text=True) as process:
        _, error = process.communicate(timeout=30)
    return str(error).splitlines()[-1].split(":")[0]


def left(name: str) -> list[str]:
    """What there is of a lab."""
    files = [str(p) for p in state.FOLDER.glob(f"{network.PREFIX}-*") if name in p.read_text()]
    kept = state.device_folder(name, 0).parent
    files += [str(p) for p in (state.record_file(name), state.log_file(name), kept) if p.exists()]
    return [*network.existing(name), *map(str, groups.existing(name)), *files]


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


@pytest.fixture
def name() -> Iterator[str]:
    """One for a lab of which nothing may be left."""
    chosen = f"t{secrets.token_hex(6)}"
    before = interfaces()
    yield chosen
    remains = left(chosen)
    labs.remove(chosen)
    assert remains == []
    assert interfaces() == before


def test_devices_reach_each_other_at_one_address_and_cut_pairs_do_not(name: str) -> None:
    with lab.Lab(devices=3, links="0-2=none", name=name) as made:
        assert len(set(made.addresses)) == 3
        closed, cut = "ConnectionRefusedError", "OSError"
        assert [refusal(made, 0, 1), refusal(made, 1, 0), refusal(made, 1, 2)] == [closed] * 3
        assert [refusal(made, 0, 2), refusal(made, 2, 0)] == [cut] * 2
        assert bits_per_s(made, 0, 1, 0.3) > 1e9
        assert refusal(made, 1, 1) == closed


@pytest.mark.long
@pytest.mark.parametrize(
    ("mbit_per_s", "seconds"),
    [
        (10, 1.0),
        (100, 1.0),
        pytest.param(1, 3, marks=pytest.mark.long),
        pytest.param(1000, 3, marks=[pytest.mark.long, pytest.mark.alone]),
    ],
)
def test_a_link_carries_its_rate_in_both_directions(
    name: str, mbit_per_s: float, seconds: float
) -> None:
    with lab.Lab(devices=3, links=f"0-1={mbit_per_s}Mbit,1-2=64kbit", name=name) as made:
        for source, target in ((0, 1), (1, 0)):
            found = bits_per_s(made, source, target, seconds)
            assert found == pytest.approx(mbit_per_s * 1e6 * PAYLOAD_FRACTION, rel=0.15)
        assert bits_per_s(made, 0, 2, 0.3) > 1e9, "a pair without a link of its own has no limit"


@needs_tun
@pytest.mark.long
def test_a_round_trip_takes_as_long_as_the_link_says_and_packets_stay_in_order(name: str) -> None:
    with lab.Lab(devices=3, links="0-1=20ms,1-2=50Mbit/40ms", name=name) as made:
        for source, target, least_s in ((0, 1, 0.02), (1, 0, 0.02), (1, 2, 0.04)):
            rtt_s, order = round_trip(made, source, target)
            assert (least_s <= rtt_s < least_s + 0.01, order) == (True, "in order"), rtt_s
        assert round_trip(made, 0, 2)[0] < 0.01


@needs_tun
@pytest.mark.long
@pytest.mark.parametrize("mbit_per_s", [10, 100, pytest.param(500, marks=pytest.mark.alone)])
def test_a_link_that_takes_time_carries_its_rate(name: str, mbit_per_s: float) -> None:
    with lab.Lab(devices=2, links=f"0-1={mbit_per_s}Mbit/20ms", name=name) as made:
        for source, target in ((0, 1), (1, 0)):
            found = bits_per_s(made, source, target, 4)
            assert found == pytest.approx(mbit_per_s * 1e6 * PAYLOAD_FRACTION, rel=0.15)


SPIN = """
import time
start_s, used_s = time.monotonic(), time.process_time()
while time.monotonic() < start_s + 1:
    pass
print((time.process_time() - used_s) / (time.monotonic() - start_s))
"""


@needs_controllers
def test_a_device_has_its_core_and_its_share_of_it(name: str) -> None:
    core = max(os.sched_getaffinity(0))
    with lab.Lab(devices=2, cores=(core, None), speeds=(0.25, 1.0), name=name) as made:
        allowed = said(made, 0, "grep", "Cpus_allowed_list", "/proc/self/status").split()[1]
        assert allowed == str(core)
        free = said(made, 1, *python("import os; print(len(os.sched_getaffinity(0)))"))
        assert int(free) == len(os.sched_getaffinity(0))
        assert float(said(made, 0, *python(SPIN))) == pytest.approx(0.25, abs=0.06)
        # It cannot take more cores than it was given.
        escape = "import os; os.sched_setaffinity(0, range(64)); print(os.sched_getaffinity(0))"
        assert said(made, 0, *python(escape)) == str({core})


def test_without_sets_of_cores_what_is_started_is_pinned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    lines = groups.MOUNTS.read_text().splitlines()
    mounts.write_text("\n".join(line for line in lines if " cgroup2 " in line))
    monkeypatch.setattr(groups, "MOUNTS", mounts)
    core = max(os.sched_getaffinity(0))
    with lab.Lab(devices=1, cores=(core,), name=name) as made:
        allowed = python("import os; print(os.sched_getaffinity(0))")
        assert said(made, 0, *allowed) == str({core})
        with pytest.raises(lab.LabError, match="no control groups of version 1 for cpu: leave out"):
            lab.Lab(devices=1, speeds=(0.5,)).make()


@needs_controllers
def test_a_device_that_takes_more_memory_than_it_has_is_killed(name: str) -> None:
    with lab.Lab(devices=2, memory=(64 * 2**20, None), name=name) as made:
        take = python("print(len(bytearray(b'x') * (128 * 2**20)))")
        said(made, 0, *take, code=-signal.SIGKILL)
        assert said(made, 1, *take) == str(128 * 2**20)


def test_what_runs_on_a_device_is_told_where_it_is_and_keeps_its_process_number(name: str) -> None:
    with lab.Lab(devices=2, name=name) as made:
        tell = "import os; e = os.environ; print(os.getpid(), e['EDGE_TESTBED'], "
        tell += "e['EDGE_TESTBED_DEVICE'], e['EDGE_TESTBED_ADDRESSES'])"
        with made.popen(1, python(tell), stdout=subprocess.PIPE, text=True) as process:
            told = process.communicate(timeout=30)[0].split()
        assert told == [str(process.pid), name, "1", ",".join(made.addresses)]


@pytest.mark.long
def test_the_agents_of_two_devices_have_places_of_their_own(name: str) -> None:
    serve = [sys.executable, "-m", "edge_agent.cli", "serve", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "cwd": ROOT}
    with lab.Lab(devices=2, name=name) as made:
        agents = [made.popen(device, serve, **pipes) for device in (0, 1)]
        for device, agent in enumerate(agents):
            with agent:
                ready = json.loads(agent.stdout.readline())
                assert (ready["socket"], ready["pid"]) == (made.socket(device), agent.pid)
                with edge_agent.Client(made.socket(device)) as client:
                    assert client.status().pid == agent.pid
                agent.terminate()


def test_leaving_kills_what_runs_whatever_session_it_is_in(name: str) -> None:
    with lab.Lab(devices=1, name=name) as made:
        fork = "import subprocess as s; print(s.Popen(['sleep', '99'], start_new_session=True, "
        fork += "stdout=s.DEVNULL).pid)"
        forked = psutil.Process(int(said(made, 0, *python(fork))))
        stays = made.popen(0, ["sleep", "99"])
        ids = {forked.pid, stays.pid}
        wait_until(lambda: ids <= labs.process_ids(name, 0), "both are on the device")
    assert stays.returncode == -signal.SIGKILL
    assert has_ended(forked)


def test_two_labs_live_side_by_side_and_a_name_is_taken_once(name: str) -> None:
    with lab.Lab(devices=1, name=name) as made, lab.Lab(devices=1) as other:
        assert made.address(0) != other.address(0)
        with pytest.raises(lab.LabError, match=f"lab {name} is there already"):
            lab.Lab(devices=1, name=name).make()
        assert said(made, 0, "echo", "still") == "still"


def put_program(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def test_what_is_half_made_is_removed_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path, "tc", "echo 'Error: no such qdisc.' >&2; exit 2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    broken = lab.Lab(devices=2, links="0-1=10Mbit/20ms", cores=(0, 0), name=name)
    with pytest.raises(lab.LabError, match=r'^"tc -n .*": Error: no such qdisc\.$'):
        broken.make()
    assert left(name) == []


class CommandLine:
    """The command line, as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = f"{folder}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT}"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "lab", *arguments],
            env={**self.environment, "PATH": self.path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            out, error = process.communicate(timeout=60)
        return process.returncode, out, error


@pytest.fixture
def testbed(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.mark.long
def test_a_lab_stays_up_between_commands_until_it_is_taken_down(
    name: str, testbed: CommandLine
) -> None:
    called = "--name", name
    links = "0-1=10Mbit,1-2=5ms,0-2=none"
    code, out, error = testbed("up", *called, "--devices", "3", "--links", links)
    assert (code, error) == (0, "")
    for shown in (f"lab {name}", "link 0-1=10Mbit", "link 1-2=5ms", "link 0-2=none"):
        assert shown in out.splitlines()
    record = state.read(name)
    show = ("printenv", "EDGE_TESTBED_DEVICE")
    assert testbed("run", *called, "--on", "2", *show)[:2] == (0, "2\n")
    assert testbed("run", *called, "--on", "host", *show)[0] == 1
    code, out, _ = testbed("run", *called, "ip", "-br", "addr", "show", "dev", "eth0")
    assert record.address(0) in out
    stays = testbed.start("run", *called, "--on", "1", "sleep", "99")
    wait_until(
        lambda: (
            str(stays.pid) in testbed("status", *called)[1]
            and "sleep 99" in testbed("status", *called, "--json")[1]
        ),
        "the command is shown",
    )
    assert testbed("down", *called) == (0, "", "")
    stays.communicate()
    assert stays.returncode == -signal.SIGKILL
    nothing = f"tools/testbed: nothing is left of a lab {name}\n"
    assert testbed("down", *called) == (0, "", nothing)
    for verb in (("status",), ("run", "true")):
        code, _, error = testbed(verb[0], *called, *verb[1:])
        assert (code, error) == (
            1,
            f"tools/testbed: no lab {name} is up: tools/testbed up makes one\n",
        )


@pytest.mark.long
def test_a_command_gets_the_lab_and_its_exit_code_is_passed_on(
    name: str, testbed: CommandLine
) -> None:
    inner = "import lab.__main__ as m, os; assert not m.main(['status']); os._exit(7)"
    code, out, error = testbed("up", "--name", name, "--devices", "2", "--", *python(inner))
    assert code == 7, error
    assert f"lab {name}" in out.splitlines() or not out
    code, _, error = testbed("up", "--name", name, "--devices", "1", "--", "no-such-program")
    assert (code, error) == (127, "cannot run no-such-program: No such file or directory\n")


@pytest.mark.long
def test_a_command_that_takes_its_own_lab_down_is_not_killed_by_that(
    name: str, testbed: CommandLine
) -> None:
    inner = "import lab.__main__ as m; m.main(['down']); print('alive')"
    code, out, error = testbed("up", "--name", name, "--devices", "1", "--", *python(inner))
    assert (code, out, error) == (0, "alive\n", "")


WAITS = """
import lab.labs, lab.state, os, signal, subprocess, sys, time
def end(number, frame):
    sys.exit(40 + number)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
record = lab.state.read(os.environ["EDGE_TESTBED"])
inside = subprocess.Popen(lab.labs.entering(record.plan.name, 0, ["sleep", "99"]))
print(inside.pid, os.getpid(), flush=True)
time.sleep(99)
"""


@contextmanager
def waiting(
    testbed: CommandLine, name: str
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A lab with a command that waits on the host, and another in a device."""
    options = ("--name", name, "--devices", "2", "--links", "0-1=10Mbit/20ms")
    with testbed.start("up", *options, "--", *python(WAITS)) as process:
        assert process.stdout is not None
        pids = {int(pid) for pid in process.stdout.readline().split()}
        assert pids, process.communicate()
        pids |= labs.process_ids(name, labs.LINE)
        assert len(pids) == 3
        yield process, [psutil.Process(pid) for pid in pids]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_lab_is_removed(
    name: str, testbed: CommandLine, number: signal.Signals
) -> None:
    with waiting(testbed, name) as (process, running):
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
        assert (process.returncode, error) == (40 + number, "")
        assert left(name) == []
        assert all(map(has_ended, running))


@pytest.mark.long
def test_after_a_kill_down_finds_everything(name: str, testbed: CommandLine) -> None:
    with waiting(testbed, name) as (process, running):
        process.kill()
        process.wait()
        assert not any(map(has_ended, running))
        assert testbed("down", "--name", name) == (0, "", "")
        assert left(name) == []
        wait_until(lambda: all(map(has_ended, running)), "their end")


def hanging(folder: Path, is_told: Path) -> Callable[[], Any]:
    put_program(folder, "tc", f"touch {is_told}; exec sleep 99")
    return is_told.exists


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_broken_off_while_it_is_made_leaves_nothing(
    name: str, testbed: CommandLine, tmp_path: Path, number: signal.Signals
) -> None:
    is_reached = hanging(tmp_path, tmp_path / "reached")
    options = ("--name", name, "--devices", "2", "--links", "0-1=10Mbit")
    with testbed.start("up", *options) as process:
        wait_until(is_reached, "the making of a limit")
        tc = psutil.Process(process.pid).children()
        process.send_signal(number)
        _, error = process.communicate(timeout=30) if number != signal.SIGKILL else ("", "")
    if number == signal.SIGKILL:
        assert left(name)
        assert testbed("down", "--name", name) == (0, "", "")
        for child in tc:
            child.kill()
    else:
        told = "tools/testbed: ended by SIGTERM: nothing of the lab is left\n"
        assert (process.returncode, error) == (143, told)
    assert left(name) == []
    wait_until(lambda: all(map(has_ended, tc)), "the end of tc")
