"""Memory that two processes share: what its owner may do with it, and what is accepted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.errors import ProtocolError
from edge_agent.transport.memory import OwnMemory, SharedMemory, mapped


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_what_the_owner_writes_the_other_side_reads_and_the_other_way_round() -> None:
    own = OwnMemory(5000)
    theirs = mapped(os.dup(own.fd), 5000)
    own.view[:3] = b"abc"
    theirs[4999] = 7
    assert bytes(theirs[:3]) == b"abc"
    assert own.view[4999] == 7


def test_grown_memory_keeps_what_it_holds_and_is_the_same_memory() -> None:
    own = OwnMemory(10)
    own.view[:3] = b"abc"
    before = mapped(os.dup(own.fd), 10)
    own.grow(100_000)
    own.grow(50)
    assert own.view.nbytes == 100_000
    own.view[1] = ord("x")
    assert bytes(before[:3]) == b"axc"
    assert bytes(own.view[:3]) == b"axc"


def test_memory_cannot_shrink_under_who_reads_it() -> None:
    own = OwnMemory(5000)
    with pytest.raises(PermissionError):
        os.ftruncate(own.fd, 4000)


def test_the_size_of_shared_memory_is_known_when_it_grows_too() -> None:
    own = OwnMemory(5000)
    shared = SharedMemory(os.dup(own.fd), 1)
    assert shared.holds(5000)
    assert not shared.holds(5001)
    own.grow(6000)
    assert shared.holds(6000)


def test_descriptors_are_closed_with_the_last_reference() -> None:
    before = descriptors()
    own = OwnMemory(10)
    shared = SharedMemory(os.dup(own.fd), 1)
    view = mapped(os.dup(own.fd), 10)
    # The mapping keeps one of its own.
    assert descriptors() == before + 4
    del own, shared, view
    assert descriptors() == before


def test_memory_that_may_shrink_is_refused_and_closed() -> None:
    before = descriptors()
    with pytest.raises(ProtocolError, match="may shrink"):
        SharedMemory(os.memfd_create("m", os.MFD_ALLOW_SEALING), 1)
    with pytest.raises(ProtocolError, match="may shrink"):
        SharedMemory(os.memfd_create("m"), 1)
    assert descriptors() == before


def test_a_descriptor_of_something_else_is_refused_and_closed(tmp_path: Path) -> None:
    before = descriptors()
    for fd in (os.open(tmp_path, os.O_RDONLY), os.open("/dev/null", os.O_RDONLY), os.eventfd(0)):
        with pytest.raises(ProtocolError, match="no shared memory"):
            SharedMemory(fd, 1)
    assert descriptors() == before


def test_what_cannot_be_mapped_is_closed() -> None:
    before = descriptors()
    with pytest.raises(OSError, match=r"Invalid argument|Cannot allocate|No such device"):
        mapped(os.open("/dev/null", os.O_RDWR), 1 << 62)
    assert descriptors() == before
