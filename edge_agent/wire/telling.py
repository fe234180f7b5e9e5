"""What agents tell each other of themselves: how they are, what they can do, and how their links
are."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edge_agent.peers import MAX_PEERS
from edge_agent.wire.device_profiles import MAX_PROFILE_BYTES
from edge_agent.wire.parts import Message, Size

MAX_BYTES_PER_S: Final = 1e15
LEAST_SPEED: Final = 1e-6
"""Of its full speed; one that is slower is as good as gone."""

BytesPerS = Annotated[float, Meta(gt=0, le=MAX_BYTES_PER_S)]
Share = Annotated[float, Meta(ge=0, le=1)]
Age = Annotated[float, Meta(ge=0, le=1e9)]
"""Seconds, on the clock of the sender."""
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
DeviceText = Annotated[str, Meta(pattern=r"^[a-z2-7]{20}\Z")]
"""The id of a device."""


class ToldGoodput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Of one direction of a link, and how long ago it was measured."""

    bytes_per_s: BytesPerS
    age_s: Age


class ToldLink(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """Between the device that tells and another one."""

    device: DeviceText
    round_trip_s: Annotated[float, Meta(ge=0, le=3600)]
    receive: ToldGoodput | None = None
    """From the other one."""
    send: ToldGoodput | None = None
    """To the other one."""


class Statistics(Message, frozen=True, tag="statistics", kw_only=True):
    """So I am at present."""

    load_fraction: Share
    """Share of the processor that others than edge-agent use."""
    free_memory_bytes: Size
    speed_fraction: Annotated[float, Meta(ge=LEAST_SPEED, le=1)]
    """Share of the full speed that temperature or power limits leave."""
    battery_fraction: Share | None
    """Charge left; None: there is no battery, or it is charging."""
    profile: Digest | None
    """The SHA-256 of my device profile, for whom does not have it; None: it is not known yet."""
    links: Annotated[tuple[ToldLink, ...], Meta(max_length=MAX_PEERS)]

    def __post_init__(self) -> None:
        if len({link.device for link in self.links}) < len(self.links):
            raise ValueError("got two links to one device")


class AskProfile(Message, frozen=True, tag="ask-profile"):
    """What is your device profile?"""


class Profile(Message, frozen=True, tag="profile"):
    """This one, as `device_profiles` packs it."""

    packed: Annotated[bytes, Meta(max_length=MAX_PROFILE_BYTES)]
