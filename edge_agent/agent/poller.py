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
        self._sending: set[int] = set()

    def add(self, fd: int, on_event: OnEvent) -> None:
        """Call `on_event` when there is something to read at `fd`."""
        self._callbacks[fd] = on_event
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Forget a descriptor, before it is closed."""
        del self._callbacks[fd]
        self._sending.discard(fd)
        self._epoll.unregister(fd)

    def flush(self, connection: Connection) -> None:
        """Send what the kernel takes of what is queued, and be called again for the rest.

        Raises:
            ConnectionLost: the connection broke.
        """
        connection.flush()
        fd = connection.fd
        if connection.wants_to_send != (fd in self._sending):
            self._sending ^= {fd}
            bits = select.EPOLLIN | (select.EPOLLOUT if fd in self._sending else 0)
            self._epoll.modify(fd, bits)

    def wait(self, timeout_s: float | None) -> list[tuple[OnEvent, int]]:
        """The callbacks of the descriptors that have something, with their event bits."""
        events = self._epoll.poll(-1.0 if timeout_s is None else timeout_s)
        return [(self._callbacks[fd], bits) for fd, bits in events]

    def close(self) -> None:
        """Release the epoll descriptor."""
        self._epoll.close()
