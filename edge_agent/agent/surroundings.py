"""Over which devices a loaded model may be planned, as they are at present."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge_agent.agent.company import Company
from edge_agent.agent.loaded import Loaded
from edge_agent.devices import DeviceId
from edge_agent.known_peers import KnownPeer, measured_links
from edge_agent.peers import PeerCondition
from edge_agent.problems import PlanningPeer, Surroundings


class AroundModels:
    """See `of`. Any thread may use it."""

    def __init__(
        self,
        company: Company,
        device_keys: Callable[[], Mapping[DeviceId, str]],
        held_bytes: Callable[[Loaded, DeviceId], int],
    ) -> None:
        """`device_keys` is what times are valid for that peers measured; `held_bytes` is what a
        model has in the memory of a peer now."""
        self._company = company
        self._device_keys = device_keys
        self._held_bytes = held_bytes

    def of(self, loaded: Loaded) -> Surroundings:
        """The peers that are there and have told what they can do."""
        over = loaded.record.over
        known = [k for k in self._company.known() if _is_usable(k) and _is_wanted(k, over)]
        keys = self._device_keys()
        allowed = None if loaded.dividing.wire_refused else loaded.record.wire
        return Surroundings(
            peers=tuple(
                PlanningPeer(
                    device=peer.device,
                    name=peer.status.peer.name,
                    profile=peer.profile,
                    device_key=keys.get(peer.device, ""),
                    statistics=peer.statistics,
                    held_bytes=self._held_bytes(loaded, peer.device),
                )
                for peer in known
            ),
            links=tuple(found.link for found in measured_links(known)),
            profile=self._company.own_profile(),
            wire=None if allowed is None else allowed.type,
            keeps_whole=True,
        )


def _is_wanted(peer: KnownPeer, over: tuple[str, ...] | None) -> bool:
    known = peer.status.peer
    return over is None or not {known.name, known.id, known.key}.isdisjoint(over)


def _is_usable(peer: KnownPeer) -> bool:
    is_there = peer.status.condition in (PeerCondition.UP, PeerCondition.SLOW)
    return is_there and peer.profile is not None
