"""The key pair of this device: made when it is first needed, and replaced when the user says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edge_agent.peers import KeyPair
from edge_agent.store.device_key import DeviceKeyStore
from edge_agent.store.folder import make_folder
from edge_agent.store.lock import exclusively
from edge_agent.transport.curve import keys_of, make_keys


def own_keys(store: DeviceKeyStore) -> KeyPair:
    """The key pair that is stored; a new one if there is none.

    Raises:
        StorageError: it is damaged, others can read it, or it cannot be kept.
        RuntimeUnavailable: libzmq has no CURVE.
    """
    # One that is there is read where nothing can be written, too.
    if (secret := store.load()) is not None:
        return keys_of(secret)
    with _alone(store):
        if (secret := store.load()) is not None:
            return keys_of(secret)
        made = make_keys()
        store.save(made.secret)
        return made


def replace_keys(store: DeviceKeyStore, keys: KeyPair) -> None:
    """Store another pair. Raises: StorageError."""
    with _alone(store):
        store.save(keys.secret)


@contextmanager
def _alone(store: DeviceKeyStore) -> Iterator[None]:
    # The key may be the first that this device keeps.
    make_folder(store.path.parent)
    with exclusively(store.path.with_suffix(".lock")):
        yield
