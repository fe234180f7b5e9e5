"""A device profile as its device tells it to others: MessagePack, without the latency tables, every
number within the bounds that a file of a profile has, too.

What is kept of a profile on disk is what came, and is decoded as strictly again.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edge_agent.devices import Layout, UnitId, UnitKind
from edge_agent.errors import ProtocolError
from edge_agent.hardware import (
    DeviceProfile,
    NetworkProfile,
    Source,
    Sourced,
    SourceKind,
    UnitProfile,
)
from edge_agent.literals import plain_text
from edge_agent.profiles import HOST, HOST_UNIT
from edge_agent.quantities import BANDWIDTH, DURATION, PACE, POWER, RATE, SIZE
from edge_agent.summaries import Arithmetic, OperatorClass

MAX_PROFILE_BYTES: Final = 64 * 1024
"""Of what is told; a profile with a unit takes about 1 KiB, each further one half of that."""
_MAX_TEXT: Final = 128
_MAX_CORES: Final = 65_536
_LEAST_SHARE: Final = 1e-6

_At = Annotated[int, Meta(ge=0, lt=16)]
"""Which of the profile's sources."""
_Size = tuple[Annotated[float, Meta(ge=0, le=SIZE.most)], _At]
_Rate = tuple[Annotated[float, Meta(ge=RATE.least, le=RATE.most)], _At]
_Bandwidth = tuple[Annotated[float, Meta(ge=BANDWIDTH.least, le=BANDWIDTH.most)], _At]
_Duration = tuple[Annotated[float, Meta(ge=0, le=DURATION.most)], _At]
_Pace = tuple[Annotated[float, Meta(ge=0, le=PACE.most)], _At]
_Power = tuple[Annotated[float, Meta(ge=0, le=POWER.most)], _At]
_Count = tuple[Annotated[int, Meta(ge=1, le=_MAX_CORES)], _At]
_Share = tuple[Annotated[float, Meta(ge=_LEAST_SHARE, le=1)], _At]
_Text = Annotated[str, Meta(max_length=_MAX_TEXT)]
_Key = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\Z")]
_Peaks = Annotated[tuple[tuple[Arithmetic, _Rate], ...], Meta(max_length=len(Arithmetic))]


class _Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: _Key
    text: _Text
    kind: SourceKind
    date: datetime.date


class _Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    send: _Pace | None = None
    receive: _Pace | None = None
    encrypted_send: _Pace | None = None
    encrypted_receive: _Pace | None = None


class _Unit(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    id: _Key
    kind: UnitKind
    peaks: Annotated[_Peaks, Meta(min_length=1)]
    bandwidth: _Bandwidth
    launch: _Duration
    operator: _Duration
    cores: _Count | None = None
    core_peaks: _Peaks = ()
    core_bandwidth: _Bandwidth | None = None
    memory: _Size | None = None
    idle: _Power | None = None
    busy: _Power | None = None
    border: _Pace | None = None
    layouts: Annotated[tuple[Layout, ...], Meta(min_length=1, max_length=len(Layout))]
    threads: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=256)] = ()
    takes: Annotated[tuple[Arithmetic, ...], Meta(max_length=len(Arithmetic))] = ()
    refuses: Annotated[tuple[_Text, ...], Meta(max_length=512)] = ()
    efficiencies: Annotated[
        tuple[tuple[OperatorClass, _Share], ...], Meta(max_length=len(OperatorClass))
    ] = ()


class _Profile(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}\Z")]
    name: _Text
    sources: Annotated[tuple[_Source, ...], Meta(min_length=1, max_length=16)]
    memory: _Size
    available: _Size | None = None
    network: _Network = _Network()
    idle: _Power | None = None
    units: Annotated[tuple[_Unit, ...], Meta(min_length=1, max_length=32)]


# ---- to bytes


