"""Addresses of agents on a network, as people write them: `tcp://192.168.1.20:7600`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from edge_agent.errors import UsageError
from edge_agent.literals import literal

_WRITTEN: Final = re.compile(r"tcp://(\[[0-9A-Fa-f:.%a-z]+\]|[^\[\]:/\s]+):([0-9]{1,5})")
# In one way alone, since other devices write such texts: else a name that is wrong takes for ever.
_LABEL: Final = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_HOSTNAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?")
MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Endpoint:
    """A TCP port of a host, which is an IP address or a name."""

    host: str
    """Without brackets."""
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an IPv6 address."""
        return ":" in self.host

    @property
    def is_address(self) -> bool:
        """Whether the host is an IP address, so that nothing has to be looked up."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def is_any(self) -> bool:
        """Whether it stands for every address of a device."""
        return self.is_address and ipaddress.ip_address(self.host).is_unspecified

    @property
    def is_loopback(self) -> bool:
        """Whether nothing but this device can reach it."""
        return self.is_address and ipaddress.ip_address(self.host).is_loopback

    def at(self, port: int) -> Self:
        """Another port of the same host."""
        return type(self)(host=self.host, port=port)


def parse_endpoint(what: str, text: object) -> Endpoint:
    """The endpoint that `text` writes; `what` is where it stands, for the error.

    Raises: UsageError.
    """
    found = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise _refused(what, text, "tcp://ADDRESS:PORT, e.g. tcp://192.168.1.20:7600")
    host, port = found[1].strip("[]"), int(found[2])
    if port > MAX_PORT:
        raise _refused(what, text, f"a port of at most {MAX_PORT}")
    endpoint = Endpoint(host=host, port=port)
    if not endpoint.is_address and (":" in host or not _is_name(host)):
        raise _refused(what, text, "an IP address or the name of a host before the port")
    return endpoint


def _is_name(host: str) -> bool:
    # Digits and dots alone are an address that is wrong, such as 192.168.1.300.
    return _HOSTNAME.fullmatch(host) is not None and not re.fullmatch(r"[0-9.]+", host)


def parse_listen(what: str, text: object) -> Endpoint:
    """Where to listen: an address of this device, or 0.0.0.0 or [::] for all; port 0 lets the
    system choose.

    Raises: UsageError.
    """
    endpoint = parse_endpoint(what, text)
    if not endpoint.is_address:
        raise _refused(
            what, text, "an IP address of this device to listen at, or 0.0.0.0 or [::] for all"
        )
    return endpoint


def parse_peer_endpoint(what: str, text: object) -> Endpoint:
    """Where another agent listens. Raises: UsageError."""
    endpoint = parse_endpoint(what, text)
    if endpoint.is_any or not endpoint.port:
        raise _refused(what, text, "the address and port at which the other agent listens")
    return endpoint


def _refused(what: str, text: object, want: str) -> UsageError:
    return UsageError(f"{what}: got {literal(text)}, want {want}")
