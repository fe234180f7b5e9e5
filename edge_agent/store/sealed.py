"""The form of every small stored file: a line with size and checksum, then the content.

A file cut short, overwritten or with a flipped bit is noticed, whatever its content is; a tool
that reads JSON (`jq`) reads it as two values.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from edge_agent.errors import StorageError
from edge_agent.store.folder import set_aside, storage_errors, write_file

_log = logging.getLogger(__name__)


class _Seal(msgspec.Struct, forbid_unknown_fields=True):
    sealed: int
    """Version of this form."""
    bytes: int
    sha256: str


_VERSION = 1


def write_sealed(path: Path, content: bytes) -> None:
    """Replace `path` by `content` with its seal, atomically. Raises: StorageError."""
    seal = _Seal(sealed=_VERSION, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    write_file(path, msgspec.json.encode(seal) + b"\n" + content)


def read_sealed(path: Path) -> bytes | None:
    """The content of `path`; None if there is no such file.

    Raises: StorageError if it is damaged or cannot be read.
    """
    with storage_errors(path, "read"):
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            return None
    line, _, content = stored.partition(b"\n")
    try:
        seal = msgspec.json.decode(line, type=_Seal)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: is damaged: the first line is no seal ({error})") from error
    if seal.sealed != _VERSION:
        raise StorageError(
            f"{path}: got form {seal.sealed}, want {_VERSION}: written by another "
            "version of edge-agent"
        )
    if len(content) != seal.bytes:
        raise StorageError(f"{path}: is damaged: got {len(content)} bytes, want {seal.bytes}")
    if (got := hashlib.sha256(content).hexdigest()) != seal.sha256:
        raise StorageError(f"{path}: is damaged: got SHA-256 {got[:12]}…, want {seal.sha256[:12]}…")
    return content


def read_or_set_aside(path: Path, consequence: str) -> bytes | None:
    """The content of `path`; None if there is none, or if it was damaged and is now set aside.

    `consequence` completes the warning in the log: what the loss of the file means.
    Raises: StorageError if the damaged file cannot be moved.
    """
    try:
        return read_sealed(path)
    except StorageError as damage:
        _log.warning("%s; kept as %s; %s", damage, set_aside(path).name, consequence)
        return None
