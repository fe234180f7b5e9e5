"""The content of tensors between agents: how this one gets what it lacks, and gives what it offered
(see `offers`)."""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from edge_agent import clock
from edge_agent.agent.offers import Offered
from edge_agent.agent.peer_host import Host, end_crowd
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import (
    EdgeAgentError,
    PeerLost,
    ProtocolError,
    StorageError,
    error_from_code,
)
from edge_agent.peers import PublicKey
from edge_agent.store.blobs import read_range
from edge_agent.store.partial import Partial
from edge_agent.transport.peer_sockets import Dialled, Listener
from edge_agent.transport.watched import LinkEvent
from edge_agent.wire.contents import (
    MAX_PIECE_BYTES,
    AskContent,
    AskProbe,
    Content,
    ContentCodec,
    NoContent,
)
from edge_agent.wire.messages import Message
from edge_agent.wire.peering import refusal

MOST_ASKED: Final = 8
"""Pieces that may be under way at once."""
PIECE_S: Final = 10.0
"""A peer that sends no piece for so long is given up."""
A_TURN: Final = 16
MOST_CONNECTIONS: Final = 16
"""As `peer_sessions.MOST_CONNECTIONS`."""
_PROBE: Final = bytes(MAX_PIECE_BYTES)

Answer = Callable[[memoryview | EdgeAgentError], None]
"""Called once, with the piece, valid as long as it is referred to, or why there is none."""


def _read(offered: Offered, offset_bytes: int, length_bytes: int) -> bytes:
    """Raises: StorageError; ProtocolError: it is not that long."""
    if offset_bytes + length_bytes > offered.size_bytes:
        raise ProtocolError(f"asked for bytes up to {offset_bytes + length_bytes} of a tensor")
    if offered.content is not None:
        return offered.content[offset_bytes : offset_bytes + length_bytes]
    try:
        with offered.path.open("rb") as file:
            return b"".join(map(bytes, read_range(file.fileno(), offset_bytes, length_bytes)))
    except (OSError, EOFError) as error:
        # The path is nobody else's business.
        raise StorageError("it is not here any more") from error


