"""Agents' parts that meet other devices, in this process with real sockets, and a device that says
whatever a test wants over a connection that is proven."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from edge_agent import clock
from edge_agent.agent.peering import Peering
from edge_agent.config import Peering as PeeringSettings
from edge_agent.config import Settings
from edge_agent.endpoints import Endpoint
from edge_agent.peers import KeyPair, Peer, PeerCondition, PeerStatus, PublicKey
from edge_agent.store.folder import make_folder
from edge_agent.transport.curve import encrypt_as_client, make_keys
from edge_agent.transport.watched import monitor_of
from edge_agent.wire.messages import Message
from edge_agent.wire.peering import (
    Beat,
    DoorAnswer,
    Goodbye,
    Hello,
    PeerCodec,
    PeerMessage,
    Welcome,
    decode_from,
)
from tests.relay import Relay
from tests.system.running import wait_until

LOOPBACK = Endpoint(host="127.0.0.1", port=0)
BEAT_S = 0.05


@dataclass(slots=True)
class Devices:
    """Makes devices that are ended with the test."""

    folder: Path
    cleanup: ExitStack

    def start(
        self,
        name: str,
        *,
        listens: bool = True,
        at: Endpoint = LOOPBACK,
        silent_s: float = 1.0,
        gone_s: float = 10.0,
        peers: tuple[Peer, ...] = (),
    ) -> Peering:
        """A device whose state folder is called by its name; one that ended comes back with it."""
        settings = Settings(
            socket=self.folder / name / "socket",
            state=self.folder / name,
            cache=self.folder / name,
            peering=PeeringSettings(
                listen=at if listens else None,
                name=name,
                beat_s=BEAT_S,
                silent_s=silent_s,
                gone_s=gone_s,
            ),
            peers=peers,
        )
        make_folder(settings.state)
        executor = ThreadPoolExecutor(4, thread_name_prefix=f"control-{name}")
        self.cleanup.callback(executor.shutdown)
        made = Peering(settings, executor)
        self.cleanup.callback(made.stop)
        made.start()
        return made


@contextmanager
def devices(folder: Path) -> Iterator[Devices]:
    """See `Devices`."""
    with ExitStack() as cleanup:
        yield Devices(folder, cleanup)


def status_of(device: Peering, peer: str) -> PeerStatus:
    """How a peer is, as the device sees it."""
    return next(status for status in device.statuses() if status.peer.name == peer)


def until(device: Peering, peer: str, condition: PeerCondition, timeout_s: float = 10.0) -> None:
    """Wait until the device sees the peer so."""

    def is_so() -> bool:
        return status_of(device, peer).condition is condition

    wait_until(is_so, f"{peer} is {condition}", timeout_s)


def endpoint_of(device: Peering) -> Endpoint:
    """Where a device listens that does."""
    assert device.listens_at is not None
    return device.listens_at


def joined(inviting: Peering, joining: Peering) -> None:
    """Have one join the other, and wait until each sees the other."""
    joining.join(inviting.invite(60))
    until(inviting, joining.name, PeerCondition.UP)
    until(joining, inviting.name, PeerCondition.UP)


@contextmanager
def frozen(device: Peering) -> Iterator[None]:
    """Its thread does nothing, as if the device had stopped; the kernel keeps its connections."""
    is_over = threading.Event()
    has_begun = threading.Event()

    def freeze() -> None:
        has_begun.set()
        is_over.wait(30)

    device.post(freeze)
    has_begun.wait(5)
    try:
        yield
    finally:
        is_over.set()


@contextmanager
def relayed(one: Peering, two: Peering) -> Iterator[tuple[Relay, Relay]]:
    """See `all_relayed`; without the relay for content."""
    with all_relayed(one, two) as (to_door, line, _):
        yield to_door, line


@contextmanager
def all_relayed(one: Peering, two: Peering) -> Iterator[tuple[Relay, Relay, Relay]]:
    """Two devices that are up over relays: to the door of the first, and to the second's sockets
    there, for messages and for content."""
    door = endpoint_of(one)
    one.add(Peer(key=two.keys.public, name=two.name))
    # It tells where it is itself, which leads past the relays.
    one.own_endpoints = tuple  # type: ignore[method-assign]
    with stranger(two.keys) as scout:
        welcome = scout.ask_door(one, scout.hello())
        assert isinstance(welcome, Welcome), welcome
    with (
        Relay((door.host, door.port), at=("127.0.0.2", 0)) as to_door,
        Relay((door.host, welcome.port), at=(to_door.host, welcome.port)) as line,
        Relay((door.host, welcome.content_port), at=(to_door.host, welcome.content_port)) as bulk,
    ):
        place = Endpoint(host=to_door.host, port=to_door.port)
        two.add(Peer(key=one.keys.public, name=one.name, endpoints=(place,)))
        until(one, two.name, PeerCondition.UP)
        until(two, one.name, PeerCondition.UP)
        yield to_door, line, bulk
        # Before the relays are gone.
        two.stop()


class RawSocket:
    """A DEALER that a test owns; never waits longer than it is told."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        to: Endpoint,
        keys: KeyPair | None,
        server: PublicKey,
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        if keys is not None:
            encrypt_as_client(self.socket, keys, server)
        self.monitor = monitor_of(context, self.socket, zmq.EVENT_ALL)
        self.socket.connect(str(to))

    def send(self, *frames: bytes) -> bool:
        """Whether it could be sent."""
        try:
            self.socket.send_multipart(list(frames), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_s: float = 5.0) -> bytes | None:
        """What comes within the time."""
        return self.socket.recv() if self.socket.poll(int(timeout_s * 1000)) else None

    def events(self, timeout_s: float = 0.0) -> set[int]:
        """What happened to its connection since the last call."""
        found: set[int] = set()
        until_s = clock.monotonic_s() + timeout_s
        while True:
            left_s = max(0.0, until_s - clock.monotonic_s())
            if not self.monitor.poll(0 if found else int(left_s * 1000), zmq.POLLIN):
                return found
            found.add(recv_monitor_message(self.monitor)["event"])

    def close(self) -> None:
        """End it."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()


class Stranger:
    """A device of which nothing is ours but the sockets."""

    def __init__(self, keys: KeyPair | None = None) -> None:
        self.keys = keys or make_keys()
        self.codec = PeerCodec()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[RawSocket] = []

    def dial(
        self,
        to: Endpoint,
        server: PublicKey,
        keys: KeyPair | None = None,
        *,
        is_plain: bool = False,
    ) -> RawSocket:
        """A socket that connects."""
        made = RawSocket(self._context, to, None if is_plain else keys or self.keys, server)
        self._sockets.append(made)
        return made

    def say(self, at: RawSocket, message: Message) -> bool:
        """Send a message as an agent would."""
        return at.send(self.codec.encode(message))

    def hello(self, name: str = "stranger", beat_s: float = BEAT_S) -> Hello:
        """What it says at a door."""
        return Hello(name=name, endpoints=(), version="raw", beat_s=beat_s, agent="")

    def heard(self, at: RawSocket, timeout_s: float = 5.0) -> list[PeerMessage]:
        """What comes until nothing more does for the time, or the connection is said to end."""
        found: list[PeerMessage] = []
        while (raw := at.receive(timeout_s)) is not None:
            found.append(decode_from(self.codec.from_peer, raw))
            if isinstance(found[-1], Goodbye):
                break
        return found

    def ask_door(
        self, device: Peering, message: Message, keys: KeyPair | None = None
    ) -> DoorAnswer:
        """What the door answers."""
        knock = self.dial(endpoint_of(device), device.keys.public, keys)
        self.say(knock, message)
        raw = knock.receive()
        assert raw is not None, "the door does not answer"
        answer: DoorAnswer = decode_from(self.codec.from_door, raw)
        self.hang_up(knock)
        return answer

    def is_refused(self, device: Peering, keys: KeyPair | None = None) -> bool:
        """Whether the door does not let it in."""
        knock = self.dial(endpoint_of(device), device.keys.public, keys)
        self.say(knock, self.hello())
        found: set[int] = set()
        ends = {zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_SUCCEEDED}
        while not found & ends:
            news = knock.events(5)
            assert news, "nothing happens at the door"
            found |= news
        is_answered = knock.receive(0.2) is not None
        self.hang_up(knock)
        return not is_answered and zmq.EVENT_HANDSHAKE_FAILED_AUTH in found

    def connect(self, device: Peering) -> RawSocket:
        """A connection to the socket of this peer; no heartbeat went over it yet."""
        welcome = self.ask_door(device, self.hello())
        assert isinstance(welcome, Welcome), welcome
        return self.dial(endpoint_of(device).at(welcome.port), device.keys.public)

    def hang_up(self, socket: RawSocket) -> None:
        """Close one of its sockets."""
        self._sockets.remove(socket)
        socket.close()

    def end(self) -> None:
        """Close all of them."""
        for socket in self._sockets:
            socket.close()
        self._context.destroy(linger=0)


@contextmanager
def stranger(keys: KeyPair | None = None) -> Iterator[Stranger]:
    """See `Stranger`."""
    made = Stranger(keys)
    try:
        yield made
    finally:
        made.end()


def admitted(device: Peering, who: Stranger, name: str = "stranger") -> None:
    """Have the device trust it."""
    device.add(Peer(key=who.keys.public, name=name))


def beat(number: int = 1) -> Beat:
    """A heartbeat."""
    return Beat(number=number, echo=None, held_s=0.0)
