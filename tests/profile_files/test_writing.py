from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.hardware import Sourced
from edge_agent.profile_files.reading import decode
from edge_agent.profile_files.writing import encode
from tests.profile_files.made_profiles import WHOLE


def test_what_is_written_reads_back_as_the_equal_profile() -> None:
    profile = decode(WHOLE, "board.toml")
    text = encode(profile)
    assert decode(text, "again.toml") == profile
    assert encode(decode(text, "again.toml")) == text


def test_quantities_are_written_as_people_write_them() -> None:
    text = encode(decode(WHOLE, "board.toml"))
    assert 'size = { value = "8 GiB", source = "sheet" }' in text
    assert 'peak.float32 = { value = "76.8 GOP/s", source = "sheet" }' in text
    assert 'launch = { value = "20 us", source = "here" }' in text


@given(
    name=st.text(min_size=1).filter(str.strip),
    number=st.floats(min_value=1e-12, max_value=86_400),
)
def test_any_name_and_number_survives(name: str, number: float) -> None:
    profile = decode(WHOLE, "board.toml")
    (cpu, npu) = profile.units
    source = profile.sources[0]
    altered = replace(
        profile,
        name=name,
        units=(replace(cpu, launch_s=Sourced(value=number, source=source)), npu),
    )
    assert decode(encode(altered), "again.toml") == altered
