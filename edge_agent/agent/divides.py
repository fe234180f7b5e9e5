"""What the controller needs of whoever divides models over devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edge_agent.agent.loaded import Loaded
from edge_agent.devices import DeviceId
from edge_agent.errors import UnknownPeer


class DividesOver(Protocol):
    """Who divides models over devices: see `deploying.Deployer`."""

    def consider(self, loaded: Loaded, *, is_fresh: bool = False) -> None:
        """Divide a model, if that pays; `is_fresh`: measure the stages again."""
        ...

    def devices_of(self, names: Sequence[str]) -> tuple[DeviceId, ...]:
        """The ids of peers that are called so, each once.

        Raises: UnknownPeer: a device of that name is not trusted.
        """
        ...

    def expect(self, loaded: Loaded) -> None:
        """A model is about to be planned, and then to be divided."""
        ...

    def pause(self, loaded: Loaded) -> None:
        """End what is being done to divide a model; what serves goes on."""
        ...

    def stop(self, loaded: Loaded) -> None:
        """As `pause`, and end what a model has on other devices."""
        ...

    def has_left(self, loaded: Loaded) -> None:
        """The worker of a divided epoch is gone."""
        ...


class NoOthers:
    """Without other devices. Implements `DividesOver`."""

    def consider(self, loaded: Loaded, *, is_fresh: bool = False) -> None:
        """There is nothing to divide over."""

    def devices_of(self, names: Sequence[str]) -> tuple[DeviceId, ...]:
        """Raises: UnknownPeer: as soon as there is a name."""
        for name in names:
            raise UnknownPeer(f'no peer is called "{name}"')
        return ()

    def expect(self, loaded: Loaded) -> None:
        """It will not be."""

    def pause(self, loaded: Loaded) -> None:
        """Nothing is being done."""

    def stop(self, loaded: Loaded) -> None:
        """Nothing is being done."""

    def has_left(self, loaded: Loaded) -> None:
        """There is none."""
