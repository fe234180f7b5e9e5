"""A device profile survives the way to another device, and nothing else is taken for one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.devices import UnitId, UnitKind
from edge_agent.errors import ProtocolError
from edge_agent.profile_files.reading import load
from edge_agent.profile_files.shipped import shipped
from edge_agent.wire.device_profiles import MAX_PROFILE_BYTES, pack_profile, unpack_profile
from tests.made_profiles import CPU, NPU, measured, profile


def plain() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(pack_profile(profile()))
    return found


def with_unit(at: int = 0, **changes: Any) -> bytes:
    """The profile with one of its units changed."""
    found = plain()
    found["units"][at] |= changes
    return msgspec.msgpack.encode({**found, "units": found["units"]})


def changed(**changes: Any) -> bytes:
    return msgspec.msgpack.encode(plain() | changes)


def test_what_was_measured_comes_back_as_it_was_and_is_small() -> None:
    packed = pack_profile(profile())
    assert unpack_profile(packed) == profile()
    assert len(packed) < 1024


@pytest.mark.parametrize("path", shipped().values(), ids=shipped())
def test_profiles_of_real_devices_come_back_but_for_long_texts(path: Path) -> None:
    known = load(path)
    found = unpack_profile(pack_profile(known))
    assert [unit.id for unit in found.units] == [unit.id for unit in known.units]
    for told, unit in zip(found.units, known.units, strict=True):
        assert [(a, rate.value) for a, rate in told.operations_per_s] == [
            (a, rate.value) for a, rate in unit.operations_per_s
        ]
        assert told.bandwidth_bytes_per_s.value == unit.bandwidth_bytes_per_s.value
        assert told.bandwidth_bytes_per_s.source.kind == unit.bandwidth_bytes_per_s.source.kind
    assert found.memory_bytes.value == known.memory_bytes.value
    assert all(len(source.text) <= 128 and not source.url for source in found.sources)
    assert found.latency == ()


def test_what_would_be_too_much_is_not_packed() -> None:
    many = replace(profile(), units=tuple(replace(NPU, refuses=("x" * 99,) * 512) for _ in "ab"))
    with pytest.raises(ValueError, match=rf"want at most {MAX_PROFILE_BYTES}$"):
        pack_profile(many)


BAD = (math.nan, math.inf, -1.0, 1e30, None, "1")


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        *(changed(memory=(bad, 0)) for bad in (*BAD, True)),
        changed(memory=(1.0, 1)),
        changed(memory=(1.0, -1)),
        changed(available=(9e9, 0)),
        changed(units=()),
        changed(units=plain()["units"] * 20),
        changed(units=[plain()["units"][0]] * 2),
        changed(sources=()),
        changed(sources=plain()["sources"] * 2),
        changed(id="../x"),
        changed(id="pi\n"),
        changed(name="x" * 129),
        changed(more=1),
        *(with_unit(bandwidth=(bad, 0)) for bad in (*BAD, 0.0)),
        *(with_unit(launch=(bad, 0)) for bad in (*BAD, 1e6)),
        *(with_unit(peaks=[("float32", (bad, 0))]) for bad in (*BAD, 0.0, 1e19)),
        *(with_unit(cores=(bad, 0)) for bad in (*BAD, 0, 1.5, 65_537)),
        with_unit(cores=None),
        with_unit(peaks=()),
        with_unit(peaks=[("float32", (1e9, 0))] * 2),
        with_unit(peaks=[("float128", (1e9, 0))]),
        with_unit(core_peaks=[("float32", (1e12, 0))]),
        with_unit(core_peaks=[("float16", (1.0, 0))]),
        with_unit(core_bandwidth=(1e12, 0)),
        *(with_unit(threads=bad) for bad in ((), (4, 1), (1, 1), (1, 5), (0,), (10**9,))),
        with_unit(kind="NPU"),
        with_unit(id="host"),
        with_unit(id="CPU"),
        with_unit(layouts=()),
        with_unit(layouts=("NCHW", "NCHW")),
        with_unit(busy=(3.0, 0)),
        with_unit(busy=(3.0, 0), idle=(4.0, 0)),
        with_unit(busy=(0.0, 0), idle=(0.0, 0)),
        with_unit(efficiencies=[("pool", (0.0, 0))]),
        with_unit(efficiencies=[("pool", (1.5, 0))]),
        with_unit(takes=("float16",)),
        with_unit(refuses=("x",) * 100_000),
        with_unit(1, kind="CPU"),
        with_unit(1, cores=(2, 0)),
        with_unit(1, threads=(1,)),
        with_unit(1, memory=(-1.0, 0)),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^device profile not understood: "):
        unpack_profile(packed)


def test_what_a_terminal_would_obey_is_not_taken_over() -> None:
    found = unpack_profile(changed(name="pi\x1b[2J"))
    assert found.name == "pi\N{REPLACEMENT CHARACTER}[2J"


@given(st.binary(max_size=300))
def test_random_bytes_are_no_profile(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_profile(raw)


@given(st.data())
def test_a_damaged_profile_is_understood_or_refused(data: st.DataObject) -> None:
    raw = bytearray(pack_profile(profile()))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack_profile(bytes(raw))
    except ProtocolError:
        return


def test_every_field_of_a_unit_comes_back() -> None:
    unit = replace(
        NPU,
        id=UnitId("gpu0"),
        kind=UnitKind.GPU,
        idle_w=measured(1.0),
        busy_w=measured(9.0),
        border_s_per_byte=measured(1e-10),
        refuses=("Resize",),
    )
    given_ = replace(profile(), units=(CPU, unit), idle_w=measured(3.0))
    assert unpack_profile(pack_profile(given_)) == given_
