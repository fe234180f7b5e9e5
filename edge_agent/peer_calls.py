"""What the Client asks about other devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from edge_agent.peers import Peer
from edge_agent.plan_calls import unheard
from edge_agent.wire.about_peers import (
    AddPeer,
    AskPeers,
    Invite,
    Invited,
    JoinDevice,
    KeyRotated,
    PeerChanged,
    Peers,
    RemovePeer,
    RenamePeer,
    RotateKey,
)
from edge_agent.wire.arguments import flag_of, seconds_of, text_of, texts_of
from edge_agent.wire.messages import ClientMessage
from edge_agent.wire.tokens import read_token

M = TypeVar("M")

INVITATION_S = 600.0
"""How long a token is good if nothing else is said."""
_PEER = "the name, id or key of a peer"


class PeerCalls(ABC):
    """A part of the Client."""

    @abstractmethod
    def _ask(
        self,
        message: ClientMessage,
        want: type[M],
        on_progress: Callable[[float, str], None] = unheard,
    ) -> M:
        """Ask the agent for an answer of that kind."""

    def invite(self, ttl_s: float = INVITATION_S) -> str:
        """A token with which one other device may join this one within so many seconds.

        Raises:
            UsageError: the agent does not listen for other devices, or `ttl_s` is above 7 days.
            Busy: 16 tokens are open.
        """
        return self._ask(Invite(ttl_s=seconds_of("ttl_s", ttl_s)), Invited).token

    def join(self, token: str) -> Peer:
        """Join the device that gave out this token; it is a peer of this one from now on.

        Raises:
            UsageError: it is no token, or a name stands in the way, here or there.
            PeerRefused: the other device does not take it.
            PeerLost: the other device does not answer.
        """
        message = JoinDevice(text_of("token", token, "what `edge-agent invite` printed"))
        # Whatever is given, the message has room for it.
        read_token(message.token)
        return self._ask(message, PeerChanged).peer

    def peers(self) -> Peers:
        """This device, those that it trusts, and how they are."""
        return self._ask(AskPeers(), Peers)

    def add_peer(self, name: str, key: str, endpoints: Sequence[str] = ()) -> Peer:
        """Trust the device that has this public key; it has to trust this one, too.

        Args:
            name: what it is called here.
            key: as `edge-agent key show` prints there.
            endpoints: where its agent listens, as `tcp://ADDRESS:PORT`; (): it will connect.

        Raises:
            UsageError: name, key or an endpoint is wrong, or the name is taken.
            Busy: 64 peers are known.
        """
        message = AddPeer(
            key=text_of("key", key, "a public key"),
            name=text_of("name", name, "a name for the peer"),
            endpoints=texts_of("endpoints", endpoints, "where its agent listens"),
        )
        return self._ask(message, PeerChanged).peer

    def remove_peer(self, name: str) -> Peer:
        """Trust a peer no more, and end its connections.

        Raises:
            UnknownPeer: none has this name, id or key.
            UsageError: it stands in the config file.
        """
        return self._ask(RemovePeer(text_of("name", name, _PEER)), PeerChanged).peer

    def rename_peer(self, name: str, to: str) -> Peer:
        """Call a peer differently here.

        Raises:
            UnknownPeer: none has this name, id or key.
            UsageError: the new name is taken or not allowed, or the peer stands in the config file.
        """
        message = RenamePeer(text_of("name", name, _PEER), text_of("to", to, "its new name"))
        return self._ask(message, PeerChanged).peer

    def rotate_key(self, *, force: bool = False) -> KeyRotated:
        """Give this device a new key, and tell its peers.

        Raises:
            PeerLost: some cannot be told; nothing has changed. With `force` it has, and the answer
                names them.
        """
        return self._ask(RotateKey(flag_of("force", force)), KeyRotated)
