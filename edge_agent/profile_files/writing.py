"""Device profiles to TOML, such that reading gives the equal profile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from edge_agent.hardware import DeviceProfile, MeasuredTimes, Source, Sourced, UnitProfile
from edge_agent.profile_files.reading import VERSION
from edge_agent.quantities import (
    BANDWIDTH,
    DURATION,
    PACE,
    POWER,
    RATE,
    SIZE,
    Measure,
    written,
)


def encode(profile: DeviceProfile) -> str:
    """The text of a profile file; what `reading.decode` makes of it equals `profile`."""
    return "\n".join(_lines(profile)) + "\n"


def _lines(profile: DeviceProfile) -> Iterator[str]:
    yield f"version = {VERSION}"
    yield f"id = {_quoted(profile.id)}"
    yield f"name = {_quoted(profile.name)}"
    for source in profile.sources:
        yield from _source(source)
    yield from ("", "[memory]")
    yield from _quantity("size", profile.memory_bytes, SIZE)
    yield from _quantity("available", profile.available_bytes, SIZE)
    network = profile.network
    paces = (
        *_quantity("send", network.send_s_per_byte, PACE),
        *_quantity("receive", network.receive_s_per_byte, PACE),
        *_quantity("encrypted_send", network.encrypted_send_s_per_byte, PACE),
        *_quantity("encrypted_receive", network.encrypted_receive_s_per_byte, PACE),
    )
    if paces:
        yield from ("", "[network]", *paces)
    if profile.idle_w is not None:
        yield from ("", "[power]", *_quantity("idle", profile.idle_w, POWER))
    for unit in profile.units:
        yield from _unit(unit)
    for times in profile.latency:
        yield from _times(times)


def _source(source: Source) -> Iterator[str]:
    yield from ("", f"[sources.{source.key}]")
    yield f"text = {_quoted(source.text)}"
    yield f"kind = {_quoted(source.kind)}"
    yield f"date = {source.date.isoformat()}"
    if source.url:
        yield f"url = {_quoted(source.url)}"


def _unit(unit: UnitProfile) -> Iterator[str]:
    yield from ("", f"[units.{unit.id}]")
    yield f"kind = {_quoted(unit.kind)}"
    if unit.cores is not None:
        yield _pair("cores", str(int(unit.cores.value)), unit.cores)
    for arithmetic, rate in unit.operations_per_s:
        yield from _quantity(f"peak.{arithmetic}", rate, RATE)
    for arithmetic, rate in unit.core_operations_per_s:
        yield from _quantity(f"core_peak.{arithmetic}", rate, RATE)
    yield from _quantity("bandwidth", unit.bandwidth_bytes_per_s, BANDWIDTH)
    yield from _quantity("core_bandwidth", unit.core_bandwidth_bytes_per_s, BANDWIDTH)
    yield from _quantity("launch", unit.launch_s, DURATION)
    yield from _quantity("operator", unit.operator_s, DURATION)
    yield from _quantity("busy", unit.busy_w, POWER)
    yield from _quantity("idle", unit.idle_w, POWER)
    yield from _quantity("memory", unit.memory_bytes, SIZE)
    yield from _quantity("border", unit.border_s_per_byte, PACE)
    yield f"layouts = {_list(map(_quoted, unit.layouts))}"
    if unit.threads:
        yield f"threads = {_list(map(str, unit.threads))}"
    if unit.takes:
        yield f"takes = {_list(map(_quoted, unit.takes))}"
    if unit.refuses:
        yield f"refuses = {_list(map(_quoted, unit.refuses))}"
    if unit.efficiencies:
        yield from ("", f"[units.{unit.id}.efficiency]")
        for kind, share in unit.efficiencies:
            yield _pair(kind, repr(share.value), share)


def _times(measured: MeasuredTimes) -> Iterator[str]:
    times = measured.times
    which = times.configuration
    shapes = (f"{_quoted(name)} = {_list(map(str, dims))}" for name, dims in measured.shapes)
    yield from ("", "[[latency]]")
    yield f"model = {_quoted(measured.model)}"
    yield f"source = {_quoted(measured.source.key)}"
    yield f"starts = {_list(map(str, measured.starts))}"
    yield f"shapes = {{ {', '.join(shapes)} }}"
    yield f"unit = {_quoted(which.unit)}"
    yield f"layout = {_quoted(which.layout)}"
    yield f"threads = {which.threads}"
    yield f"instances = {which.instances}"
    yield f"falls_back = {_flag(which.falls_back)}"
    yield f"is_half = {_flag(which.is_half)}"
    yield f"segment_s = {_list(map(repr, times.segment_s))}"
    yield f"overhead_s = {times.overhead_s!r}"
    yield f"border_s_per_byte = {times.border_s_per_byte!r}"
    yield f"turn_s_per_byte = {times.turn_s_per_byte!r}"
    yield f"error_fraction = {times.error_fraction!r}"
    yield f"is_divisible = {_flag(times.is_divisible)}"
    yield f"refused = {_list(map(str, times.refused))}"


def _quantity(key: str, quantity: Sourced | None, measure: Measure) -> Sequence[str]:
    if quantity is None:
        return ()
    return (_pair(key, _quoted(written(quantity.value, measure)), quantity),)


def _pair(key: str, value: str, sourced: Sourced) -> str:
    return f"{key} = {{ value = {value}, source = {_quoted(sourced.source.key)} }}"


def _list(values: Iterator[str]) -> str:
    return f"[{', '.join(values)}]"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _quoted(text: str) -> str:
    # TOML's basic strings are JSON's, but for the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
