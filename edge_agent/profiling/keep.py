"""How what was measured is written down: strict JSON with a version."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from edge_agent.errors import StorageError
from edge_agent.profiles import LatencyProfile
from edge_agent.profiling.verify import Verification

_VERSION = 1

T = TypeVar("T")


class _Kept(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True):
    v: int
    value: T


def encode_profile(profile: LatencyProfile) -> bytes:
    """`profile` as JSON; equal profiles give equal bytes."""
    return _encode(profile)


def decode_profile(content: bytes) -> LatencyProfile:
    """The profile that `encode_profile` wrote.

    Raises:
        StorageError: `content` is damaged, or was written by another version; profile again.
    """
    return _decode(content, _Kept[LatencyProfile], "latency profile")


def encode_verification(verification: Verification) -> bytes:
    """`verification` as JSON."""
    return _encode(verification)


def decode_verification(content: bytes) -> Verification:
    """The verification that `encode_verification` wrote.

    Raises:
        StorageError: `content` is damaged, or was written by another version; verify again.
    """
    return _decode(content, _Kept[Verification], "verification")


def _encode(value: object) -> bytes:
    return msgspec.json.encode(_Kept(v=_VERSION, value=value))


def _decode(content: bytes, kind: type[_Kept[T]], what: str) -> T:
    try:
        kept = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(f"{what} is damaged: {error}; measure the model again") from error
    if kept.v != _VERSION:
        raise StorageError(
            f"{what}: got version {kept.v}, want {_VERSION}; measure the model again"
        )
    return kept.value