def pack_profile(profile: DeviceProfile) -> bytes:
    """What is told of a profile.

    Raises: ValueError: that would be too much.
    """
    sources = profile.sources

    def told(value: Sourced) -> tuple[float, int]:
        return value.value, sources.index(value.source)

    def maybe(value: Sourced | None) -> tuple[float, int] | None:
        return None if value is None else told(value)

    network = profile.network
    packed = msgspec.msgpack.encode(
        _Profile(
            id=profile.id,
            name=plain_text(profile.name, _MAX_TEXT - 1),
            sources=tuple(
                _Source(key=s.key, text=plain_text(s.text, _MAX_TEXT - 1), kind=s.kind, date=s.date)
                for s in sources
            ),
            memory=told(profile.memory_bytes),
            available=maybe(profile.available_bytes),
            network=_Network(
                send=maybe(network.send_s_per_byte),
                receive=maybe(network.receive_s_per_byte),
                encrypted_send=maybe(network.encrypted_send_s_per_byte),
                encrypted_receive=maybe(network.encrypted_receive_s_per_byte),
            ),
            idle=maybe(profile.idle_w),
            units=tuple(
                _Unit(
                    id=unit.id,
                    kind=unit.kind,
                    peaks=tuple((a, told(rate)) for a, rate in unit.operations_per_s),
                    bandwidth=told(unit.bandwidth_bytes_per_s),
                    launch=told(unit.launch_s),
                    operator=told(unit.operator_s),
                    cores=None
                    if unit.cores is None
                    else (int(unit.cores.value), sources.index(unit.cores.source)),
                    core_peaks=tuple((a, told(rate)) for a, rate in unit.core_operations_per_s),
                    core_bandwidth=maybe(unit.core_bandwidth_bytes_per_s),
                    memory=maybe(unit.memory_bytes),
                    idle=maybe(unit.idle_w),
                    busy=maybe(unit.busy_w),
                    border=maybe(unit.border_s_per_byte),
                    layouts=unit.layouts,
                    threads=unit.threads,
                    takes=unit.takes,
                    refuses=unit.refuses,
                    efficiencies=tuple((kind, told(share)) for kind, share in unit.efficiencies),
                )
                for unit in profile.units
            ),
        )
    )
    if len(packed) > MAX_PROFILE_BYTES:
        raise ValueError(f"got {len(packed)} bytes, want at most {MAX_PROFILE_BYTES}")
    return packed


# ---- from bytes


_DECODER: Final = msgspec.msgpack.Decoder(_Profile)


def unpack_profile(packed: bytes) -> DeviceProfile:
    """The profile that another device told.

    Raises:
        ProtocolError: it is none, or a number of it makes no sense.
    """
    try:
        told = _DECODER.decode(packed)
        return _profile(told)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"device profile not understood: {error}") from error


class _Sources:
    """Gives values their sources. All raise ValueError."""

    def __init__(self, told: tuple[_Source, ...]) -> None:
        self.all = tuple(
            Source(key=s.key, text=plain_text(s.text, _MAX_TEXT), kind=s.kind, date=s.date)
            for s in told
        )
        _check_once("source", [source.key for source in self.all])

    def of(self, told: tuple[float, int]) -> Sourced:
        value, at = told
        if at >= len(self.all):
            raise ValueError(f"got source {at}, want one of {len(self.all)}")
        return Sourced(value=value, source=self.all[at])

    def maybe(self, told: tuple[float, int] | None) -> Sourced | None:
        return None if told is None else self.of(told)


def _profile(told: _Profile) -> DeviceProfile:
    sources = _Sources(told.sources)
    network = told.network
    found = DeviceProfile(
        id=told.id,
        name=plain_text(told.name, _MAX_TEXT),
        sources=sources.all,
        memory_bytes=sources.of(told.memory),
        available_bytes=sources.maybe(told.available),
        network=NetworkProfile(
            send_s_per_byte=sources.maybe(network.send),
            receive_s_per_byte=sources.maybe(network.receive),
            encrypted_send_s_per_byte=sources.maybe(network.encrypted_send),
            encrypted_receive_s_per_byte=sources.maybe(network.encrypted_receive),
        ),
        idle_w=sources.maybe(told.idle),
        units=tuple(_unit(unit, sources) for unit in told.units),
    )
    _check_once("unit", [unit.id for unit in found.units])
    if told.available is not None and told.available[0] > told.memory[0]:
        raise ValueError("got more memory available than there is")
    for unit in found.units:
        _check_power(unit, unit.idle_w or found.idle_w)
    return found


