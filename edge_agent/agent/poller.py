"""Which descriptors the data thread waits on, and for what."""

from __future__ import annotations

import select
from collections.abc import Callable

from edge_agent.agent.connections import Connection

OnEvent = Callable[[int], None]
"""Called with the epoll event bits."""

HAS_INPUT = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
CAN_SEND = select.EPOLLOUT


class Poller:
    """epoll with a callback per descriptor. One thread uses it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, OnEvent] = {}
        self._bits: dict[int, int] = {}

    def add(self, fd: int, on_event: OnEvent) -> None:
        """Call `on_event` when there is something to read at `fd`."""
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = on_event
        self._bits[fd] = select.EPOLLIN

    def remove(self, fd: int) -> None:
        """Forget a descriptor, before it is closed."""
        del self._callbacks[fd], self._bits[fd]
        self._epoll.unregister(fd)

    def flush(self, connection: Connection, *, and_read: bool = True) -> None:
        """Send what the kernel takes of what is queued, and be called again for the rest, and for
        what comes unless `and_read` is False.

        Raises:
            ConnectionLost: the connection broke.
        """
        connection.flush()
        fd = connection.fd
        bits = select.EPOLLOUT if connection.wants_to_send else 0
        if and_read or not bits:
            bits |= select.EPOLLIN
        if bits != self._bits[fd]:
            self._epoll.modify(fd, bits)
            self._bits[fd] = bits

    def wait(self, timeout_s: float | None) -> list[tuple[OnEvent, int]]:
        """The callbacks of the descriptors that have something, with their event bits."""
        events = self._epoll.poll(-1.0 if timeout_s is None else timeout_s)
        return [(self._callbacks[fd], bits) for fd, bits in events]

    def close(self) -> None:
        """Release the epoll descriptor."""
        self._epoll.close()
