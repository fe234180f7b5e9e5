"""What a peer says of itself that this device keeps on disk: its keys, and where it listens. Only
the thread of `peering.Peering` uses it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from edge_agent.agent.offences import Pace
from edge_agent.agent.peer_host import Host, understood
from edge_agent.endpoints import Endpoint
from edge_agent.errors import StorageError, UsageError
from edge_agent.peers import Peer, PublicKey, check_key
from edge_agent.wire.messages import Message
from edge_agent.wire.peering import NotedKey

log = logging.getLogger(__name__)

CHANGES_PER_S: Final = 0.1
CHANGES_AT_ONCE: Final = 8.0
"""Each is written to disk."""


class Speaker(Protocol):
    """The peer that says it."""

    peer: Peer

    def send(self, message: Message) -> bool:
        """Answer it; False: that cannot be done now."""
        ...

    def offend(self, what: str, now_s: float) -> None:
        """It broke a rule."""
        ...


class KeptWords:
    """Of one peer."""

    def __init__(self, speaker: Speaker, host: Host) -> None:
        self._speaker = speaker
        self._host = host
        self._changes = Pace(CHANGES_PER_S, CHANGES_AT_ONCE)
        self._is_ended = False

    def end(self) -> None:
        """Nothing is answered any more."""
        self._is_ended = True

    def listens_at(
        self, key: PublicKey, told: Iterable[str], reached_at: Endpoint | None, now_s: float
    ) -> None:
        """It proved this key, and says where it listens."""
        peer = self._speaker.peer
        changed = peer.listens_at(understood(told), reached_at)
        if key == peer.next_key:
            log.info('peer "%s" has its new key %s', peer.name, key)
            changed = replace(changed, key=key, next_key=None)
        elif changed == peer or self._changes.take(now_s):
            return  # what it changes too often, it says again when it connects
        self._keep(changed, lambda: None)

    def will_have_key(self, text: str, now_s: float) -> None:
        """It says which key it will have; it hears when that is on disk."""
        speaker = self._speaker
        try:
            key = check_key("key", text)
        except UsageError as error:
            speaker.offend(str(error), now_s)
            return
        known = self._host.book.by_key(key)
        is_other = known is not None and known.key != speaker.peer.key
        if is_other or key == self._host.keys.public:
            speaker.offend("it says that it has the key of another device", now_s)
            return
        changed = replace(speaker.peer, next_key=None if key == speaker.peer.key else key)
        if changed == speaker.peer:
            speaker.send(NotedKey(key))
        elif self._changes.take(now_s):
            speaker.offend("it says a new key more often than it may", now_s)
        else:
            self._keep(changed, lambda: speaker.send(NotedKey(key)))

    def _keep(self, changed: Peer, then: Callable[[], object]) -> None:
        """Put it on disk, and then go on."""
        before = self._speaker.peer

        def write() -> None:
            try:
                self._host.book.change(before, changed)
            except StorageError as error:
                log.warning('peer "%s": %s', before.name, error)
                return
            self._host.post(kept)

        def kept() -> None:
            self._host.sync()
            if not self._is_ended:
                then()

        self._host.later(write)
