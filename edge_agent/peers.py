"""Other devices that this one trusts: their public keys, ids and names, how they are, and what they
tell of themselves."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final, NewType

from edge_agent.devices import DeviceId, UnitId, UnitKind
from edge_agent.endpoints import Endpoint
from edge_agent.errors import UsageError
from edge_agent.literals import literal

PublicKey = NewType("PublicKey", str)
"""Of a device, as people copy it: 32 bytes in 52 characters of base32 (RFC 4648), lower case."""
KEY_BYTES: Final = 32
_KEY_CHARACTERS: Final = 52
_ID_CHARACTERS: Final = 20
"""100 bits: nobody makes a second key with the same id."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_PEERS: Final = 64
MAX_ENDPOINTS: Final = 16
"""Of one peer."""
MIN_BEAT_S: Final = 0.05
MAX_BEAT_S: Final = 10.0
"""Between two heartbeats."""


def base32(raw: bytes) -> str:
    """Bytes in lower-case base32 without padding: what a shell and a double click take whole."""
    return base64.b32encode(raw).decode().rstrip("=").lower()


def from_base32(text: str) -> bytes:
    """The bytes that `base32` wrote. Raises: ValueError."""
    padded = text.upper() + "=" * (-len(text) % 8)
    raw = base64.b32decode(padded)
    if base32(raw) != text.lower():
        raise binascii.Error("the last character has bits beyond the bytes")
    return raw


def public_key(raw: bytes) -> PublicKey:
    """The key of these 32 bytes."""
    assert len(raw) == KEY_BYTES
    return PublicKey(base32(raw))


def raw_key(key: PublicKey) -> bytes:
    """The 32 bytes of a key."""
    return from_base32(key)


def check_key(what: str, text: object) -> PublicKey:
    """`text`, if it is a public key; `what` is where it stands, for the error.

    Raises: UsageError.
    """
    if isinstance(text, str) and len(text) == _KEY_CHARACTERS:
        try:
            raw = from_base32(text)
        except ValueError:
            pass
        else:
            if any(raw):
                return PublicKey(base32(raw))
            raise UsageError(f"{what}: got zeros alone, which no device has for a key")
    raise UsageError(
        f"{what}: got {literal(text)}, want a public key of {_KEY_CHARACTERS} letters and digits, "
        "as `edge-agent key show` prints on the other device"
    )


@lru_cache(maxsize=4 * MAX_PEERS)
def device_id(key: PublicKey) -> DeviceId:
    """The id of the device that has this key: its fingerprint, the beginning of the SHA-256."""
    return DeviceId(base32(hashlib.sha256(raw_key(key)).digest())[:_ID_CHARACTERS])


def check_device_name(what: str, name: object) -> str:
    """`name`, if a device can be called so. Raises: UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{what}: got {literal(name)}, want 1 to 64 of A-Z a-z 0-9 . _ - beginning with a "
            "letter or digit"
        )
    return name


def name_from(hostname: str) -> str:
    """What a device calls itself if nobody named it."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", hostname).lstrip("._-")[:64]
    return name or "device"


class SecretKey:
    """The secret half of a key pair; what is printed or logged of it tells nothing."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise ValueError(f"got a key of {len(raw)} bytes, want {KEY_BYTES}")
        self.raw = raw
        """32 bytes."""

    def __repr__(self) -> str:
        return "SecretKey(…)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A public key and its secret half."""

    public: PublicKey
    secret: SecretKey

    @property
    def device(self) -> DeviceId:
        """The id of the device that has it."""
        return device_id(self.public)


