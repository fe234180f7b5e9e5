"""Streams that are joined in this process over real sockets, and what their receivers heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from edge_agent import clock
from edge_agent.endpoints import Endpoint
from edge_agent.peers import KeyPair
from edge_agent.wire.frames import nbytes
from edge_agent.wire.streaming import HEAD_BYTES
from edge_agent.worker.flows import Arrived, Steering
from edge_agent.worker.streams import Stream, Streams
from tests.wire.made_streams import tensors_of

LOOPBACK = Endpoint(host="127.0.0.1", port=0)
MIB = 1 << 20
WINDOW = 16 * MIB
WAIT_S = 20.0


class Heard:
    """A receiver that keeps what it hears, and releases what arrives unless it `holds`."""

    def __init__(self, *, holds: bool = False) -> None:
        self.holds = holds
        self.arrivals: list[Arrived] = []
        self.messages: list[Steering] = []
        self.told: list[str] = []
        """The names of all calls, in order."""
        self.whys: list[str] = []
        self.is_offended = False
        """Whether the other side broke the rules."""
        self.on_arrival: Callable[[Stream, Arrived], object] = lambda *_: None
        self.on_steering: Callable[[Stream, Steering], object] = lambda *_: None
        self._news = threading.Condition()

    def opened(self, stream: Stream) -> None:
        del stream
        self._note("opened")

    def arrived(self, stream: Stream, arrived: Arrived) -> None:
        self.on_arrival(stream, arrived)
        if not self.holds:
            stream.release(arrived)
        self._note("arrived", lambda: self.arrivals.append(arrived))

    def steered(self, stream: Stream, message: Steering) -> None:
        self.on_steering(stream, message)
        self._note("steered", lambda: self.messages.append(message))

    def broken(self, stream: Stream, why: str, *, is_offence: bool) -> None:
        assert stream.is_over
        self.is_offended = is_offence
        self._note("broken", lambda: self.whys.append(why))

    def _note(self, what: str, keep: Callable[[], object] = lambda: None) -> None:
        with self._news:
            keep()
            self.told.append(what)
            self._news.notify_all()

    def wait(self, is_so: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait until something is so that it heard of."""
        with self._news:
            assert self._news.wait_for(is_so, timeout_s), f"not in {timeout_s} s: {what}"

    def wait_arrivals(self, count: int, timeout_s: float = WAIT_S) -> list[Arrived]:
        """Wait for so many messages with tensors, since the beginning."""
        self.wait(lambda: len(self.arrivals) >= count or self.whys, f"{count} messages", timeout_s)
        assert not self.whys, self.whys
        return self.arrivals

    def wait_opened(self) -> None:
        """Wait until both sides are there."""
        self.wait(lambda: "opened" in self.told, "opened")

    def wait_broken(self, timeout_s: float = WAIT_S) -> str:
        """Wait for the end: why."""
        self.wait(lambda: self.whys, "broken", timeout_s)
        assert self.told.count("broken") == 1
        assert self.told[-1] == "broken"
        return self.whys[0]


@dataclass(slots=True)
class End:
    """One end of a stream."""

    stream: Stream
    heard: Heard

    def put(self, values: dict[str, Any], run: int = 0) -> None:
        """Send these."""
        self.stream.put(*tensors_of(values, run))


@dataclass(slots=True)
class Rig:
    """Makes `Streams` and ends them."""

    cleanup: ExitStack

    def streams(self) -> Streams:
        """Those of one worker."""
        made = Streams()
        self.cleanup.callback(made.stop)
        return made

    def listen(
        self,
        streams: Streams,
        keys: KeyPair | None = None,
        client: KeyPair | None = None,
        *,
        window_bytes: int = WINDOW,
        holds: bool = False,
    ) -> End:
        """An end that listens."""
        heard = Heard(holds=holds)
        admitted = None if client is None else client.public
        return End(streams.listen(LOOPBACK, keys, admitted, heard, window_bytes), heard)

    def dial(
        self,
        streams: Streams,
        to: Endpoint,
        keys: KeyPair | None = None,
        server: KeyPair | None = None,
        *,
        window_bytes: int = WINDOW,
        holds: bool = False,
    ) -> End:
        """An end that connects."""
        heard = Heard(holds=holds)
        key = None if server is None else server.public
        return End(streams.dial(to, keys, key, heard, window_bytes), heard)

    def pair(
        self,
        one: Streams,
        two: Streams,
        keys: tuple[KeyPair, KeyPair] | None = None,
        *,
        window_bytes: int = WINDOW,
        holds: bool = False,
    ) -> tuple[End, End]:
        """Both ends of a stream: the first listens."""
        here, there = keys or (None, None)
        listening = self.listen(one, here, there, window_bytes=window_bytes, holds=holds)
        to = listening.stream.endpoint
        dialled = self.dial(two, to, there, here, window_bytes=window_bytes, holds=holds)
        listening.heard.wait_opened()
        dialled.heard.wait_opened()
        return listening, dialled


@contextmanager
def rig() -> Iterator[Rig]:
    """See `Rig`."""
    with ExitStack() as cleanup:
        yield Rig(cleanup)


def cost(size: int) -> int:
    """What one tensor of so many bytes costs of a window."""
    return HEAD_BYTES + size


def settled(read: Callable[[], int], quiet_s: float = 0.2) -> int:
    """A number once it has not changed for a while."""
    found, since_s = read(), clock.monotonic_s()
    while clock.monotonic_s() - since_s < quiet_s:
        clock.sleep_s(0.01)
        if (now := read()) != found:
            found, since_s = now, clock.monotonic_s()
    return found


def sizes_of(arrived: Arrived) -> list[int]:
    """Bytes of its tensors."""
    return [nbytes(array.data) for array in arrived.arrays.values()]
