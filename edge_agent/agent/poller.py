"""Which descriptors the data thread waits on, and for what."""

from __future__ import annotations

import select
from collections.abc import Callable

from edge_agent.agent.connections import Connection

OnEvent = Callable[[int], None]
"""Called with the epoll event bits."""

HAS_INPUT = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
HAS_ENDED = select.EPOLLHUP | select.EPOLLERR
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

    def watch(self, connection: Connection, *, and_read: bool = True) -> None:
        """Also call when the kernel takes more of what is queued, as long as anything is; and
        when something comes, unless `and_read` is False."""
        bits = select.EPOLLOUT if connection.outgoing else 0
        if and_read or not bits:
            bits |= select.EPOLLIN
        fd = connection.fd
        if bits != self._bits[fd]:
            self._epoll.modify(fd, bits)
            self._bits[fd] = bits

    def watch_end(self, connection: Connection) -> None:
        """Call only when the other side has closed the connection, until the next `watch`."""
        self._epoll.modify(connection.fd, 0)
        self._bits[connection.fd] = 0

    def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """The descriptors that have something, with their event bits."""
        return self._epoll.poll(timeout_s)

    def on_event(self, fd: int) -> OnEvent | None:
        """Whom to call; None if the descriptor was forgotten since `wait`."""
        return self._callbacks.get(fd)

    def close(self) -> None:
        """Release the epoll descriptor."""
        self._epoll.close()