def _unit(told: _Unit, sources: _Sources) -> UnitProfile:
    peaks, core_peaks = dict(told.peaks), dict(told.core_peaks)
    where = f"unit {told.id}: got"
    if (told.kind is UnitKind.CPU) is not (told.id == HOST_UNIT) or told.id == HOST:
        raise ValueError(f"{where} kind {told.kind}, want {HOST_UNIT} of kind CPU and no other")
    _check_cores(told, where)
    _check_once(f"{where} peak", [a for a, _ in told.peaks])
    _check_once(f"{where} core peak", [a for a, _ in told.core_peaks])
    _check_once(f"{where} layout", told.layouts)
    _check_once(f"{where} takes", told.takes)
    _check_once(f"{where} efficiency", [kind for kind, _ in told.efficiencies])
    if told.takes and not any(arithmetic in peaks for arithmetic in told.takes):
        raise ValueError(f"{where} no peak for what it takes")
    if any(a not in peaks or rate[0] > peaks[a][0] for a, rate in core_peaks.items()):
        raise ValueError(f"{where} a peak of one core above that of all")
    if told.core_bandwidth is not None and told.core_bandwidth[0] > told.bandwidth[0]:
        raise ValueError(f"{where} a bandwidth of one core above that of all")
    return UnitProfile(
        id=UnitId(told.id),
        kind=told.kind,
        cores=sources.maybe(told.cores),
        operations_per_s=_ordered(peaks, sources),
        core_operations_per_s=_ordered(core_peaks, sources),
        bandwidth_bytes_per_s=sources.of(told.bandwidth),
        core_bandwidth_bytes_per_s=sources.maybe(told.core_bandwidth),
        launch_s=sources.of(told.launch),
        operator_s=sources.of(told.operator),
        memory_bytes=sources.maybe(told.memory),
        idle_w=sources.maybe(told.idle),
        busy_w=sources.maybe(told.busy),
        border_s_per_byte=sources.maybe(told.border),
        layouts=told.layouts,
        threads=told.threads,
        takes=told.takes,
        refuses=told.refuses,
        efficiencies=tuple(
            (kind, sources.of(share))
            for kind in OperatorClass
            for found, share in told.efficiencies
            if found is kind
        ),
    )


def _ordered(
    peaks: dict[Arithmetic, tuple[float, int]], sources: _Sources
) -> tuple[tuple[Arithmetic, Sourced], ...]:
    return tuple((a, sources.of(peaks[a])) for a in Arithmetic if a in peaks)


def _check_cores(told: _Unit, where: str) -> None:
    if told.kind is not UnitKind.CPU:
        if any((told.cores, told.threads, told.core_peaks, told.core_bandwidth)):
            raise ValueError(f"{where} cores, which only a CPU has")
        return
    if told.cores is None:
        raise ValueError(f"{where} no cores")
    threads = list(told.threads)
    if not threads or threads != sorted(set(threads)) or threads[-1] > told.cores[0]:
        raise ValueError(f"{where} thread counts that are not ascending, up to its cores")


def _check_power(unit: UnitProfile, idle_w: Sourced | None) -> None:
    if unit.busy_w is None:
        return
    if idle_w is None or not unit.busy_w.value or unit.busy_w.value < idle_w.value:
        raise ValueError(f"unit {unit.id}: got a power when busy without, or below, that when idle")


def _check_once(what: str, found: Sequence[object]) -> None:
    if len(set(found)) < len(found):
        raise ValueError(f"{what}: got one twice")
