"""How the peers are told of a new key of this device, before it is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from edge_agent import clock
from edge_agent.agent.peer_sessions import Session
from edge_agent.peers import PeerStatus, PublicKey
from edge_agent.wire.peering import NewKey

T = TypeVar("T")

NOTED_S: Final = 3.0
"""How long peers may take to note it."""


class Call(Protocol):
    """Runs something on the thread of the peers."""

    def __call__(self, question: Callable[[], T]) -> T:
        """What it returned."""
        ...


def tell_key(
    key: PublicKey, call: Call, sessions: Callable[[], Sequence[Session]]
) -> tuple[PeerStatus, ...]:
    """Tell all peers; those that did not note it in time, by name. `sessions` is for the thread of
    the peers."""
    untold: list[Session] = []
    is_all = threading.Event()

    def noted(session: Session, their: PublicKey) -> None:
        if their == key and session in untold:
            untold.remove(session)
            if not untold:
                is_all.set()

    def tell() -> None:
        untold.extend(sessions())
        for session in sessions():
            session.on_noted = partial(noted, session)
            session.send(NewKey(key))

    def missed() -> list[PeerStatus]:
        return [session.status(clock.monotonic_s()) for session in untold]

    call(tell)
    is_all.wait(NOTED_S)
    return tuple(sorted(call(missed), key=lambda status: status.peer.name))
