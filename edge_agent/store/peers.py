"""The allow-list: which other devices this one trusts, kept over restarts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from edge_agent.errors import UsageError
from edge_agent.peers import Peer, check_device_name, check_key
from edge_agent.store.folder import make_folder, set_aside
from edge_agent.store.sealed import read_or_set_aside, write_sealed

_log = logging.getLogger(__name__)

_LOST = "no device of it is trusted any more: invite or add them again"


class PeerStore:
    """The peers in the file `root`/peers.json, but for those that stand in a config file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / "peers.json"

    def load(self) -> tuple[Peer, ...]:
        """The peers, in the order in which they were added. A damaged file is set aside, and
        nobody is trusted because of it.

        Raises: StorageError.
        """
        content = read_or_set_aside(self._path, _LOST)
        if content is None:
            return ()
        try:
            peers = msgspec.json.decode(content, type=tuple[Peer, ...])
            for peer in peers:
                for key in peer.keys:
                    check_key("key", key)
                check_device_name("name", peer.name)
        except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
            _log.warning("%s: %s; kept as %s", self._path, error, set_aside(self._path).name)
            _log.warning(_LOST)
            return ()
        return peers

    def save(self, peers: Iterable[Peer]) -> None:
        """Write the whole list in the place of the one before. Raises: StorageError."""
        make_folder(self._root)
        write_sealed(self._path, msgspec.json.encode(tuple(peers)))
