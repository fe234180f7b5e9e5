"""The allow-list of this agent: who is on it, under which name, and that it is on disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from edge_agent.errors import Busy, UnknownPeer, UsageError
from edge_agent.literals import literal
from edge_agent.peers import MAX_PEERS, Origin, Peer, PublicKey, check_device_name
from edge_agent.store.peers import PeerStore

log = logging.getLogger(__name__)


class PeerBook:
    """Peers from the store and from the config file. Any thread may use it; what changes it waits
    for the disk."""

    def __init__(self, store: PeerStore, configured: tuple[Peer, ...]) -> None:
        """Raises: StorageError."""
        self._store = store
        self._own: PublicKey | None = None
        self._changing = threading.Lock()
        self._by_key: Mapping[PublicKey, Peer] = MappingProxyType({})
        self._peers: tuple[Peer, ...] = ()
        loaded = store.load()
        configured = tuple(_with_its_own_key(peer, loaded) for peer in configured)
        known = {key for peer in configured for key in peer.keys}
        names = {peer.name for peer in configured}
        stored = [
            # The config file was changed since: what it says is what the user wants.
            replace(peer, name=peer.id) if peer.name in names else peer
            for peer in loaded
            if peer.origin is not Origin.CONFIGURED and known.isdisjoint(peer.keys)
        ]
        self._take((*configured, *stored))

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """All of them, those of the config file first."""
        return self._peers

    def by_key(self, key: PublicKey) -> Peer | None:
        """The peer that has this key, or will have it."""
        return self._by_key.get(key)

    def find(self, name: str) -> Peer:
        """The peer of this name, id or key. Raises: UnknownPeer."""
        # A device may have been given a name that is the id of another one.
        by_key = (peer for peer in self._peers if name in (peer.id, *peer.keys))
        by_name = (peer for peer in self._peers if name == peer.name)
        for peer in chain(by_key, by_name):
            return peer
        names = ", ".join(peer.name for peer in self._peers) or "none"
        raise UnknownPeer(f"peer {literal(name)} is not known; known: {names}")

    def add(self, peer: Peer, *, is_told: bool = False) -> Peer:
        """Put a device on the list; what is on it is kept but for where it listens. With `is_told`,
        the other device reads what is wrong.

        Raises:
            UsageError: its name is taken, it is on the list under another one, or it is this
                device.
            Busy: the list is full.
            StorageError: it cannot be kept.
        """
        check_device_name("name", peer.name)
        if peer.key == self._own:
            raise UsageError(
                "that is the key of this device itself; if its state folder was copied to another "
                "device, `edge-agent key rotate` makes a new key there"
            )
        with self._changing:
            there = self.by_key(peer.key)
            if there is not None:
                merged = _merged(there, peer)
                self._replace(there, merged)
                return merged
            self._check_free(peer.name, is_told=is_told)
            if len(self._peers) >= MAX_PEERS:
                raise Busy(f"{MAX_PEERS} peers are known: remove one with `edge-agent peer remove`")
            self._keep((*self._peers, peer))
            return peer

    def check_free(self, name: str) -> None:
        """Raises: UsageError: a peer has this name."""
        self._check_free(name, is_told=False)

    def _check_free(self, name: str, *, is_told: bool) -> None:
        taken = next((p for p in self._peers if name in (p.name, p.id, *p.keys)), None)
        if taken is None:
            return
        if is_told:
            raise UsageError(
                f'the name "{name}" belongs to another device there ({taken.id}): choose another '
                "for this one with `edge-agent serve --name NAME`"
            )
        raise UsageError(
            f'name "{name}": belongs to the peer {taken.id}; choose another, or '
            f"`edge-agent peer rename {name} …` first"
        )

    def remove(self, peer: Peer) -> None:
        """Take a device from the list.

        Raises:
            UnknownPeer: it is not on it any more.
            UsageError: it stands in the config file.
            StorageError: that cannot be kept.
        """
        self._check_stored(peer, "remove")
        with self._changing:
            there = self._present(peer)
            self._keep(tuple(p for p in self._peers if p.key != there.key))

    def rename(self, peer: Peer, name: str) -> Peer:
        """Call a peer differently here.

        Raises:
            UnknownPeer: it is not on the list any more.
            UsageError: the name is taken or not allowed, or the peer stands in the config file.
            StorageError: that cannot be kept.
        """
        self._check_stored(peer, "rename")
        check_device_name("name", name)
        with self._changing:
            there = self._present(peer)
            if name != there.name:
                self._check_free(name, is_told=False)
            renamed = replace(there, name=name)
            self._replace(there, renamed)
            return renamed

    def change(self, peer: Peer, changed: Peer) -> None:
        """It said something new of itself. Raises: StorageError: that cannot be kept."""
        with self._changing:
            there = self.by_key(peer.key)
            if there is None:
                return
            # What the user changed meanwhile stays.
            changed = replace(changed, name=there.name, written=there.written)
            if there.origin is Origin.CONFIGURED and changed.key != there.key:
                changed = replace(changed, listed_key=there.listed_key or there.key)
                _tell_of_listed_key(changed)
            self._replace(there, changed)

    def own(self, key: PublicKey) -> None:
        """This device has this key from now on, and is no peer of itself.

        Raises: UsageError: the config file says that it is.
        """
        self._own = key
        there = self.by_key(key)
        if there is not None and there.origin is Origin.CONFIGURED:
            raise UsageError(
                f'peer "{there.name}" of the config file has the key of this device itself: write '
                "the key that `edge-agent key show` prints on the other device"
            )

    def _present(self, peer: Peer) -> Peer:
        """As it is on the list now: since it was looked up it may have said something new."""
        for key in peer.keys:
            if (there := self.by_key(key)) is not None:
                return there
        raise UnknownPeer(
            f'peer "{peer.name}" is not known any more, or has another key: try again'
        )

    def _check_stored(self, peer: Peer, action: str) -> None:
        if peer.origin is Origin.CONFIGURED:
            raise UsageError(
                f'peer "{peer.name}" stands in the config file: {action} it there, and start the '
                "agent again"
            )

    def _replace(self, there: Peer, changed: Peer) -> None:
        if changed != there:
            self._keep(tuple(changed if p.key == there.key else p for p in self._peers))

    def _keep(self, peers: tuple[Peer, ...]) -> None:
        stored = _stored(peers)
        if stored != _stored(self._peers):
            self._store.save(stored)
        self._take(peers)

    def _take(self, peers: tuple[Peer, ...]) -> None:
        self._peers = peers
        self._by_key = MappingProxyType({key: peer for peer in peers for key in peer.keys})


def _stored(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
    """Also those of the config file that told another key than it has."""
    return tuple(peer for peer in peers if peer.origin is not Origin.CONFIGURED or _has_told(peer))


def _has_told(peer: Peer) -> bool:
    return peer.next_key is not None or peer.listed_key is not None


def _with_its_own_key(listed: Peer, stored: tuple[Peer, ...]) -> Peer:
    """A peer of the config file, with the key that it told since that was written."""
    for peer in stored:
        if peer.origin is Origin.CONFIGURED and listed.key == (peer.listed_key or peer.key):
            found = replace(
                listed, key=peer.key, next_key=peer.next_key, listed_key=peer.listed_key
            )
            _tell_of_listed_key(found)
            return found
    return listed


def _tell_of_listed_key(peer: Peer) -> None:
    if peer.listed_key is not None:
        log.warning(
            'peer "%s" has another key than the config file says: write key = "%s" in [peers.%s] '
            "there (until then, this device remembers it)",
            peer.name,
            peer.key,
            peer.name,
        )


def _merged(there: Peer, peer: Peer) -> Peer:
    """A peer that is added again: by a user, or because one device joins the other again."""
    if peer.origin is not Origin.ADDED:
        return there.listens_at(peer.endpoints, peer.worked_at)
    if peer.name != there.name:
        raise UsageError(
            f'that is the key of the peer "{there.name}": `edge-agent peer rename {there.name} '
            f"{peer.name}` calls it differently"
        )
    if not peer.endpoints:
        return there
    return replace(there, written=peer.written, worked_at=None).listens_at(peer.endpoints, None)
