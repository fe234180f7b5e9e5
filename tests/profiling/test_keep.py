"""Profiles survive being written down; damaged ones are refused as such."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.devices import UnitId
from edge_agent.errors import StorageError
from edge_agent.profiles import (
    LatencyProfile,
    Placement,
    RefusedNode,
    Rejection,
    Timing,
    Window,
)
from edge_agent.profiling.keep import decode_profile, encode_profile
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_models import (
    accelerator,
    chain,
    configuration,
    latency_profile,
    times,
)


def made() -> LatencyProfile:
    which = configuration(threads=2, instances=3)
    profile = latency_profile(chain(2), [times(which, [0.1, 0.2], 1e-4, 1e-10)])
    window = Window(
        segments=SegmentRange(start=0, stop=2),
        configuration=which,
        timing=Timing(median_s=0.3, low_s=0.29, high_s=0.31, samples=9),
    )
    rejection = Rejection(candidate="[0] ×", reason="slower", detail="1 %")
    return replace(profile, windows=(window,), rejections=(rejection,))


def test_a_profile_comes_back_as_it_was() -> None:
    assert decode_profile(encode_profile(made())) == made()


def test_what_units_took_and_refused_comes_back_as_it_was() -> None:
    refused = RefusedNode(position=4, label="r (Resize)", ran_on="cpu", reason="cubic")
    placement = Placement(
        unit=UnitId("npu0"), taken=2, refused=(refused,), removed=1, evidence="session record"
    )
    fitted = [times(accelerator("npu0"), [0.1, 0.2], refused=[1])]
    fitted.append(times(accelerator("npu0", falls_back=True), [0.1, 0.2]))
    profile = replace(made(), times=tuple(fitted), placements=(placement,))
    assert decode_profile(encode_profile(profile)) == profile


@pytest.mark.parametrize(
    ("find", "put"),
    [
        (b'"threads":2', b'"threads":"2"'),
        (b'"threads":2,', b""),
        (b'"layout":"NCHW"', b'"layout":"NCWH"'),
        (b'"start":0', b'"start":2'),
        (b'"plain_s":0.06', b'"plain_s":null'),
        (b'{"v":1,', b'{"v":1,"w":2,'),
        (b'"median_s":0.3,', b'"median_s":NaN,'),
    ],
)
def test_a_damaged_profile_is_refused(find: bytes, put: bytes) -> None:
    content = encode_profile(made())
    assert find in content
    with pytest.raises(StorageError, match="latency profile is damaged"):
        decode_profile(content.replace(find, put))


def test_a_profile_of_another_version_is_refused() -> None:
    content = encode_profile(made()).replace(b'{"v":1', b'{"v":2')
    with pytest.raises(StorageError, match="got version 2, want 1"):
        decode_profile(content)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(StorageError):
        decode_profile(content)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_never_raises_anything_else(place: int, byte: int) -> None:
    content = bytearray(encode_profile(made()))
    content[place % len(content)] = byte
    with suppress(StorageError):
        decode_profile(bytes(content))
