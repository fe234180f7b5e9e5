"""A data socket is for one connection, and all of them wait in one place."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edge_agent import clock
from edge_agent.endpoints import Endpoint
from edge_agent.errors import UsageError
from edge_agent.peers import PublicKey
from edge_agent.transport.curve import make_keys
from edge_agent.transport.data_sockets import HIGH_WATER, DataSocket
from edge_agent.transport.data_switch import DataSwitch

LOOPBACK = Endpoint(host="127.0.0.1", port=0)
HERE, THERE, STRANGER = (make_keys() for _ in range(3))
DOMAIN = b"data:1"


class Switch:
    """One with its sockets, on the thread of the test."""

    def __init__(self) -> None:
        self.switch = DataSwitch(self._is_admitted)
        self.admitted: list[tuple[bytes, PublicKey]] = [(DOMAIN, THERE.public)]
        self.whys: dict[DataSocket, str] = {}
        self.received: dict[DataSocket, list[list[bytes]]] = {}

    def _is_admitted(self, domain: bytes, key: PublicKey, _: str) -> bool:
        return (domain, key) in self.admitted

    def socket(self) -> DataSocket:
        made = self.switch.socket(1000)
        self.switch.add(made)
        self.received[made] = []
        return made

    def run(self, is_so: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Take what comes until something is so."""
        until_s = clock.monotonic_s() + timeout_s
        timer = threading.Timer(timeout_s, self.switch.wake)
        timer.start()
        while not is_so():
            assert clock.monotonic_s() < until_s
            eventful, ready = self.switch.wait()
            for socket in eventful:
                if (why := socket.look()) is not None:
                    self.whys.setdefault(socket, why)
            for socket in ready:
                while (parts := socket.receive()) is not None:
                    self.received[socket].append([bytes(part) for part in parts])
        timer.cancel()
        timer.join()


@pytest.fixture
def made() -> Iterator[Switch]:
    found = Switch()
    yield found
    found.switch.end()


def both(made: Switch) -> tuple[DataSocket, DataSocket]:
    listening, dialling = made.socket(), made.socket()
    listening.listen(LOOPBACK, HERE, DOMAIN)
    dialling.dial(listening.endpoint, THERE, HERE.public)
    made.run(lambda: listening.is_open and dialling.is_open)
    return listening, dialling


def test_messages_go_both_ways_with_and_without_copying(made: Switch) -> None:
    ends = both(made)
    for end in ends:
        assert end.send([b"x"], is_shared=False)
        assert end.send([b"head", bytes(900)], is_shared=True)
    made.run(lambda: all(len(made.received[end]) == 2 for end in ends))
    for end in ends:
        assert made.received[end] == [[b"x"], [b"head", bytes(900)]]
    assert made.whys == {}


def test_a_listener_sends_nothing_before_somebody_is_there(made: Switch) -> None:
    listening = made.socket()
    listening.listen(LOOPBACK, None, b"")
    assert listening.endpoint.port
    assert not listening.send([b"x"], is_shared=False)
    assert listening.look() is None
    assert listening.receive() is None


def test_more_than_is_taken_is_not_sent_until_there_is_room(made: Switch) -> None:
    listening, dialling = both(made)
    sent = 0
    while dialling.send([bytes(900)], is_shared=False):
        sent += 1
    assert sent >= HIGH_WATER
    made.switch.want_room(dialling, wanted=True)

    def send_more() -> bool:
        nonlocal sent
        sent += dialling.send([bytes(900)], is_shared=False)
        return len(made.received[listening]) > 2 * HIGH_WATER

    made.run(send_more)
    made.switch.want_room(dialling, wanted=False)
    made.run(lambda: len(made.received[listening]) == sent)


@pytest.mark.parametrize("closes_first", [True, False])
def test_the_end_is_seen_by_the_other_side(made: Switch, closes_first: bool) -> None:
    ends = both(made)
    closing, left = ends if closes_first else ends[::-1]
    made.switch.remove(closing)
    made.run(lambda: made.whys)
    assert made.whys == {left: "the connection is ended"}


