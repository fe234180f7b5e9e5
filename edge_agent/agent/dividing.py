"""Passes on what other devices say of divided epochs."""

from __future__ import annotations

from edge_agent.agent.deploying import Deployer
from edge_agent.agent.hosting import Hosting
from edge_agent.peers import Peer, PeerCondition
from edge_agent.wire.deploying import (
    Deploying,
    DialTo,
    DropEpoch,
    ListenFor,
    OfferStages,
    OpenStages,
    PrepareStage,
)


class Dividing:
    """Implements `peering.DeploysTo`."""

    def __init__(self, hosting: Hosting, deployer: Deployer) -> None:
        self._hosting = hosting
        self._deployer = deployer

    def deploys(self, peer: Peer, message: Deploying) -> None:
        """See `peering.DeploysTo`."""
        match message:
            case (
                PrepareStage() | OfferStages() | OpenStages() | ListenFor() | DialTo() | DropEpoch()
            ):
                self._hosting.take(peer, message)
            case _:
                self._deployer.take(peer, message)

    def has_changed(self, peer: Peer, condition: PeerCondition) -> None:
        """See `peering.DeploysTo`."""
        self._hosting.has_changed(peer, condition)
        self._deployer.has_changed(peer, condition)
