"""Options of `plan --devices`: what they say, and how they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.cli.plan_options import (
    Place,
    parse_bounds,
    parse_device_pins,
    parse_devices,
    parse_links,
    parse_places,
)
from edge_agent.devices import DeviceId, UnitId
from edge_agent.errors import UsageError
from edge_agent.plans import Bound, Target
from edge_agent.problems import Link

LAB, PI, BOARD = DeviceId("lab"), DeviceId("pi"), DeviceId("my-board-2")
DEVICES = (LAB, PI, BOARD)
UNITS = {LAB: [UnitId("cpu"), UnitId("gpu")], PI: [UnitId("cpu")]}
SHIPPED = {"raspberry-pi-5-8gb": Path("/profiles/raspberry-pi-5-8gb.toml")}


def link(source: DeviceId, target: DeviceId, **rest: float | str) -> Link:
    given: dict[str, object] = {"latency_s": 0.002, "goodput_bytes_per_s": 12.5e6, **rest}
    return Link(source=source, target=target, **given)  # type: ignore[arg-type]


def test_a_link_leads_both_ways_and_its_goodput_is_what_is_said() -> None:
    assert parse_links(["lab-pi=100Mbit,2ms"], DEVICES) == (link(LAB, PI), link(PI, LAB))


def test_a_link_of_one_way_has_one_direction() -> None:
    assert parse_links(["lab>pi=100Mbit,2ms"], DEVICES) == (link(LAB, PI),)
    assert parse_links(["pi-lab=100Mbit,2ms,one-way"], DEVICES) == (link(PI, LAB),)


def test_both_directions_can_differ() -> None:
    found = parse_links(["lab>pi=100Mbit,2ms", "pi>lab=10MB/s,2ms"], DEVICES)
    assert [k.goodput_bytes_per_s for k in found] == [12.5e6, 10e6]


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("1Gbit", 125e6),
        ("1 Gbit/s", 125e6),
        ("12.5MB", 12.5e6),
        ("1MiB/s", float(1 << 20)),
        ("800kbit", 1e5),
        ("8bit", 1.0),
    ],
)
def test_goodput_is_bits_or_bytes_per_second(text: str, bytes_per_s: float) -> None:
    (found, _) = parse_links([f"lab-pi={text},2ms"], DEVICES)
    assert found.goodput_bytes_per_s == pytest.approx(bytes_per_s, rel=1e-12)


@pytest.mark.parametrize(("text", "latency_s"), [("300us", 3e-4), ("2ms", 2e-3), ("0s", 0.0)])
def test_latency_has_a_unit(text: str, latency_s: float) -> None:
    (found, _) = parse_links([f"lab-pi=1Gbit,{text}"], DEVICES)
    assert found.latency_s == pytest.approx(latency_s, rel=1e-12)


def test_a_medium_and_joules_go_with_both_directions() -> None:
    found = parse_links(["lab-pi=100Mbit,2ms,medium=wifi,joules=5nJ/B"], DEVICES)
    assert found == (
        link(LAB, PI, medium="wifi", joules_per_byte=5e-9),
        link(PI, LAB, medium="wifi", joules_per_byte=5e-9),
    )


def test_ids_may_have_dashes_of_their_own() -> None:
    (found,) = parse_links(["my-board-2-pi=100Mbit,2ms,one-way"], DEVICES)
    assert (found.source, found.target) == (BOARD, PI)


def test_all_joins_every_pair_where_nothing_else_is_said() -> None:
    found = parse_links(["lab>pi=1Gbit,1us", "all=100Mbit,2ms"], DEVICES)
    assert len(found) == 6
    assert [k.latency_s for k in found].count(0.002) == 5
    assert found[0] == link(LAB, PI, latency_s=1e-6, goodput_bytes_per_s=125e6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["lab-pi"], "--link lab-pi: want A-B=100Mbit,2ms"),
        (["lab-pi=100Mbit"], "got no latency, want A-B=100Mbit,2ms"),
        (["lab-pi=100,2ms"], '--link lab-pi=100,2ms: goodput: got "100", want bits or bytes per'),
        (["lab-pi=100Mbit,2"], 'latency: got "2", want seconds as in "20 us"'),
        (["lab-pi=100Mbit,-2ms"], 'latency: got "-2ms", want seconds'),
        (["lab-pi=-1Gbit,2ms"], 'goodput: got "-1Gbit", want bits or bytes'),
        (["lab-pi=0Gbit,2ms"], 'got "0Gbit", want above 0; leave a link out that is none'),
        (["pi-labb=1Gbit,2ms"], 'got device "labb", which is not there: there are lab, pi, my-'),
        (["pi-labb=1Gbit,2ms"], "; did you mean lab?"),
        (["lab=1Gbit,2ms"], "names one device, want two as in A-B, or all"),
        (["lab-lab=1Gbit,2ms"], "leads from lab to itself; name two devices"),
        (["lab-pi=1Gbit,2ms,medum=x"], 'got "medum=x", want A-B=100Mbit'),
        (["lab-pi=1Gbit,2ms,medum=x"], "; did you mean medium?"),
        (["lab-pi=1Gbit,2ms,joules=5"], 'joules: got "5", want joules per byte as in "5nJ/B"'),
        (
            ["lab-pi=1Gbit,2ms", "pi-lab=1Gbit,2ms"],
            "the link from pi to lab is given twice, by --link lab-pi=1Gbit,2ms before; leave one",
        ),
        (
            ["all=1Gbit,2ms", "all=2Gbit,2ms"],
            "--link all=2Gbit,2ms: the link from lab to pi is given twice, by --link "
            "all=1Gbit,2ms before; leave one out",
        ),
        (
            ["lab-pi=1Mbit,1e300s"],
            'latency: got "1e300s", want seconds as in "20 us", at most 86400',
        ),
        (
            ["lab-pi=1e-300Mbit,1ms"],
            'goodput: got "1e-300Mbit", want bits or bytes per second, without what headers take '
            'as in "100Mbit", at least 1 bit and at most 1 Pbit',
        ),
        (["lab-pi=1.1Pbit,1ms"], "at least 1 bit and at most 1 Pbit"),
        (["lab-pi=1Gbit,1ms,joules=1e308J/B"], 'joules: got "1e308J/B", want joules per byte as'),
        (["lab-pi=1Gbit,1ms,joules=1001J/B"], "at most 1000 J/B"),
        (["lab-pi=1Gbit,2ms,medium=a,medium=b"], "medium is given twice; leave one out"),
        (["lab-pi=1Gbit,2ms,one-way,one-way"], "one-way is given twice; leave one out"),
        (["lab-pi=1Gbit,2ms,joules=1J/B,joules=1J/B"], "joules is given twice; leave one out"),
        (["lab-pi=1Gbit,2ms,medium="], 'got "medium=" without a value, want medium=NAME'),
        (["lab-pi=1Gbit,2ms,medium"], 'got "medium" without a value, want medium=NAME'),
        (["lab-pi=1Gbit,2ms,joules="], 'got "joules=" without a value, want joules=5nJ/B'),
        (["lab-pi=1Gbit,2ms,one-way=no"], 'got "one-way=no", want A-B=100Mbit'),
        (["all=1Gbit,2ms,one-way"], "all goes both ways; leave one-way out"),
    ],
)
def test_a_wrong_link_is_refused_with_the_cure(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_links(texts, DEVICES)
    assert message in str(refused.value)


def test_a_link_that_may_mean_two_pairs_is_refused() -> None:
    devices = tuple(map(DeviceId, ("a", "a-b", "b-c", "c")))
    with pytest.raises(UsageError, match="may mean a and b-c or a-b and c; give devices other ids"):
        parse_links(["a-b-c=1Gbit,2ms"], devices)


def test_all_needs_two_devices() -> None:
    with pytest.raises(UsageError, match="there is one device, lab; name more with --devices"):
        parse_links(["all=1Gbit,2ms"], [LAB])


def test_bounds_are_read_in_the_unit_of_their_target() -> None:
    texts = ["latency=80ms", "throughput=20/s", "energy=2.5J", "memory=512MiB", "bytes=1MB"]
    assert parse_bounds(texts) == (
        Bound(target=Target.LATENCY, limit=0.08),
        Bound(target=Target.THROUGHPUT, limit=20.0),
        Bound(target=Target.ENERGY, limit=2.5),
        Bound(target=Target.MEMORY, limit=float(512 << 20)),
        Bound(target=Target.BYTES, limit=1e6),
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["latency"], "--bound latency: want TARGET=LIMIT, as latency=80ms"),
        (["latncy=80ms"], 'got "latncy", want one of latency, throughput, energy, memory, bytes'),
        (["latncy=80ms"], "; did you mean latency?"),
        (["latency=80"], '--bound latency=80: got "80", want seconds as in'),
        (["throughput=20"], 'got "20", want requests per second as in "20/s"'),
        (["throughput=1e300/s"], "at least 1e-06 /s and at most 1000000000 /s"),
        (["energy=1e300J"], "at most 1000000000 J"),
        (["energy=-1J"], 'got "-1J", want joules per request'),
        (["memory=1MiB", "memory=2MiB"], "memory has a bound already; leave one out"),
    ],
)
def test_a_wrong_bound_is_refused_with_the_cure(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_bounds(texts)
    assert message in str(refused.value)


def test_devices_are_files_or_profiles_that_come_along_and_may_have_ids() -> None:
    texts = ["boards/a.toml", "raspberry-pi-5-8gb", "lab=raspberry-pi-5-8gb"]
    found = parse_devices(texts, SHIPPED)
    known = SHIPPED["raspberry-pi-5-8gb"]
    assert [one.path for one in found] == [Path("boards/a.toml"), known, known]
    assert [one.id for one in found] == [None, None, "lab"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raspbery-pi-5", "want a profile file (.toml) or one of the profiles that come along"),
        ("raspbery-pi-5", "; did you mean raspberry-pi-5-8gb?"),
        ("a b=x.toml", 'got the id "a b", want 1 to 64 of A-Z a-z 0-9 - _ .'),
        ("all=x.toml", 'got the id "all"'),
        ("a=", "--devices a=: got an empty name, want a profile file (.toml) or one of the"),
    ],
)
def test_a_device_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_devices([text], SHIPPED)
    assert message in str(refused.value)


def test_pins_and_bans_name_a_device_or_a_unit() -> None:
    gpu, pi = Place(device=LAB, unit=UnitId("gpu")), Place(device=PI, unit=None)
    assert parse_places("--ban", ["lab/gpu", "pi"], UNITS) == (gpu, pi)
    assert parse_device_pins(["conv[12]=lab/gpu", "a=b=pi"], UNITS) == (
        ("conv[12]", gpu),
        ("a=b", pi),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv*", "--pin conv*: want PATTERN=DEVICE or PATTERN=DEVICE/UNIT"),
        ("conv*=lob", 'got device "lob", which is not there: there are lab, pi; did you mean lab?'),
        ("conv*=lab/npu", 'lab has no unit "npu", it has cpu, gpu'),
    ],
)
def test_a_wrong_pin_is_refused_with_the_cure(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_device_pins([text], UNITS)
    assert message in str(refused.value)