def test_only_a_key_that_is_admitted_to_the_domain_is_let_in(made: Switch) -> None:
    other = made.socket()
    other.listen(LOOPBACK, HERE, b"data:2")
    listening = made.socket()
    listening.listen(LOOPBACK, HERE, DOMAIN)
    refused = [made.socket() for _ in range(2)]
    refused[0].dial(other.endpoint, THERE, HERE.public)
    refused[1].dial(listening.endpoint, STRANGER, HERE.public)
    made.run(lambda: len(made.whys) == 2)
    # The refusal may not arrive before the connection is closed behind it.
    assert set(made.whys) == set(refused)
    assert set(made.whys.values()) <= {"the connection is refused", "the connection is ended"}
    right = made.socket()
    right.dial(listening.endpoint, THERE, HERE.public)
    made.run(lambda: listening.is_open and right.is_open)
    assert not other.is_open


def test_a_second_connection_of_the_neighbour_is_told(made: Switch) -> None:
    listening, _ = both(made)
    again = made.socket()
    again.dial(listening.endpoint, THERE, HERE.public)
    made.run(lambda: made.whys)
    assert made.whys == {listening: "the other side connected a second time"}


def test_others_that_come_and_go_are_not_the_neighbour(made: Switch) -> None:
    listening, dialling = both(made)
    for _ in range(5):
        stranger = made.socket()
        stranger.dial(listening.endpoint, STRANGER, HERE.public)
        made.run(lambda stranger=stranger: stranger in made.whys)  # type: ignore[misc]
        made.switch.remove(stranger)
    assert listening not in made.whys
    made.switch.remove(dialling)
    made.run(lambda: listening in made.whys)
    assert made.whys[listening] == "the connection is ended"


def test_keys_are_given_for_both_sides_or_for_none(made: Switch) -> None:
    for keys, server in ((THERE, None), (None, HERE.public)):
        with pytest.raises(AssertionError):
            made.socket().dial(LOOPBACK.at(9), keys, server)


def test_an_address_that_is_taken_leaves_the_others_as_they_are() -> None:
    made = Switch()
    listening = made.socket()
    listening.listen(LOOPBACK, None, b"")
    with pytest.raises(UsageError, match="another program listens there"):
        made.switch.socket(1000).listen(listening.endpoint, None, b"")
    made.switch.end()


# ---- waking


def test_no_wake_is_lost_however_many_threads_wake_at_once(made: Switch) -> None:
    posted: deque[threading.Event] = deque()
    each, threads = 1500, 3

    def post() -> None:
        for number in range(each):
            is_done = threading.Event()
            posted.append(is_done)
            made.switch.wake()
            # Most wait for each, so that the other side has nothing to do but wait as well.
            if number % 3 and not is_done.wait(20):
                return

    working = [threading.Thread(target=post) for _ in range(threads)]
    # Ends a wait that would last for ever.
    late = threading.Timer(10, os.eventfd_write, (made.switch._wake_fd, 1))
    for thread in (*working, late):
        thread.start()
    done, at_s = 0, clock.monotonic_s()
    while done < each * threads and late.is_alive():
        made.switch.wait()
        while posted:
            posted.popleft().set()
            done += 1
    late.cancel()
    for thread in (*working, late):
        thread.join()
    assert done == each * threads
    assert clock.monotonic_s() - at_s < 10


def test_a_wake_before_the_wait_is_not_lost(made: Switch) -> None:
    for _ in range(3):
        made.switch.wake()
        made.switch.wake()
        assert made.switch.wait() == ([], [])


def test_after_the_end_nothing_is_written_to_whoever_has_the_descriptor(tmp_path: Path) -> None:
    made = Switch()
    number = made.switch._wake_fd
    made.switch.end()
    with ExitStack() as cleanup:
        while True:
            other = cleanup.enter_context((tmp_path / "other").open("wb", buffering=0))
            if other.fileno() >= number:
                break
        made.switch.wake()
    assert (tmp_path / "other").read_bytes() == b""
