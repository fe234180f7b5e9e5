"""Agents of several devices that know each other: each in a network namespace of its own, with its
core, its share of it, its memory, and links of limited bandwidth and latency."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.agent import command
from edge_agent import clock
from edge_agent.client import Client
from edge_agent.errors import EdgeAgentError
from edge_agent.peers import PeerCondition, PeerStatus
from lab import Lab

READY_S = 60.0
KNOWN_S = 300.0
PORT = 7600


class FleetFailed(Exception):
    """An agent did not start, or they do not know each other; the logs are in the message."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Agents that are joined."""

    lab: Lab
    folder: Path
    count: int
    pids: list[int] = field(default_factory=list)
    """Of the agents, by device."""

    def client(self, device: int) -> Client:
        """Asks the agent of that device."""
        return Client(self.lab.socket(device))

    def log(self, device: int) -> str:
        """What its agent wrote so far."""
        return (self.folder / f"{device}.log").read_text()


@contextmanager
def fleet(
    devices: int,
    *,
    links: str,
    cores: Sequence[int | None],
    speeds: Sequence[float] = (),
    memory: Sequence[int | None] = (),
    config: str = "",
    wait_for_links: bool = True,
) -> Iterator[Fleet]:
    """That many agents, named `d0`, `d1` and so on, each joined to every other by a token; ended
    and removed on leaving. `links` and the limits are as for `tools/testbed up`.

    Raises:
        FleetFailed: an agent does not start, or they do not get to know each other.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fleet-") as folder,
        Lab(devices, links=links, cores=cores, speeds=speeds, memory=memory) as made,
    ):
        it = Fleet(made, Path(folder), devices)
        (it.folder / "config.toml").write_text(config)
        processes = [_started(it, device) for device in range(devices)]
        it.pids.extend(process.pid for process in processes)
        try:
            for device, process in enumerate(processes):
                _wait_until_ready(it, device, process)
            _join_all(it)
            _wait_until_known(it, wait_for_links=wait_for_links)
            yield it
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                _end(process)


def _started(it: Fleet, device: int) -> subprocess.Popen[Any]:
    serve = [
        *(command(), "serve", "--json", "--socket", it.lab.socket(device)),
        *("--state", str(it.folder / f"{device}"), "--name", f"d{device}"),
        *("--config", str(it.folder / "config.toml")),
        *("--listen", f"tcp://{it.lab.address(device)}:{PORT}"),
    ]
    with (it.folder / f"{device}.log").open("w") as log:
        return it.lab.popen(
            device,
            serve,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[Any]) -> None:
    try:
        process.wait(15.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _wait_until_ready(it: Fleet, device: int, process: subprocess.Popen[Any]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        json.loads(line)
    except ValueError:
        raise FleetFailed(f"d{device} does not start: {it.log(device)[-2000:]}") from None


def _join_all(it: Fleet) -> None:
    for device in range(1, it.count):
        for other in range(device):
            with it.client(other) as one, it.client(device) as two:
                two.join(one.invite())


def _wait_until_known(it: Fleet, *, wait_for_links: bool) -> None:
    for device in range(it.count):
        with it.client(device) as client:

            def is_so(client: Client = client) -> bool:
                peers = client.peers().peers
                return len(peers) == it.count - 1 and all(
                    _is_known(peer, wait_for_links=wait_for_links) for peer in peers
                )

            _until(is_so, f"d{device} knows all others", it)


def _is_known(peer: PeerStatus, *, wait_for_links: bool) -> bool:
    is_there = peer.condition in (PeerCondition.UP, PeerCondition.SLOW)
    has_link = peer.receive_bytes_per_s is not None and peer.send_bytes_per_s is not None
    return is_there and peer.profile is not None and (has_link or not wait_for_links)


def _until(is_so: Callable[[], bool], what: str, it: Fleet) -> None:
    until_s = clock.monotonic_s() + KNOWN_S
    while True:
        try:
            if is_so():
                return
        except EdgeAgentError as error:
            what = f"{what} ({error})"
        if clock.monotonic_s() > until_s:
            logs = "\n".join(it.log(device)[-1500:] for device in range(it.count))
            raise FleetFailed(f"not within {KNOWN_S:.0f} s: {what}\n{logs}")
        print(".", end="", file=sys.stderr, flush=True)
        clock.sleep_s(1.0)
