"""How a latency profile is written down: strict JSON with a version."""

from __future__ import annotations

import msgspec

from edge_agent.errors import StorageError
from edge_agent.profiles import LatencyProfile

_VERSION = 1


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    profile: LatencyProfile


def encode_profile(profile: LatencyProfile) -> bytes:
    """`profile` as JSON; equal profiles give equal bytes."""
    return msgspec.json.encode(_Kept(v=_VERSION, profile=profile))


def decode_profile(content: bytes) -> LatencyProfile:
    """The profile that `encode_profile` wrote.

    Raises:
        StorageError: `content` is damaged, or was written by another version; profile again.
    """
    try:
        kept = msgspec.json.decode(content, type=_Kept)
    # msgspec lets UnicodeDecodeError through for a field name that is not UTF-8.
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(
            f"latency profile is damaged: {error}; profile the model again"
        ) from error
    if kept.v != _VERSION:
        raise StorageError(
            f"latency profile: got version {kept.v}, want {_VERSION}; profile the model again"
        )
    return kept.profile
