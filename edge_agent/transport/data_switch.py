"""All data sockets of a worker, and one wait for all of them. One thread uses it, except `wake`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import zmq

from edge_agent.transport.curve import check_curve
from edge_agent.transport.data_sockets import DataSocket
from edge_agent.transport.gate import Gate, Judge
from edge_agent.transport.watched import Context


class DataSwitch:
    """See the module."""

    def __init__(self, judge: Judge) -> None:
        """Raises: RuntimeUnavailable: this libzmq cannot encrypt."""
        check_curve()
        self._context: Context = zmq.Context()
        self._gate = Gate(self._context, judge)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._gate.socket, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._owners: dict[Any, DataSocket] = {}

    def socket(self, max_part_bytes: int) -> DataSocket:
        """A new one, which takes parts of at most so many bytes."""
        return DataSocket(self._context, max_part_bytes=max_part_bytes)

    def add(self, socket: DataSocket) -> None:
        """Wait for its input and its events."""
        for one in (socket.socket, socket.monitor):
            self._poller.register(one, zmq.POLLIN)
            self._owners[one] = socket

    def remove(self, socket: DataSocket) -> None:
        """Close it."""
        for one in (socket.socket, socket.monitor):
            self._poller.unregister(one)
            del self._owners[one]
        socket.close()

    def want_room(self, socket: DataSocket, *, wanted: bool) -> None:
        """Wait until it takes more to send, or no longer."""
        self._poller.modify(socket.socket, zmq.POLLIN | (zmq.POLLOUT if wanted else 0))

    def wake(self) -> None:
        """Have `wait` return. Any thread may call it."""
        # After the end there is nobody to wake.
        with suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def wait(self) -> list[DataSocket]:
        """Wait for input, room, an event or a wake: which sockets have something."""
        found: dict[DataSocket, None] = {}
        for one, _ in self._poller.poll():
            if one is self._gate.socket:
                self._gate.serve()
            elif one == self._wake_fd:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
            else:
                found[self._owners[one]] = None
        return list(found)

    def end(self) -> None:
        """Close everything."""
        self._gate.close()
        self._context.destroy(linger=0)
        os.close(self._wake_fd)
