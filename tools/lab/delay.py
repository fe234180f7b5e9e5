"""The delay line: a process that carries packets between the two ends of slow links, each for as
long as a direction of its link takes.

Each end is a TUN device in the network of its device. Packets come with the header of virtio, as
super-packets of up to 64 KiB with checksums still to be made, and are handed over just so: that is
what makes Python fast enough for this.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import struct
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent import clock
from lab.enter import NAMESPACES, OWN_NETWORK, join_network

TUN = 0x0001
NO_PACKET_HEADER = 0x1000
VIRTIO_HEADER = 0x4000
SET_INTERFACE = 0x400454CA
"""TUNSETIFF"""
SET_OFFLOAD = 0x400454D0
"""TUNSETOFFLOAD"""
OFFLOADS = 0x01 | 0x02 | 0x04
"""TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6"""
PACKET_BYTES = 2**17
MOST_BYTES = 16 * 2**20
"""On its way in one direction; more is lost, as behind a full queue."""
MOST_AT_ONCE = 64
"""Packets read from one end before the other ends get their turn."""
READY = b"ready\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A TUN device to be made."""

    namespace: str
    interface: str


@dataclass(slots=True)
class Direction:
    """Packets on their way from one end to the other, in order."""

    source: int
    target: int
    delay_s: float
    due: deque[tuple[float, bytes]] = field(default_factory=deque)
    size_bytes: int = 0

    def take(self) -> None:
        """Read what has arrived at the source."""
        for _ in range(MOST_AT_ONCE):
            try:
                packet = os.read(self.source, PACKET_BYTES)
            except BlockingIOError:
                return
            if self.size_bytes + len(packet) <= MOST_BYTES:
                self.due.append((clock.monotonic_s() + self.delay_s, packet))
                self.size_bytes += len(packet)

    def deliver(self) -> None:
        """Write to the target what is due."""
        while self.due and self.due[0][0] <= clock.monotonic_s():
            _, packet = self.due.popleft()
            self.size_bytes -= len(packet)
            # The other end may be down, or have no room: then it is lost, as on a wire.
            with suppress(OSError):
                os.write(self.target, packet)


def open_end(end: End) -> int:
    """A descriptor of a new TUN device in that network.

    Raises:
        OSError: it cannot be made.
    """
    join_network(NAMESPACES / end.namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = TUN | NO_PACKET_HEADER | VIRTIO_HEADER
    fcntl.ioctl(device, SET_INTERFACE, struct.pack("16sH22x", end.interface.encode(), flags))
    fcntl.ioctl(device, SET_OFFLOAD, OFFLOADS)
    return device


def carry(directions: list[Direction]) -> None:
    """Carry packets until an end is removed.

    Raises:
        OSError: an end was removed.
    """
    by_source = {direction.source: direction for direction in directions}
    while True:
        first_s = min((d.due[0][0] for d in directions if d.due), default=None)
        wait_s = None if first_s is None else max(0.0, first_s - clock.monotonic_s())
        arrived, _, _ = select.select(by_source, [], [], wait_s)
        for source in arrived:
            by_source[source].take()
        for direction in directions:
            direction.deliver()


def come_first() -> None:
    """Run before what runs on the devices, where the machine lets us: else packets would be late
    whenever the cores are busy."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)


def timely() -> None:
    """Have this process woken when it asked to be, not up to 50 µs later to save power."""
    set_timer_slack = 29
    ctypes.CDLL(None).prctl(set_timer_slack, 1, 0, 0, 0)


def main(links: list[dict[str, object]]) -> int:
    """Run the delay line of a lab: for each link its two `ends` and its `delay_s` each way."""
    # What it opens stays open wherever it is, and it is no process of the last device.
    home = Path(f"/proc/self/fd/{os.open(OWN_NETWORK, os.O_RDONLY | os.O_CLOEXEC)}")
    directions: list[Direction] = []
    for link in links:
        ends, delay_s = link["ends"], link["delay_s"]
        assert isinstance(ends, list)
        assert isinstance(delay_s, float)
        first, second = (open_end(End(namespace=end[0], interface=end[1])) for end in ends)
        directions += [Direction(first, second, delay_s), Direction(second, first, delay_s)]
    join_network(home)
    come_first()
    timely()
    os.write(1, READY)
    os.close(1)
    carry(directions)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
