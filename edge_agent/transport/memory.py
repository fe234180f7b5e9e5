"""Memory that a client shares with the worker that answers it, so that large tensors cross no
socket: the client creates it and sends its descriptor, the agent checks and passes it on, the
worker maps it.

The client alone may change its size, and never to a smaller one (it is sealed), so that reading
what was measured once cannot fail. It holds one request at a time: the inputs, and behind them
room for the outputs. What the inputs hold while the worker reads them is the client's business.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from edge_agent.errors import ProtocolError

PAGE_BYTES = mmap.PAGESIZE
_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)
"""Python 3.11 has the name on some systems only."""


class OwnMemory:
    """Memory of this process that others may map; closed when the last reference goes."""

    def __init__(self, size_bytes: int) -> None:
        """
        Raises:
            OSError: the system gives none.
        """
        self.fd = os.memfd_create("edge-agent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.view = _mapped(self.fd, size_bytes)
        except BaseException:
            os.close(self.fd)
            raise

    def __del__(self) -> None:
        if "view" in self.__dict__:
            os.close(self.fd)

    def grow(self, size_bytes: int) -> None:
        """Make it at least that large; what it holds stays.

        Raises:
            OSError: the system gives no more.
        """
        if size_bytes > self.view.nbytes:
            os.ftruncate(self.fd, size_bytes)
            self.view = _mapped(self.fd, size_bytes)


class Descriptor:
    """A copy of a descriptor, closed when the last reference goes."""

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)

    def __del__(self) -> None:
        if "fd" in self.__dict__:
            os.close(self.fd)


class SharedMemory:
    """Memory of another process, not mapped; closed when the last reference goes."""

    def __init__(self, fd: int, number: int) -> None:
        """Takes over the descriptor; `number` is what the worker knows it by.

        Raises:
            ProtocolError: it is none of memory that cannot shrink; it is closed.
        """
        try:
            is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except OSError as error:
            os.close(fd)
            raise ProtocolError(f"got a descriptor that is no shared memory: {error}") from error
        if not is_sealed:
            os.close(fd)
            raise ProtocolError("got shared memory that may shrink, want it sealed against that")
        self.fd = fd
        self.number = number
        self._size_bytes = 0

    def __del__(self) -> None:
        if "fd" in self.__dict__:
            os.close(self.fd)

    def holds(self, size_bytes: int) -> bool:
        """Whether it is at least that large."""
        if size_bytes > self._size_bytes:
            self._size_bytes = os.fstat(self.fd).st_size
        return size_bytes <= self._size_bytes


def mapped(fd: int, size_bytes: int) -> memoryview:
    """The first bytes of memory of another process, to read and write; closes the descriptor.

    Raises:
        OSError: it cannot be mapped.
    """
    try:
        return _mapped(fd, size_bytes)
    finally:
        os.close(fd)


def _mapped(fd: int, size_bytes: int) -> memoryview:
    # All pages at once: a fault for each costs more than copying what is in it.
    return memoryview(mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED | _POPULATE))
