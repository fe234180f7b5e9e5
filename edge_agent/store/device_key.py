"""The long-term key of this device, in a file that nobody else can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from edge_agent.errors import StorageError
from edge_agent.peers import SecretKey, base32, from_base32
from edge_agent.store.folder import make_folder, storage_errors
from edge_agent.store.sealed import read_sealed, write_sealed

_ANEW = (
    "restore it from a copy, or move it away and make a new key with `edge-agent key rotate "
    "--force`, which every peer has to be told by hand"
)


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    secret: str
    """In base32."""


class DeviceKeyStore:
    """The secret key under `root`/key."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / "key"
        """Mode 0600."""

    def load(self) -> SecretKey | None:
        """The key; None: there is none yet.

        Raises:
            StorageError: it is damaged, or others can read or could have written it.
        """
        try:
            content = read_sealed(self.path)
        except StorageError as error:
            raise StorageError(f"{error}; {_ANEW}") from error
        if content is None:
            return None
        self._check_private()
        try:
            return SecretKey(from_base32(msgspec.json.decode(content, type=_Stored).secret))
        except (ValueError, msgspec.DecodeError) as error:
            raise StorageError(f"{self.path}: holds no key: {error}; {_ANEW}") from error

    def _check_private(self) -> None:
        with storage_errors(self.path, "examine"):
            found = self.path.stat(follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        what = ""
        if not stat.S_ISREG(found.st_mode):
            what = "is a link or no file"
        elif found.st_uid != os.getuid():
            what = f"belongs to user {found.st_uid}, want {os.getuid()}"
        elif mode & 0o077:
            what = f"got mode {mode:04o}, want 0600"
        if what:
            raise StorageError(
                f"{self.path}: {what}: others may know this device's secret key. Make it yours "
                "alone (`chmod 600`), and if anybody may have read it, `edge-agent key rotate`"
            )

    def save(self, secret: SecretKey) -> None:
        """Put a key in the place of the one before. Raises: StorageError."""
        make_folder(self._root)
        write_sealed(self.path, msgspec.json.encode(_Stored(base32(secret.raw))))
