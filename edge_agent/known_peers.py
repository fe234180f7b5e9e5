"""What this device knows of its peers, as planning over devices needs it: what they can do, how
they are, and the links between all of them.

Links are measured by those that receive, and told to those that send. Clocks of devices are never
compared: latency is half of a round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.hardware import DeviceProfile
from edge_agent.peers import Gauged, PeerLink, PeerStatus
from edge_agent.problems import DeviceStatistics, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPeer:
    """A peer with all that is known of it."""

    status: PeerStatus
    profile: DeviceProfile | None
    """None: it has not told yet. It is kept over restarts, also while the peer is away."""

    @property
    def device(self) -> DeviceId:
        """Its id in planning."""
        return self.status.peer.id

    @property
    def statistics(self) -> DeviceStatistics | None:
        """How it was when it told so last; None: it has told nothing since it came."""
        state = self.status.state
        if state is None:
            return None
        return DeviceStatistics(
            device=self.device,
            load_fraction=state.load_fraction,
            free_memory_bytes=state.free_memory_bytes,
            speed_fraction=state.speed_fraction,
            battery_fraction=state.battery_fraction,
        )

    @property
    def statistics_age_s(self) -> float | None:
        """How long ago it told so."""
        return None if self.status.state is None else self.status.state.age_s

    @property
    def links(self) -> tuple[PeerLink, ...]:
        """What it told last of its links to others than this device."""
        return self.status.links

    @property
    def own_link(self) -> PeerLink | None:
        """The link between this device and it, as this device sees it; None: it is not there, or no
        heartbeat came back yet."""
        status = self.status
        if status.round_trip_s is None:
            return None
        return PeerLink(
            device=self.device,
            round_trip_s=status.round_trip_s,
            receive=_gauged(status.receive_bytes_per_s, status.receive_age_s),
            send=_gauged(status.send_bytes_per_s, status.send_age_s),
        )


def _gauged(bytes_per_s: float | None, age_s: float | None) -> Gauged | None:
    return None if bytes_per_s is None else Gauged(bytes_per_s=bytes_per_s, age_s=age_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """A link in one direction, ready for planning."""

    link: Link
    age_s: float
    """How long ago its goodput was measured."""
    is_of_other_way: bool
    """Whether only that of the other direction is known, and stands for this one, too."""


def measured_links(peers: Iterable[KnownPeer]) -> tuple[MeasuredLink, ...]:
    """The links between this device, which is `devices.THIS_DEVICE`, and its peers, and between two
    of its peers, each in both directions; those of which nothing was measured are left out."""
    known = {peer.device: peer for peer in peers}
    told: dict[tuple[DeviceId, DeviceId], PeerLink] = {}
    for device, peer in known.items():
        if (own := peer.own_link) is not None:
            told[THIS_DEVICE, device] = own
            told |= {(device, link.device): link for link in peer.links if link.device in known}
    pairs = dict.fromkeys((min(ends), max(ends)) for ends in told)
    return tuple(link for one, two in pairs for link in _both_ways(one, two, told))


def _both_ways(
    one: DeviceId, two: DeviceId, told: Mapping[tuple[DeviceId, DeviceId], PeerLink]
) -> Iterable[MeasuredLink]:
    here, there = told.get((one, two)), told.get((two, one))
    trips_s = [link.round_trip_s for link in (here, there) if link is not None]
    onward = _newest([here.send if here else None, there.receive if there else None])
    back = _newest([here.receive if here else None, there.send if there else None])
    for source, target, own, other in ((one, two, onward, back), (two, one, back, onward)):
        found = own or other
        if found is not None:
            yield MeasuredLink(
                link=Link(
                    source=source,
                    target=target,
                    latency_s=min(trips_s) / 2,
                    goodput_bytes_per_s=found.bytes_per_s,
                ),
                age_s=found.age_s,
                is_of_other_way=own is None,
            )


def _newest(told: Iterable[Gauged | None]) -> Gauged | None:
    return min((one for one in told if one is not None), key=lambda one: one.age_s, default=None)
