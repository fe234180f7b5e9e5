"""Everything between this agent and those of other devices: one thread holds all their sockets.

It starts when the first of these is so: the agent listens, has a peer, or joins one. What other
threads ask of it, they ask by `call`.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

from edge_agent import __version__, clock
from edge_agent.agent.contents import Answer, Fetch
from edge_agent.agent.device_keys import own_keys, replace_keys
from edge_agent.agent.door import DOMAIN, Door
from edge_agent.agent.invitations import Invitations
from edge_agent.agent.joining import JOIN_S, Joining
from edge_agent.agent.liveness import Patience
from edge_agent.agent.offences import Seldom
from edge_agent.agent.offers import Offers
from edge_agent.agent.own_words import SAMPLE_S, OwnWords, Sample
from edge_agent.agent.peer_book import PeerBook
from edge_agent.agent.peer_profiles import PeerProfiles
from edge_agent.agent.peer_sessions import Session
from edge_agent.agent.rotating import tell_key
from edge_agent.answering import answering
from edge_agent.config import Settings
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.errors import AgentUnavailable, Busy, EdgeAgentError, PeerLost, UsageError
from edge_agent.known_peers import KnownPeer
from edge_agent.peers import (
    MAX_ENDPOINTS,
    KeyPair,
    Peer,
    PeerCondition,
    PeerLink,
    PeerStatus,
    PublicKey,
    name_from,
)
from edge_agent.store.device_key import DeviceKeyStore
from edge_agent.store.device_profiles import DeviceProfileStore
from edge_agent.store.partial import Partial
from edge_agent.store.peers import PeerStore
from edge_agent.telemetry.network import hostname, own_addresses
from edge_agent.transport.curve import make_keys
from edge_agent.transport.peer_sockets import Switchboard
from edge_agent.wire.deploying import Deploying
from edge_agent.wire.peering import Hello, PeerCodec
from edge_agent.wire.telling import Statistics
from edge_agent.wire.tokens import Token, read_token, write_token

log = logging.getLogger(__name__)

LONGEST_WAIT_S: Final = 0.25
SOON_S: Final = 0.05
END_S: Final = 2.0
REOPEN_S: Final = 5.0
"""A port that is not free again by then has been taken by another program."""

T = TypeVar("T")


class DeploysTo(Protocol):
    """Who divides models over devices. Called on the thread of the peers, so it must be quick."""

    def deploys(self, peer: Peer, message: Deploying) -> None:
        """A peer says something of a divided epoch. Raises: ProtocolError: which it must not
        say."""
        ...

    def has_changed(self, peer: Peer, condition: PeerCondition) -> None:
        """A peer is so from now on; one that was removed is gone."""
        ...


class Peering:
    """See the module. Implements `door.DoorHost` for what runs on its thread."""

    def __init__(self, settings: Settings, executor: Executor) -> None:
        """Raises: StorageError: the list of peers cannot be read."""
        self._settings = settings
        self._executor = executor
        self._key_store = DeviceKeyStore(settings.state)
        self._keys: KeyPair | None = None
        self.book = PeerBook(PeerStore(settings.state), settings.peers)
        self.offers = Offers()
        """What each peer may have of the content of this device."""
        self.own = OwnWords()
        """What peers are told of this device."""
        self.profiles = PeerProfiles(DeviceProfileStore(settings.state), self.later)
        """What peers told of themselves."""
        self.statistics: Statistics | None = None
        """See `peer_host.Host`."""
        self._next_look_s = float("-inf")
        self.codec = PeerCodec()
        self.patience = Patience(
            beat_s=settings.peering.beat_s,
            silent_s=settings.peering.silent_s,
            gone_s=settings.peering.gone_s,
        )
        self.name = settings.peering.name or name_from(hostname())
        """What this device calls itself."""
        self._drawn = secrets.token_hex(8)
        """What tells this agent from one on another device that has the same key."""
        self.counters: Counter[str] = Counter()
        self.seldom = Seldom()
        self.invitations = Invitations()
        self.switchboard: Switchboard
        self._door: Door | None = None
        self._door_at: Endpoint | None = None
        """Where it is to be."""
        self._no_door_since_s: float | None = None
        self._sessions: list[Session] = []
        self._joinings: list[Joining] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._starting = threading.Lock()
        self._posting = threading.Lock()
        self._is_ended = False
        self._thread: threading.Thread | None = None
        self._rotating = threading.Lock()
        self._deploying: DeploysTo | None = None
        self._on_company: Callable[[], None] = lambda: None

    def connect(self, deploying: DeploysTo) -> None:
        """Say who divides models over devices; before that, nobody does."""
        self._deploying = deploying

    # ---- what other threads ask

    @property
    def keys(self) -> KeyPair:
        """Of this device; made when they are first needed.

        Raises:
            StorageError: they are damaged, others can read them, or they cannot be kept.
            RuntimeUnavailable: libzmq cannot encrypt.
        """
        if self._keys is None:
            self._keys = own_keys(self._key_store)
        return self._keys

    def start(self) -> None:
        """Open the door and connect to the peers, if there is a door or a peer.

        Raises:
            UsageError: it cannot listen at the address that it was told.
            StorageError, RuntimeUnavailable: as `keys`.
        """
        if self._settings.peering.listen is not None or len(self.book):
            self._need_thread()

    def _need_thread(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            if self._is_ended:
                raise AgentUnavailable("the agent is ending")
            self.book.own(self.keys.public)
            self.profiles.load(peer.id for peer in self.book.peers)
            self.switchboard = Switchboard(self._judge)
            try:
                if (at := self._settings.peering.listen) is not None:
                    self._open_door(at)
            except EdgeAgentError:
                self.switchboard.end()
                raise
            self.sync()
            self._thread = threading.Thread(target=self._loop, name="peers", daemon=True)
            self._thread.start()
            self._on_company()

    def when_there_is_company(self, begin: Callable[[], None]) -> None:
        """Call `begin`, which must not block, once the agent listens or has a peer."""
        with self._starting:
            self._on_company = begin
            if self._thread is not None:
                begin()

    def _open_door(self, at: Endpoint) -> None:
        self._door = Door(at, self)
        if self._door_at is None:
            log.info("listening for peers at %s", self._door.endpoint)
        self._door_at = self._door.endpoint

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the thread of the peers soon; not at all if it has ended."""
        with self._posting:
            if not self._is_ended:
                self._calls.append(action)
                self.switchboard.wake()

    def call(self, question: Callable[[], T]) -> T:
        """Run `question` on the thread of the peers and return what it returns, or raise what it
        raises.

        Raises: AgentUnavailable: the thread has ended.
        """
        self._need_thread()
        if threading.current_thread() is self._thread:
            return question()
        answer, run = answering(question)

        with self._posting:
            if self._is_ended:
                raise AgentUnavailable("the agent is ending")
            self._calls.append(run)
            self.switchboard.wake()
        return answer.result()

    def later(self, action: Callable[[], None]) -> None:
        """See `peer_host.Host`."""
        # When the agent ends, what is asked for last is not needed.
        with suppress(RuntimeError):
            self._executor.submit(self._guarded, action)

    @property
    def listens_at(self) -> Endpoint | None:
        """See `peer_host.Host`."""
        return self._door_at

    def own_endpoints(self) -> tuple[Endpoint, ...]:
        """Where other devices reach this one; () if it does not listen."""
        at = self.listens_at
        if at is None or not at.is_any:
            return () if at is None else (at,)
        hosts = own_addresses(with_ipv6=at.is_ipv6)
        return tuple(Endpoint(host=host, port=at.port) for host in hosts)[:MAX_ENDPOINTS]

    def hello(self) -> Hello:
        """See `peer_host.Host`."""
        return Hello(
            name=self.name,
            endpoints=tuple(map(str, self.own_endpoints())),
            version=__version__,
            beat_s=self.patience.beat_s,
            agent=self._drawn,
        )

    def invite(self, ttl_s: float) -> str:
        """A new token, good for one device and so many seconds.

        Raises:
            UsageError: this agent does not listen, or has no address.
            Busy: too many tokens are open.
        """
        endpoints = self.own_endpoints()
        if self.listens_at is None:
            raise UsageError(
                "this agent does not listen for other devices: start it with "
                "`edge-agent serve --listen tcp://ADDRESS:PORT`"
            )
        if not endpoints:
            raise UsageError(
                f"this agent listens at {self.listens_at}, but no interface of the device has an "
                "address at which another one could reach it: connect it to a network"
            )
        made = make_keys()
        self.call(lambda: self.invitations.add(made.public, ttl_s, clock.monotonic_s()))
        return write_token(
            Token(key=self.keys.public, name=self.name, endpoints=endpoints, secret=made.secret)
        )

    def join(self, text: str) -> tuple[Peer, bool]:
        """Join the device that gave out this token: the peer that it is from now on, and whether it
        was one before and is there.

        Raises:
            UsageError: it is no token, or a name stands in the way, here or there.
            PeerRefused: the other device does not take the token.
            PeerLost: it does not answer.
            StorageError: the list of peers cannot be kept, here or there.
        """
        token = read_token(text)
        there = self.book.by_key(token.key)
        if there is not None and self._is_there(token.key):
            return there, True
        if token.key == self.keys.public:
            raise UsageError(
                "token: this device gave it out, or one to which its state folder was copied: "
                "`edge-agent key rotate` gives this one a key of its own"
            )
        if there is None:
            self.book.check_free(token.name)
        log.info('joining "%s" at %s', token.name, ", ".join(map(str, token.endpoints)))
        joining = self.call(lambda: self._begin_joining(token))
        peer = joining.done.result(JOIN_S + END_S)
        added = self.book.add(peer)
        self.call(self.sync)
        return added, False

    def is_peer_of(self, text: str) -> bool:
        """Whether the device that gave out this token is a peer. Raises: UsageError: it is none."""
        return self.book.by_key(read_token(text).key) is not None

    def _is_there(self, key: PublicKey) -> bool:
        session = self.call(lambda: self.session_of(key))
        return session is not None and session.is_there

    def _begin_joining(self, token: Token) -> Joining:
        joining = Joining(token, self, self.keys.public)
        self._joinings.append(joining)
        joining.start()
        return joining

    def add(self, peer: Peer) -> Peer:
        """Put a device on the list. Raises: as `PeerBook.add`."""
        self._check_not_own(peer.name)
        # Before the first peer there is no thread that said it.
        self.book.own(self.keys.public)
        added = self.book.add(replace(peer, written=peer.endpoints))
        self.call(self.sync)
        return added

    def _check_not_own(self, name: str) -> None:
        """Raises: UsageError: it is that of this device, from which nobody could tell a peer."""
        if name == self.name:
            raise UsageError(f'"{name}" is the name of this device: choose another one')

    def remove(self, name: str) -> Peer:
        """Take a device from the list, and end its connections.

        Raises:
            UnknownPeer: there is none of that name, id or key.
            UsageError, StorageError: as `PeerBook.remove`.
        """
        peer = self.book.find(name)
        self.book.remove(peer)

        def forget() -> None:
            self.offers.withdraw(peer.id)
            for key in peer.keys:
                self.invitations.forget(key)
            self.sync()

        self.call(forget)
        log.info('peer "%s" (%s) is removed', peer.name, peer.id)
        return peer

    def rename(self, name: str, to: str) -> Peer:
        """Call a peer differently here. Raises: UnknownPeer; UsageError, StorageError: as
        `PeerBook.rename`."""
        self._check_not_own(to)
        renamed = self.book.rename(self.book.find(name), to)
        self.call(self.sync)
        return renamed

    def statuses(self) -> tuple[PeerStatus, ...]:
        """All peers and how they are, by name."""
        if self._thread is None:
            return ()

        def look() -> tuple[PeerStatus, ...]:
            now_s = clock.monotonic_s()
            return tuple(session.status(now_s) for session in self._sessions)

        return tuple(sorted(self.call(look), key=lambda status: status.peer.name))

    def fetch(
        self,
        peer: Peer,
        tensor: Partial,
        on_received: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """Get what is missing of a tensor from a peer, and check it. Blocks until it is here.

        Raises:
            PeerLost: there is no connection to the peer, or it sends nothing any more.
            ProtocolError: it sent something else.
            StorageError: it does not offer it, or there is no room here.
        """

        def ask(sha256: str, offset_bytes: int, length_bytes: int, answer: Answer) -> None:
            def on_thread() -> None:
                session = self.session_of(peer.key)
                if session is None:
                    answer(PeerLost(f'peer "{peer.name}" was removed'))
                else:
                    session.contents.ask(sha256, offset_bytes, length_bytes, answer)

            self.post(on_thread)

        self._need_thread()
        Fetch(ask, tensor).run(on_received)

    def session_with(self, device: DeviceId) -> Session | None:
        """The session of the peer with that id; on the thread."""
        return next((one for one in self._sessions if one.peer.id == device), None)

    @property
    def has_begun(self) -> bool:
        """Whether there is a thread that could be asked."""
        return self._thread is not None

    def rotate(self, *, is_forced: bool) -> tuple[KeyPair, tuple[str, ...]]:
        """Give this device a new key, and tell its peers: the key, and the names of the peers that
        could not be told, which only happens with `is_forced`.

        Raises:
            Busy: it is being done already.
            PeerLost: some peer could not be told; nothing has changed.
            StorageError: the key cannot be kept; nothing has changed.
        """
        if not self._rotating.acquire(blocking=False):
            raise Busy("the key is being rotated already: see `edge-agent key show` in a moment")
        try:
            return self._rotate(is_forced=is_forced)
        finally:
            self._rotating.release()

    def _rotate(self, *, is_forced: bool) -> tuple[KeyPair, tuple[str, ...]]:
        made = make_keys()
        missed: tuple[PeerStatus, ...] = ()
        if len(self.book):
            missed = tell_key(made.public, self.call, lambda: tuple(self._sessions))
        if missed and not is_forced:
            told = ", ".join(f"{one.peer.name} ({one.why or one.condition})" for one in missed)
            raise PeerLost(
                f"not told of a new key: {told}. Wait until they are up, remove those that do not "
                "come back (`edge-agent peer remove`), or give --force and add the new key there "
                "by hand (`edge-agent peer add`)"
            )
        replace_keys(self._key_store, made)
        self.book.own(made.public)
        if self._thread is None:
            self._keys = made
        else:
            self.call(lambda: self._use(made))
        return made, tuple(one.peer.name for one in missed)

    def _use(self, keys: KeyPair) -> None:
        self._keys = keys
        self.invitations.clear()
        for session in self._sessions:
            session.reconnect(clock.monotonic_s())
        self.shut_door()

    def stop(self) -> None:
        """Say goodbye to all peers, and end the thread."""
        with self._starting:
            self._is_ended = True
            thread = self._thread
        if thread is not None:
            self.switchboard.wake()
            thread.join(END_S)

    # ---- on the thread

    def session_of(self, key: PublicKey) -> Session | None:
        """See `door.DoorHost`."""
        return next((one for one in self._sessions if key in one.peer.keys), None)

    def shut_door(self) -> None:
        """See `door.DoorHost`."""
        if self._door is not None:
            self._door.close()
            self._door = None
            self._no_door_since_s = clock.monotonic_s()

    def sync(self) -> None:
        """See `peer_host.Host`."""
        now_s = clock.monotonic_s()
        kept: list[Session] = []
        for session in self._sessions:
            known = [self.book.by_key(key) for key in session.peer.keys]
            peer = next((one for one in known if one is not None), None)
            if peer is None:
                session.end(is_removed=True)
                self.has_changed(session.peer, PeerCondition.GONE)
            else:
                session.peer = peer
                kept.append(session)
        have = {session.peer.key for session in kept}
        kept += [Session(p, self, now_s) for p in self.book.peers if p.key not in have]
        self._sessions = kept
        self.profiles.keep_only({session.peer.id for session in kept})

    def deploys(self, peer: Peer, message: Deploying) -> None:
        """See `peer_host.Host`."""
        if self._deploying is not None:
            self._deploying.deploys(peer, message)

    def has_changed(self, peer: Peer, condition: PeerCondition) -> None:
        """See `peer_host.Host`."""
        if self._deploying is not None:
            self._deploying.has_changed(peer, condition)

    def _judge(self, domain: bytes, key: PublicKey, address: str) -> bool:
        """Whom libzmq asks: see `gate.Judge`."""
        if domain == DOMAIN:
            return self._door is not None and self._door.is_admitted(key, address)
        session = next(
            (one for one in self._sessions if domain in (one.domain, one.contents.domain)), None
        )
        return session is not None and key in session.peer.keys

    def _loop(self) -> None:
        before_s = due_s = clock.monotonic_s()
        try:
            while not self._is_ended:
                wait_s = min(LONGEST_WAIT_S, max(0.0, due_s - clock.monotonic_s()))
                ready = self.switchboard.wait(wait_s)
                now_s = clock.monotonic_s()
                # Before it hears what came in the meantime.
                self._forgive(now_s - before_s - wait_s, now_s)
                before_s = now_s
                self._guarded(partial(self.switchboard.serve, ready))
                while self._calls:
                    self._guarded(self._calls.popleft())
                    due_s = now_s
                now_s = clock.monotonic_s()
                if now_s >= due_s:
                    due_s = self._tick(now_s)
        finally:
            self._end()

    def _tick(self, now_s: float) -> float:
        """Do what is due; when something will be next, if nothing comes before."""
        self._guarded(partial(self._reopen_door, now_s))
        for session in self._sessions:
            self._guarded(partial(session.tick, now_s))
        for joining in self._joinings:
            self._guarded(partial(joining.tick, now_s))
        self._look(now_s)
        self._joinings = [one for one in self._joinings if not one.done.done()]
        longest_s = SOON_S if self._joinings or self._no_door_since_s else LONGEST_WAIT_S
        return min([now_s + longest_s, *(session.due_s(now_s) for session in self._sessions)])

    def _look(self, now_s: float) -> None:
        """Find out how this device is, now and then, for whoever is there."""
        if now_s >= self._next_look_s and any(session.is_there for session in self._sessions):
            self._next_look_s = now_s + SAMPLE_S
            self.later(lambda: self.post(partial(self._looked, self.own.look())))

    def _looked(self, sample: Sample) -> None:
        self.statistics = self.own.statistics(sample, self._own_links())

    def _own_links(self) -> tuple[PeerLink, ...]:
        now_s = clock.monotonic_s()
        peers = (KnownPeer(status=one.status(now_s), profile=None) for one in self._sessions)
        return tuple(link for peer in peers if (link := peer.own_link) is not None)

    def _reopen_door(self, now_s: float) -> None:
        """Open it if it was shut. libzmq takes a moment to give its port back."""
        if self._no_door_since_s is None or self._door_at is None:
            return
        try:
            self._open_door(self._door_at)
        except UsageError as error:
            if now_s - self._no_door_since_s > REOPEN_S:
                log.error("peers cannot reach this device any more: %s", error)
                self._no_door_since_s = now_s
            return
        self._no_door_since_s = None

    def _forgive(self, slept_s: float, now_s: float) -> None:
        """This agent did not run for a while: it was stopped, or the device slept."""
        if slept_s > self.patience.silent_s / 2:
            for session in self._sessions:
                session.liveness.slept(slept_s, now_s)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            log.exception("the thread of the peers met an error of its own")
            self.counters["internal errors with peers"] += 1

    def _end(self) -> None:
        for joining in self._joinings:
            joining.stop()
        for session in self._sessions:
            session.end(is_removed=False)
        if self._door is not None:
            self._door.close()
        with self._posting:
            self._is_ended = True
        while self._calls:
            self._guarded(self._calls.popleft())
        self.switchboard.end()
