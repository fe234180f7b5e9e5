"""Which addresses of this device others may reach, on real interfaces."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from edge_agent import clock
from edge_agent.telemetry.network import hostname, own_addresses


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def interface() -> Iterator[str]:
    """An interface of its own that is down and has no address; its other end, the same with a p,
    is up."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network interface needs root and `ip`")
    name = f"edge{os.getpid()}"
    made = ip("link", "add", name, "type", "veth", "peer", "name", f"{name}p")
    if made.returncode:
        pytest.skip(f"cannot make a network interface here: {made.stderr.strip()}")
    ip("link", "set", f"{name}p", "up")
    yield name
    ip("link", "delete", name)


def addresses_when(address: str, *, is_there: bool) -> tuple[str, ...]:
    """The addresses as soon as that is so: an interface takes a moment to be up."""
    until_s = clock.monotonic_s() + 5.0
    while (address in (found := own_addresses(with_ipv6=True))) is not is_there:
        assert clock.monotonic_s() < until_s, found
        clock.sleep_s(0.01)
    return found


def test_neither_loopback_nor_link_local_addresses_are_told() -> None:
    found = own_addresses(with_ipv6=True)
    assert len(set(found)) == len(found)
    for text in found:
        address = ipaddress.ip_address(text)
        assert not address.is_loopback
        assert not address.is_link_local
        assert not address.is_unspecified


def test_ipv4_comes_first_and_alone_where_nothing_else_is_wanted() -> None:
    both = own_addresses(with_ipv6=True)
    only = own_addresses(with_ipv6=False)
    assert both[: len(only)] == only
    assert {ipaddress.ip_address(text).version for text in only} <= {4}
    assert {ipaddress.ip_address(text).version for text in both[len(only) :]} <= {6}


def test_the_address_from_which_this_device_reaches_others_is_among_them() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            # Sends nothing: the system chooses a route.
            asking.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this device has no route to others")
        address = asking.getsockname()[0]
    assert address in own_addresses(with_ipv6=False)


def test_the_addresses_of_an_interface_are_told_while_others_can_reach_it(interface: str) -> None:
    for address in ("203.0.113.7/32", "169.254.7.7/32"):
        assert ip("addr", "add", address, "dev", interface).returncode == 0
    has_ipv6 = ip("addr", "add", "2001:db8::7/128", "dev", interface, "nodad").returncode == 0
    assert "203.0.113.7" not in own_addresses(with_ipv6=True)
    ip("link", "set", interface, "up")
    found = addresses_when("203.0.113.7", is_there=True)
    assert "169.254.7.7" not in found
    assert ("2001:db8::7" in found) is has_ipv6
    assert "2001:db8::7" not in own_addresses(with_ipv6=False)
    assert not any(text.startswith("fe80") for text in found)
    ip("link", "set", f"{interface}p", "down")
    addresses_when("203.0.113.7", is_there=False)


def test_the_hostname_is_that_of_the_system() -> None:
    assert hostname() == os.uname().nodename
