"""Looks up the names of hosts; may take seconds, so never on a thread that others wait for."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from edge_agent.endpoints import Endpoint


def addresses_of(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """The endpoints with addresses for names, in order; a name that is not known has none."""
    found: dict[Endpoint, None] = {}
    for endpoint in endpoints:
        found |= dict.fromkeys([endpoint] if endpoint.is_address else _looked_up(endpoint))
    return tuple(found)


def _looked_up(endpoint: Endpoint) -> list[Endpoint]:
    try:
        answers = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [Endpoint(host=str(answer[4][0]), port=endpoint.port) for answer in answers]
