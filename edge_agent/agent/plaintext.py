"""Where tensors may cross between devices without encryption: for benchmarks, on loopback and in
network namespaces, if both devices were told so."""

from __future__ import annotations

import os
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from edge_agent.errors import UsageError

SETTING = "plaintext_streams in [peering] of the settings"


def check_plaintext(hosts: Iterable[str]) -> None:
    """Refuse addresses that others could listen to.

    Raises: UsageError: one of them is not of loopback, and this process is in the network namespace
        of the device, or that cannot be found out.
    """
    outside = [host for host in hosts if not _is_loopback(host)]
    if outside and not in_own_namespace():
        raise UsageError(
            f"tensors are to cross unencrypted over {', '.join(outside)}, want loopback or a "
            f"network namespace: remove {SETTING}"
        )


def in_own_namespace(process: Path = Path("/proc/self"), init: Path = Path("/proc/1")) -> bool:
    """Whether this process has another network namespace than the first one of the device."""
    try:
        own, first = (os.stat(place / "ns" / "net") for place in (process, init))
    except OSError:
        return False  # nobody but root may know
    return (own.st_dev, own.st_ino) != (first.st_dev, first.st_ino)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name
