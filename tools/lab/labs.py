"""Makes and removes whole labs, and starts commands in them."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self

from edge_agent import clock
from lab import enter, groups, network, options, programs, state
from lab.delay import READY
from lab.errors import LabError
from lab.options import Link
from lab.state import Record

HOST: Literal["host"] = "host"
"""Stands for the machine itself, outside of every device."""
LINE = "line"
READY_S = 10.0
KILL_S = 10.0
Place = int | Literal["host"]


class Lab:
    """A lab that is there between entering and leaving a `with` block. What runs in it when the
    block is left is killed."""

    def __init__(
        self,
        devices: int,
        *,
        links: str | Iterable[Link] = (),
        cores: Sequence[int | None] = (),
        speeds: Sequence[float] = (),
        memory: Sequence[int | None] = (),
        name: str | None = None,
    ) -> None:
        """`links` may be written as for `tools/testbed up --links`; `cores`, `speeds` and `memory`
        (in bytes) have an entry for each device, or none; without a name it gets a new one.

        Raises:
            UsageError: there cannot be such a lab.
        """
        self.plan = options.plan(
            name=name if name is not None else f"x{secrets.token_hex(6)}",
            devices=devices,
            links=options.parse_links(links) if isinstance(links, str) else links,
            cores=cores,
            speeds=speeds,
            memory=memory,
            usable_cores=os.sched_getaffinity(0),
        )
        self._record: Record | None = None
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        self.make()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def make(self) -> None:
        """Make it; if that fails, nothing of it is left.

        Raises:
            LabError: it cannot be made.
        """
        name = self.plan.name
        programs.check_possible()
        if taken := [*network.existing(name), *map(str, groups.existing(name))]:
            raise LabError(
                f"lab {name} is there already ({taken[0]}): tools/testbed down --name {name}"
            )
        self._record = state.write(self.plan)
        try:
            self._make(self._record)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Kill what runs in it and remove it, if this object made it. May be called again.

        Raises:
            LabError: something cannot be removed.
        """
        if self._record is None:
            return
        # One that was just started may not be in its device yet.
        for process in self._started:
            process.kill()
        remove(self.plan.name)
        for process in self._started:
            process.wait()

    @property
    def record(self) -> Record:
        """What is written down of it; only once it is made."""
        assert self._record is not None, "not made yet"
        return self._record

    def address(self, device: int) -> str:
        """The one IPv4 address of a device, at which the others reach it."""
        return self.record.address(device)

    def socket(self, device: int) -> str:
        """Where `edge-agent serve` listens if it is started on a device; clients on the host reach
        it there too."""
        return str(state.socket(self.plan.name, device))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of all devices, in order."""
        return self.record.addresses

    def popen(self, place: Place, command: Sequence[str], **given: Any) -> subprocess.Popen[Any]:
        """Start a command on a device or on the host; its process number is that of the command,
        which runs a moment later. Further arguments are those of subprocess.Popen."""
        environment = given.pop("env", os.environ)
        process = subprocess.Popen(
            entering(self.plan.name, place, command),
            env=variables(self.record, place, environment),
            **given,
        )
        self._started.append(process)
        return process

    def _make(self, record: Record) -> None:
        name, devices, links = self.plan.name, self.plan.devices, self.plan.links
        state.make_folders(self.plan)
        network.make_devices(name, record.subnet, devices)
        usable = os.sched_getaffinity(0)
        for i, device in enumerate(devices):
            groups.make(name, i, groups.settings(device, usable))
        groups.make(name, HOST)
        if slow := [link for link in links if link.rtt_s]:
            self._start_line(slow)
        for link in links:
            if not link.is_cut and not link.rtt_s:
                network.make_veth(name, link)
            network.connect(name, record.subnet, link)

    def _start_line(self, links: Sequence[Link]) -> None:
        name = self.plan.name
        groups.make(name, LINE)
        carried = [{"ends": _ends(name, link), "delay_s": link.rtt_s / 2} for link in links]
        command = [sys.executable, "-P", "-m", "lab.delay", json.dumps(carried)]
        with state.log_file(name).open("w") as log:
            process = subprocess.Popen(
                entering(name, LINE, command),
                env={**os.environ, "PYTHONPATH": f"{programs.TOOLS}:{programs.TOOLS.parent}"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the command, which may need its network to end well.
                start_new_session=True,
            )
        self._started.append(process)
        assert process.stdout is not None
        with process.stdout as stdout:
            readable, _, _ = select.select([stdout], [], [], READY_S)
            if not readable or os.read(stdout.fileno(), len(READY)) != READY:
                said = state.log_file(name).read_text().strip().splitlines() or ["it said nothing"]
                raise LabError(f"the delay line does not start: {said[-1]}")


def _ends(name: str, link: Link) -> list[tuple[str, str]]:
    pairs = (link.first, link.second), (link.second, link.first)
    return [(network.namespace(name, here), network.interface(there)) for here, there in pairs]


def variables(record: Record, place: Place, environment: Mapping[str, str]) -> dict[str, str]:
    """What a command in a lab is told about it, beside what `environment` says."""
    found = {k: v for k, v in environment.items() if k != "EDGE_TESTBED_DEVICE"}
    found["EDGE_TESTBED"] = record.plan.name
    found["EDGE_TESTBED_ADDRESSES"] = ",".join(record.addresses)
    if isinstance(place, int):
        found["EDGE_TESTBED_DEVICE"] = str(place)
        # Files are those of the host: else the agents of all devices would want the same places.
        found["EDGE_AGENT_STATE"] = str(state.device_folder(record.plan.name, place) / "state")
        found["EDGE_AGENT_SOCKET"] = str(state.socket(record.plan.name, place))
    return found


def entering(name: str, member: int | str, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a device, or in another group of the lab."""
    space, core = enter.NONE, None
    if isinstance(member, int):
        space = network.namespace(name, member)
        core = groups.pinning(state.read(name).plan.devices[member])
    joined = map(str, groups.of(name, member))
    start = [sys.executable, "-I", "-S", enter.__file__, space]
    return [*start, enter.NONE if core is None else str(core), *joined, "--", *command]


def process_ids(name: str, member: int | str) -> set[int]:
    """What runs in a device, or in another group of the lab."""
    found = groups.process_ids(groups.of(name, member))
    if isinstance(member, int):
        with suppress(LabError):
            found |= set(network.process_ids(network.namespace(name, member)))
    return found


def remove(name: str) -> bool:
    """Remove whatever is there of the lab of that name; whether there was anything. Works after
    its making was broken off anywhere. This process and its parents are let out, not killed.

    Raises:
        LabError: something cannot be removed.
    """
    programs.check_possible()
    spaces, folders = network.existing(name), groups.existing(name)
    own = groups.leave(folders)
    until_s = clock.monotonic_s() + KILL_S
    while pids := _running(spaces, folders) - own:
        if clock.monotonic_s() > until_s:
            raise LabError(f"lab {name}: processes {sorted(pids)} do not end when killed")
        for pid in pids:
            groups.kill(pid)
        clock.sleep_s(0.01)
    for space in spaces:
        network.remove(space)
    groups.remove(folders)
    return state.remove(name) or bool(spaces or folders)


def _running(spaces: Iterable[str], folders: Iterable[Any]) -> set[int]:
    inside = [set(network.process_ids(space)) for space in spaces]
    return groups.process_ids(folders).union(*inside)
