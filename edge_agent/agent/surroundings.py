"""Over which devices a loaded model may be planned, as they are at present."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from edge_agent.agent.loaded import Loaded
from edge_agent.devices import DeviceId
from edge_agent.hardware import DeviceProfile
from edge_agent.known_peers import KnownPeer, measured_links
from edge_agent.peers import PeerCondition
from edge_agent.problems import PlanningPeer, Surroundings


class Known(Protocol):
    """What is needed of `company.Company`."""

    def known(self) -> tuple[KnownPeer, ...]:
        """All peers with all that is known of them."""
        ...

    def own_profile(self) -> DeviceProfile | None:
        """What this device can do; None: it was not measured yet."""
        ...


def surroundings(
    company: Known,
    loaded: Loaded,
    device_keys: Mapping[DeviceId, str],
    held_bytes: Callable[[DeviceId], int],
    *,
    is_encrypted: bool,
) -> Surroundings:
    """The peers that are there, have told what they can do, and may be used for a model.

    `device_keys` is what times are valid for that peers measured; `held_bytes` is what the model
    has in the memory of a peer now.
    """
    over = loaded.record.over
    known = [k for k in company.known() if _is_usable(k) and _is_wanted(k, over)]
    allowed = None if loaded.dividing.wire_refused else loaded.record.wire
    return Surroundings(
        peers=tuple(
            PlanningPeer(
                device=peer.device,
                name=peer.status.peer.name,
                profile=peer.profile,
                device_key=device_keys.get(peer.device, ""),
                statistics=peer.statistics,
                held_bytes=held_bytes(peer.device),
            )
            for peer in known
        ),
        links=tuple(found.link for found in measured_links(known)),
        profile=company.own_profile(),
        wire=None if allowed is None else allowed.type,
        is_encrypted=is_encrypted,
        keeps_whole=True,
    )


def awaited(company: Known, loaded: Loaded, *, is_at_start: bool) -> tuple[DeviceId, ...]:
    """The peers that a model may be planned over as soon as more is known of them: those that are
    there, and, at the start of the agent, those that may come."""
    found = []
    for peer in company.known():
        is_known = _is_usable(peer) and bool(measured_links([peer]))
        may_be = _is_there(peer) or is_at_start
        if _is_wanted(peer, loaded.record.over) and not is_known and may_be:
            found.append(peer.device)
    return tuple(found)


def _is_wanted(peer: KnownPeer, over: tuple[str, ...] | None) -> bool:
    known = peer.status.peer
    return over is None or not {known.name, known.id, known.key}.isdisjoint(over)


def _is_usable(peer: KnownPeer) -> bool:
    return _is_there(peer) and peer.profile is not None


def _is_there(peer: KnownPeer) -> bool:
    return peer.status.condition in (PeerCondition.UP, PeerCondition.SLOW)
