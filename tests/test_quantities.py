from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.quantities import (
    BANDWIDTH,
    DURATION,
    PACE,
    POWER,
    RATE,
    SIZE,
    Measure,
    parse,
    written,
)


@pytest.mark.parametrize(
    ("text", "measure", "number"),
    [
        ("8 GiB", SIZE, 8 * 2**30),
        ("1.5kB", SIZE, 1500.0),
        ("34 GB/s", BANDWIDTH, 34e9),
        ("20 µs", DURATION, 20e-6),
        ("1.3 s/GB", PACE, 1.3e-9),
        ("250 mW", POWER, 0.25),
        ("26 TOP/s", RATE, 26e12),
        (" 2e3  GFLOP/s ", RATE, 2e12),
    ],
)
def test_a_number_with_its_unit_becomes_an_si_number(
    text: str, measure: Measure, number: float
) -> None:
    assert parse(text, measure) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "GB", "8", "8 GB", "-1 GB/s", "inf GB/s", "1 gb/s", "1e999 B/s"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match='want bytes per second as in "34 GB/s"'):
        parse(text, BANDWIDTH)


@given(
    number=st.floats(min_value=0, max_value=1e200),
    measure=st.sampled_from([SIZE, BANDWIDTH, DURATION, PACE, POWER, RATE]),
)
def test_what_is_written_parses_to_exactly_the_number(number: float, measure: Measure) -> None:
    assert parse(written(number, measure), measure) == number
