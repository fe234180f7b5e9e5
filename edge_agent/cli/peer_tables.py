"""How `edge-agent peers` shows the devices that this one trusts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edge_agent.cli.output import print_table, size_text
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.peers import (
    Gauged,
    Peer,
    PeerStatus,
    ProfileSummary,
    UnitSummary,
    device_id,
)
from edge_agent.wire.about_peers import Peers

_FLOAT32 = "float32"
_TITLES = ("PEER", "DEVICE", "STATE", "FOR", "ROUND TRIP", "IN", "OUT", "VERSION", "AT", "")
_TOLD_TITLES = ("PEER", "UNITS", "CORES", "MEMORY", "FREE", "LOAD", "SPEED", "BATTERY", "TOLD")


def print_peers(found: Peers) -> None:
    """For people: how they are, what they can do, and the links between them."""
    at = "does not listen" if found.listens_at is None else f"listens at {found.listens_at}"
    print(f"this device: {found.name} ({device_id(found.key)}), {at}")
    if not found.peers:
        print("no peers: `edge-agent invite` prints a token for another device")
        return
    print_table(_TITLES, [_row(status) for status in found.peers])
    told = [status for status in found.peers if status.profile or status.state]
    if told:
        print()
        print_table(_TOLD_TITLES, [_told_row(status) for status in told])
    if links := list(_link_rows(found)):
        print()
        print_table(("FROM", "TO", "GOODPUT", "ROUND TRIP"), links)


def _row(status: PeerStatus) -> Sequence[str]:
    at = status.endpoint or next(iter(status.peer.endpoints), None)
    return (
        status.peer.name,
        status.peer.id,
        status.condition,
        age_text(status.for_s),
        _trip_text(status.round_trip_s),
        _gauged_text(status.receive_bytes_per_s, status.receive_age_s),
        _gauged_text(status.send_bytes_per_s, status.send_age_s),
        status.version or "-",
        "-" if at is None else str(at),
        status.why,
    )


def _told_row(status: PeerStatus) -> Sequence[str]:
    profile, state = status.profile, status.state
    battery = None if state is None else state.battery_fraction
    return (
        status.peer.name,
        "-" if profile is None else ", ".join(map(unit_text, profile.units)),
        "-" if profile is None else str(profile.cores),
        size_text(None if profile is None else profile.memory_bytes),
        size_text(None if state is None else state.free_memory_bytes),
        "-" if state is None else f"{state.load_fraction:.0%}",
        "-" if state is None else f"{state.speed_fraction:.0%}",
        "-" if battery is None else f"{battery:.0%}",
        "-" if state is None else f"{age_text(state.age_s)} ago",
    )


def _link_rows(found: Peers) -> Iterator[Sequence[str]]:
    """Links between two others, as told by either end."""
    names = {status.peer.id: status.peer.name for status in found.peers}
    for status in found.peers:
        for link in status.links:
            other = _name_of(link.device, names)
            trip = _trip_text(link.round_trip_s)
            for source, target, gauged in (
                (status.peer.name, other, link.send),
                (other, status.peer.name, link.receive),
            ):
                if gauged is not None:
                    text = _gauged_text(gauged.bytes_per_s, gauged.age_s)
                    yield source, target, f"{text}, says {status.peer.name}", trip


def _name_of(device: DeviceId, names: Mapping[DeviceId, str]) -> str:
    return names.get(device, device)


def _trip_text(trip_s: float | None) -> str:
    return "-" if trip_s is None else f"{trip_s * 1e3:.1f} ms"


def _gauged_text(bytes_per_s: float | None, age_s: float | None) -> str:
    told = goodput_text(bytes_per_s)
    return told if age_s is None else f"{told} ({age_text(age_s)} ago)"


def unit_text(unit: UnitSummary) -> str:
    """A compute unit with its peak, in float32 if it computes in that."""
    peaks = dict(unit.operations_per_s)
    arithmetic = _FLOAT32 if _FLOAT32 in peaks else next(iter(peaks))
    peak = peaks[arithmetic]
    shown = f"{peak / 1e12:.3g} TOP/s" if peak >= 1e12 else f"{peak / 1e9:.3g} GOP/s"
    text = f"{unit.id} {shown}"
    return text if arithmetic == _FLOAT32 else f"{text} ({arithmetic})"


def age_text(age_s: float) -> str:
    """How long something has been so, in the unit that a person would use."""
    for unit, unit_s in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if age_s >= 2 * unit_s:
            return f"{age_s / unit_s:.0f}{unit}"
    return f"{age_s:.0f}s"


def goodput_text(bytes_per_s: float | None) -> str:
    """Goodput in the unit in which links are sold."""
    if bytes_per_s is None:
        return "-"
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bytes_per_s * 8 >= factor:
            return f"{bytes_per_s * 8 / factor:.3g} {unit}"
    return f"{bytes_per_s * 8 / 1e3:.3g} kbit/s"


def peers_json(found: Peers) -> dict[str, object]:
    """For programs: all that is known."""
    return {
        "name": found.name,
        "device": device_id(found.key),
        "key": found.key,
        "listen": _text(found.listens_at),
        "endpoints": [str(one) for one in found.endpoints],
        "profile": _profile_json(found.profile),
        "peers": [_status_json(status) for status in found.peers],
    }


def _status_json(status: PeerStatus) -> dict[str, object]:
    return peer_json(status.peer) | {
        "state": status.condition,
        "for_s": status.for_s,
        "why": status.why,
        "round_trip_s": status.round_trip_s,
        "receive_bytes_per_s": status.receive_bytes_per_s,
        "receive_age_s": status.receive_age_s,
        "send_bytes_per_s": status.send_bytes_per_s,
        "send_age_s": status.send_age_s,
        "connected_at": _text(status.endpoint),
        "version": status.version,
        "offences": status.offences,
        "profile": _profile_json(status.profile),
        "statistics": status.state,
        "links": [
            {
                "device": link.device,
                "round_trip_s": link.round_trip_s,
                **_gauged_json("receive", link.receive),
                **_gauged_json("send", link.send),
            }
            for link in status.links
        ],
    }


def _gauged_json(way: str, gauged: Gauged | None) -> dict[str, float | None]:
    return {
        f"{way}_bytes_per_s": None if gauged is None else gauged.bytes_per_s,
        f"{way}_age_s": None if gauged is None else gauged.age_s,
    }


def _profile_json(profile: ProfileSummary | None) -> dict[str, object] | None:
    if profile is None:
        return None
    return {
        "name": profile.name,
        "cores": profile.cores,
        "memory_bytes": profile.memory_bytes,
        "source": profile.source,
        "date": profile.date,
        "units": [
            {
                "id": unit.id,
                "kind": unit.kind,
                "operations_per_s": dict(unit.operations_per_s),
                "bandwidth_bytes_per_s": unit.bandwidth_bytes_per_s,
                "memory_bytes": unit.memory_bytes,
            }
            for unit in profile.units
        ],
    }


def _text(endpoint: Endpoint | None) -> str | None:
    return None if endpoint is None else str(endpoint)


def peer_json(peer: Peer) -> dict[str, object]:
    """A device on the list."""
    return {
        "name": peer.name,
        "device": peer.id,
        "key": peer.key,
        "endpoints": [str(one) for one in peer.endpoints],
        "origin": peer.origin,
    }