class ContentLine:
    """The connection to one peer for this. Only the thread of `peering.Peering` uses it."""

    def __init__(
        self,
        host: Host,
        domain: bytes,
        device: Callable[[], DeviceId],
        offend: Callable[[str], None],
    ) -> None:
        self.domain = b"content:" + domain
        self._host = host
        self._device = device
        self._offend = offend
        self._codec = ContentCodec()
        self._listener: Listener | None = None
        self._route: bytes | None = None
        self._dialled: Dialled | None = None
        self._is_broken = False
        """Whether the one that was dialled has ended, and is being made again."""
        self._numbers = itertools.count(1)
        self._awaited: dict[int, Answer] = {}
        self._waiting: deque[tuple[AskContent | AskProbe, Answer]] = deque()
        self._forgotten: deque[int] = deque(maxlen=4 * MOST_ASKED)
        """Numbers of questions whose answers may still come."""
        self._reading = 0
        self.used_s = float("-inf")
        """When something of content, not of probes, was asked last by either side."""
        self.on_piece: Callable[[int, bool], None] = lambda _bytes, _is_pressed: None
        """Called with the bytes of each piece that comes of what was asked for, and whether so much
        of it is still under way that the link had no pause."""

    def listen(self, at: Endpoint) -> int:
        """Take the peer's connection; the port. Raises: UsageError: there is none."""
        if self._listener is None:
            self._listener = self._host.switchboard.listen(
                at, self._host.keys, self.domain, self._on_listener_input
            )
        return self._listener.endpoint.port

    def dial(self, to: Endpoint, key: PublicKey) -> None:
        """Connect to the peer."""
        self.hang_up()
        self._is_broken = False
        self._dialled = self._host.switchboard.dial(
            to, self._host.keys, key, self._on_dialled_input
        )

    def ask(self, sha256: str, offset_bytes: int, length_bytes: int, answer: Answer) -> None:
        """Ask for a piece, when it is its turn; `answer` is called on this thread."""
        message = AskContent(
            number=next(self._numbers),
            sha256=sha256,
            offset_bytes=offset_bytes,
            length_bytes=length_bytes,
        )
        self.used_s = clock.monotonic_s()
        self._waiting.append((message, partial(self._piece_came, answer)))
        self._ask_more()

    def _piece_came(self, answer: Answer, piece: memoryview | EdgeAgentError) -> None:
        self.used_s = clock.monotonic_s()
        if not isinstance(piece, EdgeAgentError):
            self.on_piece(piece.nbytes, len(self._awaited) >= MOST_ASKED // 2)
        answer(piece)

    def ask_probe(self, length_bytes: int, answer: Answer) -> None:
        """Ask for bytes that mean nothing, as `ask` does."""
        message = AskProbe(number=next(self._numbers), length_bytes=length_bytes)
        self._waiting.append((message, answer))
        self._ask_more()

    def _ask_more(self) -> None:
        while self._waiting and len(self._awaited) < MOST_ASKED:
            message, answer = self._waiting.popleft()
            if self._send(message):
                self._awaited[message.number] = answer
            else:
                answer(PeerLost("there is no connection for content"))

    def _send(self, message: Message, piece: bytes = b"") -> bool:
        raw = self._codec.encode(message, piece)
        if self._dialled is not None:
            return not self._is_broken and self._dialled.send(raw)
        if self._listener is not None and self._route is not None:
            return self._listener.send(self._route, raw)
        return False

    def _on_dialled_input(self, dialled: Dialled) -> None:
        events = dialled.events()
        for event in events:
            if event is LinkEvent.OPEN:
                self._is_broken = False
                # From it the other side learns where to send what it asks.
                self._send(NoContent(number=0, code="error", message="here"))
            elif event is LinkEvent.ENDED:
                # It is made again by itself; what is asked before that might never be answered.
                self._is_broken = True
        for _ in range(A_TURN):
            if dialled is not self._dialled or (raw := dialled.receive()) is None:
                break
            self._take(raw)
        if dialled is not self._dialled:
            return
        if LinkEvent.REFUSED in events:
            self.hang_up()
        elif LinkEvent.ENDED in events:
            # Answers to what was asked before will not come.
            self.forget()

    def _on_listener_input(self, listener: Listener) -> None:
        listener.events()
        end_crowd(self._host, listener, MOST_CONNECTIONS, clock.monotonic_s())
        if listener is self._listener and listener.connections > 2 * MOST_CONNECTIONS:
            self.close()
            self._offend("it holds more connections for content than it may")
            return
        for _ in range(A_TURN):
            if listener is not self._listener or (received := listener.receive()) is None:
                return
            if received.route != self._route:
                # It connected anew: answers to what was asked before will not come.
                self._route = received.route
                self.forget()
            self._take(received.payload)

    def _take(self, raw: bytes) -> None:
        try:
            message, piece = self._codec.decode(raw)
        except ProtocolError as error:
            self._offend(str(error))
            return
        match message:
            case AskContent():
                self._asked(message)
            case AskProbe(number=number, length_bytes=length_bytes):
                self._send(Content(number), _PROBE[:length_bytes])
            case Content(number=number):
                self._answered(number, piece)
            case NoContent(number=0):
                pass  # it says that it is there
            case NoContent(number=number, code=code, message=text):
                self._answered(number, error_from_code(code, text))

    def _answered(self, number: int, answer: memoryview | EdgeAgentError) -> None:
        awaiting = self._awaited.pop(number, None)
        if awaiting is None:
            if number in self._forgotten:
                self._forgotten.remove(number)  # it was under way when nobody waited any more
            else:
                self._offend("it answered what was not asked")
            return
        awaiting(answer)
        self._ask_more()

    def _asked(self, message: AskContent) -> None:
        self.used_s = clock.monotonic_s()
        # Twice as many, for what was asked before it connected anew may still be read.
        if self._reading >= 2 * MOST_ASKED:
            self._offend("it asks for more content at once than it may")
            return
        offered = self._host.offers.find(self._device(), message.sha256)
        if offered is None:
            self._host.counters["content refused that was not offered"] += 1
            self._refuse(message.number, StorageError("that was not offered to this device"))
            return
        self._reading += 1
        self._host.later(partial(self._read, message, offered))

    def _read(self, message: AskContent, offered: Offered) -> None:
        """On a thread that may wait for the disk."""
        answer: bytes | EdgeAgentError
        try:
            answer = _read(offered, message.offset_bytes, message.length_bytes)
        except EdgeAgentError as error:
            answer = error
        self._host.post(partial(self._have_read, message.number, answer))

    def _have_read(self, number: int, answer: bytes | EdgeAgentError) -> None:
        self._reading -= 1
        if isinstance(answer, EdgeAgentError):
            self._refuse(number, answer)
        else:
            self._send(Content(number), answer)

    def _refuse(self, number: int, error: EdgeAgentError) -> None:
        told = refusal(error)
        self._send(NoContent(number=number, code=told.code, message=told.message))

    def forget(self) -> None:
        """The peer is gone: who waits for it is told."""
        answers = [*self._awaited.values(), *(answer for _, answer in self._waiting)]
        self._forgotten.extend(self._awaited)
        self._awaited.clear()
        self._waiting.clear()
        for answer in answers:
            answer(PeerLost("the connection for content has ended"))

    def hang_up(self) -> None:
        """End what was dialled; who waits for the peer is told."""
        if self._dialled is not None:
            self._host.switchboard.close(self._dialled)
            self._dialled = None
        self.forget()

    def close(self) -> None:
        """End it; who waits is told."""
        if self._listener is not None:
            self._host.switchboard.close(self._listener)
        self._listener = self._route = None
        self.hang_up()


class Fetch:
    """Gets one tensor from a peer into a partial file, and goes on where that is. On a thread of
    its own: it waits for the network and the disk."""

    def __init__(self, ask: Callable[[str, int, int, Answer], None], partial_: Partial) -> None:
        """`ask` is that of a `ContentLine`, to be called from any thread."""
        self._ask = ask
        self._partial = partial_
        self._pieces: queue.SimpleQueue[tuple[int, memoryview | EdgeAgentError]] = (
            queue.SimpleQueue()
        )

    def run(self, on_received: Callable[[int], None] = lambda _count: None) -> None:
        """Fetch and check it; `on_received` hears how many bytes came, as they come.

        Raises:
            PeerLost: the peer is gone, or sends nothing any more: what came is kept.
            ProtocolError: it sent something else.
            StorageError: it does not have it, or there is no room here.
        """
        partial_ = self._partial
        asked = partial_.received_bytes
        came: dict[int, memoryview] = {}
        while not partial_.is_whole:
            while asked < partial_.size_bytes and self._may_ask(asked, came):
                length = min(MAX_PIECE_BYTES, partial_.size_bytes - asked)
                self._ask(partial_.sha256, asked, length, partial(self._put, asked))
                asked += length
            offset, piece = self._next_piece()
            length = min(MAX_PIECE_BYTES, partial_.size_bytes - offset)
            if piece.nbytes != length:
                raise ProtocolError(f"got a piece of {piece.nbytes} bytes, want {length}")
            came[offset] = piece
            while (ready := came.pop(partial_.received_bytes, None)) is not None:
                partial_.write(partial_.received_bytes, ready)
                on_received(ready.nbytes)
        partial_.check()

    def _may_ask(self, asked: int, came: Mapping[int, memoryview]) -> bool:
        """Whether less is under way or waits here for its turn than may be."""
        ahead = asked - self._partial.received_bytes
        return ahead < MOST_ASKED * MAX_PIECE_BYTES and len(came) < MOST_ASKED

    def _put(self, offset: int, piece: memoryview | EdgeAgentError) -> None:
        self._pieces.put((offset, piece))

    def _next_piece(self) -> tuple[int, memoryview]:
        try:
            offset, piece = self._pieces.get(timeout=PIECE_S)
        except queue.Empty:
            raise PeerLost(f"no piece of a tensor came for {PIECE_S:.0f} s") from None
        if isinstance(piece, EdgeAgentError):
            raise piece
        return offset, piece