class Origin(StrEnum):
    """How a peer came to be one."""

    INVITED = "invited"
    """It joined with a token of this device."""
    JOINED = "joined"
    """This device joined with a token of it."""
    ADDED = "added"
    """Somebody wrote its key."""
    CONFIGURED = "config file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A device on the allow-list."""

    key: PublicKey
    name: str
    """What it is called here; no other peer is."""
    endpoints: tuple[Endpoint, ...] = ()
    """Where its agent listens, as far as that is known; (): it connects to this one."""
    origin: Origin = Origin.ADDED
    added_at_s: float = 0.0
    """Wall time."""
    next_key: PublicKey | None = None
    """The key that it said it will use from now on; until it was seen to, both are its own."""
    listed_key: PublicKey | None = None
    """The key that the config file has for it, where it has told another one since."""
    written: tuple[Endpoint, ...] = ()
    """Those of the endpoints that a user wrote here: they stay, whatever it says itself."""
    worked_at: Endpoint | None = None
    """Where it was reached last: that stays, too."""

    def listens_at(self, told: Iterable[Endpoint], reached_at: Endpoint | None) -> Peer:
        """As it is once it says where it listens, which takes the place of what it said before,
        and was reached there, or connected to this device (None)."""
        worked_at = reached_at or self.worked_at
        worked = () if worked_at is None else (worked_at,)
        endpoints = dict.fromkeys((*worked, *self.written, *told))
        return replace(self, endpoints=tuple(endpoints)[:MAX_ENDPOINTS], worked_at=worked_at)

    @property
    def id(self) -> DeviceId:
        """The id of the device."""
        return device_id(self.key)

    @property
    def keys(self) -> tuple[PublicKey, ...]:
        """The keys that are its own, the one that it is more likely to use first."""
        return (self.key,) if self.next_key is None else (self.next_key, self.key)


class PeerCondition(StrEnum):
    """How a peer is."""

    UP = "up"
    """Its heartbeats come in time."""
    SLOW = "slow"
    """They come, but late."""
    SILENT = "silent"
    """They stay out: what runs there is run again elsewhere."""
    GONE = "gone"
    """It said that it leaves, or was silent for long, or was never there."""
    BARRED = "barred"
    """It broke the rules again and again: for a while nothing is taken from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauged:
    """The goodput of one direction of a link, as it was measured."""

    bytes_per_s: float
    age_s: float
    """How long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLink:
    """What a device knows of the link between itself and another one."""

    device: DeviceId
    """The other one."""
    round_trip_s: float
    receive: Gauged | None = None
    """From the other one."""
    send: Gauged | None = None
    """To the other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerState:
    """What a device was like when it told so last."""

    load_fraction: float
    """Share of the processor that others than edge-agent use, 0 to 1."""
    free_memory_bytes: int
    speed_fraction: float
    """Share of its full speed that temperature or power limits leave, above 0 to 1."""
    battery_fraction: float | None
    """Charge left, 0 to 1; None: it has no battery, or is charging."""
    age_s: float
    """How long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSummary:
    """What people want to know of a compute unit."""

    id: UnitId
    kind: UnitKind
    operations_per_s: tuple[tuple[str, float], ...]
    """Peak by arithmetic."""
    bandwidth_bytes_per_s: float
    memory_bytes: int | None
    """None: it uses the device's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """What people want to know of a device profile."""

    name: str
    cores: int
    memory_bytes: int
    units: tuple[UnitSummary, ...]
    source: str
    """Where its values are from."""
    date: str
    """When they were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A peer and how it is."""

    peer: Peer
    condition: PeerCondition
    for_s: float
    """How long it has been so."""
    why: str = ""
    round_trip_s: float | None = None
    """Of a heartbeat, the median of the last few; None: none is known."""
    receive_bytes_per_s: float | None = None
    """Goodput of the link from it to this device, measured here; None: it was not yet."""
    send_bytes_per_s: float | None = None
    """Of the link to it, as it told."""
    endpoint: Endpoint | None = None
    """Where this device is connected to it; None: it connected to this one, or is not there."""
    version: str = ""
    """Of its edge-agent, as far as it was heard."""
    offences: int = field(default=0)
    """How often it broke the rules since this agent started."""
    receive_age_s: float | None = None
    """How long ago `receive_bytes_per_s` was measured."""
    send_age_s: float | None = None
    """How long ago `send_bytes_per_s` was."""
    profile: ProfileSummary | None = None
    """What it can do; None: it has not told yet."""
    state: PeerState | None = None
    """What it told last of how it is; None: it has told nothing since it came."""
    links: tuple[PeerLink, ...] = ()
    """What it told last of its links to others than this device."""
