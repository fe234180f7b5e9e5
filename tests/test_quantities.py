from __future__ import annotations

import re

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


@pytest.mark.parametrize(
    ("text", "measure", "says"),
    [
        ("1e300 s", DURATION, 'got "1e300 s", want seconds as in "20 us", at most 86400 s'),
        ("86400001 us", DURATION, None),
        ("1e305s", DURATION, "at most 86400 s"),
        ("1e400 s", DURATION, 'want seconds as in "20 us", at most 86400 s'),
        ("1e300 GFLOP/s", RATE, "at least 1 OP/s and at most"),
        ("inf W", POWER, "at most 1000000 W"),
        ("-inf W", POWER, "a number of at least 0"),
        ("nan W", POWER, "a number of at least 0"),
        ("100.1 PB", SIZE, 'want bytes as in "8 GiB", at most 100 PB'),
        ("1e-300 GB/s", BANDWIDTH, 'as in "34 GB/s", at least 1 B/s and at most 100 PB/s'),
        ("0 B/s", BANDWIDTH, None),
        ("2 s/B", PACE, "at most 0.001 s/B"),
        ("1001 kW", POWER, "at most 1000000 W"),
        ("0.5 OP/s", RATE, "at least 1 OP/s and at most"),
        ("2e6 TOP/s", RATE, "at least 1 OP/s and at most"),
    ],
)
def test_what_no_device_has_is_refused_with_the_range(
    text: str, measure: Measure, says: str | None
) -> None:
    if says is None:
        assert parse(text, measure) >= 0.0
        return
    with pytest.raises(ValueError, match=re.escape(says)):
        parse(text, measure)


@given(data=st.data(), measure=st.sampled_from([SIZE, BANDWIDTH, DURATION, PACE, POWER, RATE]))
def test_what_is_written_parses_to_exactly_the_number(
    data: st.DataObject, measure: Measure
) -> None:
    number = data.draw(st.just(0.0) | st.floats(min_value=measure.least, max_value=measure.most))
    assert parse(written(number, measure), measure) == number
