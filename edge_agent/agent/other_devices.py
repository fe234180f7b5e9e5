"""What those who divide models over devices, and who host stages, need of other devices."""

from __future__ import annotations

from typing import Protocol

from edge_agent.agent.offers import Offers
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.wire.messages import Message


class OtherDevices(Protocol):
    """Any thread may use it."""

    @property
    def offers(self) -> Offers:
        """What each peer may have of the content of this device."""
        ...

    @property
    def listens_at(self) -> Endpoint | None:
        """Where this agent listens; None: nowhere."""
        ...

    def tell(self, device: DeviceId, message: Message) -> bool:
        """Send to a peer; whether it is there and takes it."""
        ...

    def offend(self, device: DeviceId, what: str) -> None:
        """A peer broke a rule."""
        ...

    def reached_at(self, device: DeviceId) -> tuple[Endpoint, ...]:
        """Where the agent of a peer is, what works now first; () if it does not listen."""
        ...
