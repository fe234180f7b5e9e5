"""What this device is called on its networks, and which addresses it has there."""

from __future__ import annotations

import ipaddress
import socket

import psutil


def own_addresses(*, with_ipv6: bool) -> tuple[str, ...]:
    """Addresses of the interfaces that are up at which another device may reach this one: neither
    loopback nor link-local ones, IPv4 first."""
    up = {name for name, found in psutil.net_if_stats().items() if found.isup}
    families = (socket.AF_INET, socket.AF_INET6) if with_ipv6 else (socket.AF_INET,)
    found = [
        address.address
        for family in families
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for address in addresses
        if name in up and address.family == family
    ]
    return tuple(text for text in dict.fromkeys(found) if _is_reachable(text))


def hostname() -> str:
    """The name that the system has for this device."""
    return socket.gethostname()


def _is_reachable(text: str) -> bool:
    if "%" in text:
        return False
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)
