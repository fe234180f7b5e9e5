"""All data sockets of a worker, and one wait for all of them. One thread uses it, except `wake`."""

from __future__ import annotations

import os
import threading
from typing import Any

import zmq

from edge_agent.transport.allocation import keep_freed_memory
from edge_agent.transport.curve import check_curve
from edge_agent.transport.data_sockets import DataSocket
from edge_agent.transport.gate import Gate, Judge
from edge_agent.transport.watched import Context


class DataSwitch:
    """See the module."""

    def __init__(self, judge: Judge) -> None:
        """Raises: RuntimeUnavailable: this libzmq cannot encrypt."""
        check_curve()
        keep_freed_memory()
        self._context: Context = zmq.Context()
        self._gate = Gate(self._context, judge)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._gate.socket, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._owners: dict[Any, DataSocket] = {}
        self._monitors: dict[Any, DataSocket] = {}
        self._is_woken = False
        self._waking = threading.Lock()

    def socket(self, max_part_bytes: int) -> DataSocket:
        """A new one, which takes parts of at most so many bytes."""
        return DataSocket(self._context, max_part_bytes=max_part_bytes)

    def add(self, socket: DataSocket) -> None:
        """Wait for its input and its events."""
        for one in (socket.socket, socket.monitor):
            self._poller.register(one, zmq.POLLIN)
        self._owners[socket.socket] = self._monitors[socket.monitor] = socket

    def remove(self, socket: DataSocket) -> None:
        """Close it."""
        for one in (socket.socket, socket.monitor):
            self._poller.unregister(one)
        del self._owners[socket.socket], self._monitors[socket.monitor]
        socket.close()

    def want_room(self, socket: DataSocket, *, wanted: bool) -> None:
        """Wait until it takes more to send, or no longer."""
        self._poller.modify(socket.socket, zmq.POLLIN | (zmq.POLLOUT if wanted else 0))

    def wake(self) -> None:
        """Have `wait` return, now or next time. Any thread may call it."""
        if self._is_woken:
            return
        with self._waking:
            if not self._is_woken:
                self._is_woken = True
                os.eventfd_write(self._wake_fd, 1)

    def wait(self) -> tuple[list[DataSocket], list[DataSocket]]:
        """Wait for input, room, an event or a wake: which sockets have events, and which have input
        or room."""
        eventful: list[DataSocket] = []
        ready: list[DataSocket] = []
        for one, _ in self._poller.poll():
            if (socket := self._owners.get(one)) is not None:
                ready.append(socket)
            elif (socket := self._monitors.get(one)) is not None:
                eventful.append(socket)
            elif one is self._gate.socket:
                self._gate.serve()
            else:
                # In this order: else what is written in between is read, and nobody wakes again.
                os.eventfd_read(self._wake_fd)
                # Before what was asked for is looked at: what comes later wakes again.
                self._is_woken = False
        return eventful, ready

    def end(self) -> None:
        """Close everything."""
        self._gate.close()
        self._context.destroy(linger=0)
        with self._waking:
            # There is nobody to wake, and the number may soon be that of another file.
            self._is_woken = True
            os.close(self._wake_fd)
