"""The networks of a lab, as calls of ip and tc.

All devices hang on one bridge, which has a namespace of its own, so that each has one interface
`eth0` with one address, and reaches the others as on a switch. A pair with a link of its own has an
interface `to-J` at each end beside it, which a route to the one address of the other device takes:
two ends of a veth, or two TUN devices with the delay line between them. What is sent there goes
through a token bucket (tbf) first. A pair that is cut has an unreachable route at each end instead.
What is sent to all (broadcast, multicast) goes over the bridge, whatever the links are. Nothing of
a lab is in the machine's own network.

A tbf on an interface of its own is exact; as a leaf of an htb, which would need only `eth0`, it is
no work-conserving queue, of which the kernel warns, and htb alone sends super-packets whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lab.errors import LabError
from lab.options import Device, Link
from lab.programs import call

PREFIX = "edgelab"
SUBNETS = 256
FRAME_BYTES = 1514
"""The largest packet on Ethernet that is no super-packet."""
MOST_PACKET_BYTES = 2**16
"""Of a super-packet, which stands for many packets of a connection."""
BURST_S = 0.002
LEAST_BURST_BYTES = 2 * FRAME_BYTES
MOST_BURST_BYTES = 2**20
QUEUE_S = 0.05
LEAST_QUEUE_BYTES = 10 * FRAME_BYTES
_NAMESPACE = re.compile(rf"{PREFIX}-([a-z0-9]+)-(\d+|bridge)")


def namespace(name: str, device: int | str) -> str:
    """The network namespace of a device, or of the bridge."""
    return f"{PREFIX}-{name}-{device}"


def address(subnet: int, device: int) -> str:
    """The IPv4 address of a device."""
    return f"10.213.{subnet}.{device + 1}"


def interface(peer: int) -> str:
    """The interface of a device that leads to `peer` alone."""
    return f"to-{peer}"


def burst_bytes(bits_per_s: float) -> int:
    """What may be sent at once after a pause: 2 ms' worth, two packets at least."""
    return round(min(max(bits_per_s / 8 * BURST_S, LEAST_BURST_BYTES), MOST_BURST_BYTES))


def queue_bytes(bits_per_s: float, rtt_s: float) -> int:
    """What may wait in front of a link: 50 ms, or a round trip if that is longer, since less keeps
    one connection from using the link; ten packets at least, which at 1 Mbit/s are 121 ms."""
    return round(max(bits_per_s / 8 * max(QUEUE_S, rtt_s), LEAST_QUEUE_BYTES))


def existing(name: str) -> list[str]:
    """The namespaces of the lab of that name that there are."""
    listed = [line.split()[0] for line in call("ip", "netns", "list").splitlines() if line]
    return [n for n in listed if (found := _NAMESPACE.fullmatch(n)) and found[1] == name]


def names() -> set[str]:
    """The labs that have namespaces."""
    listed = [line.split()[0] for line in call("ip", "netns", "list").splitlines() if line]
    return {found[1] for n in listed if (found := _NAMESPACE.fullmatch(n))}


def process_ids(space: str) -> list[int]:
    """The processes in a namespace."""
    return [int(pid) for pid in call("ip", "netns", "pids", space).split()]


def make_devices(name: str, subnet: int, devices: Sequence[Device]) -> None:
    """A namespace for each device, with `lo` and `eth0`, and one with the bridge."""
    bridge = namespace(name, "bridge")
    call("ip", "netns", "add", bridge)
    _ip(bridge, "link add bridge type bridge")
    _ip(bridge, "link set bridge addrgenmode none up")
    for i, _ in enumerate(devices):
        space = namespace(name, i)
        call("ip", "netns", "add", space)
        _ip(space, "link set lo up")
        _ip(bridge, f"link add port-{i} type veth peer name eth0 netns {space}")
        _ip(bridge, f"link set port-{i} master bridge addrgenmode none up")
        # No addresses of IPv6: what is limited is found by its address of IPv4.
        _ip(space, "link set eth0 addrgenmode none up")
        _ip(space, f"addr add {address(subnet, i)}/24 dev eth0")


def make_veth(name: str, link: Link) -> None:
    """The interfaces of a link without delay."""
    first, second = namespace(name, link.first), namespace(name, link.second)
    here, there = interface(link.second), interface(link.first)
    _ip(first, f"link add {here} type veth peer name {there} netns {second}")


def connect(name: str, subnet: int, link: Link) -> None:
    """Lead what the two devices of a link send each other through the link's interfaces, which are
    there, or nowhere if it is cut."""
    for here, there in ((link.first, link.second), (link.second, link.first)):
        space, target = namespace(name, here), f"{address(subnet, there)}/32"
        if link.is_cut:
            _ip(space, f"route add unreachable {target}")
            continue
        device = interface(there)
        _ip(space, f"link set {device} addrgenmode none up")
        _ip(space, f"route add {target} dev {device} src {address(subnet, here)}")
        if link.bits_per_s is not None:
            _limit(space, device, link.bits_per_s, link.rtt_s)


def remove(space: str) -> None:
    """Remove a namespace with all interfaces in it, unless it is gone."""
    try:
        call("ip", "netns", "del", space)
    except LabError:
        if space in call("ip", "netns", "list"):
            raise


def _limit(space: str, device: str, bits_per_s: float, rtt_s: float) -> None:
    burst = burst_bytes(bits_per_s)
    # Two super-packets of full size overflow the queue of a slow link before TCP knows its rate.
    _ip(space, f"link set {device} gso_max_size {min(burst, MOST_PACKET_BYTES)}")
    bucket = f"tbf rate {round(bits_per_s)}bit burst {burst}"
    limit = f"limit {queue_bytes(bits_per_s, rtt_s)}"
    call("tc", "-n", space, *f"qdisc add dev {device} root {bucket} {limit}".split())


def _ip(space: str, command: str) -> None:
    call("ip", "-n", space, *command.split())
