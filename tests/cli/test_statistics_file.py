"""`plan --stats`: what a file says of devices at present, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.cli.statistics_file import decode_statistics, load_statistics
from edge_agent.devices import DeviceId, UnitId
from edge_agent.errors import UsageError
from edge_agent.problems import DeviceStatistics

LAB = DeviceId("lab")
UNITS = {LAB: [UnitId("cpu"), UnitId("gpu")], DeviceId("pi"): [UnitId("cpu")]}
WHOLE = """
[lab]
load = 0.5
free_memory = "512 MiB"
speed = 0.8
battery = 0.15
slowdown = { cpu = 1.4, gpu = 2 }

[pi]
battery = 0.1
charging = true
"""
SAME_AS_JSON = """
{"lab": {"load": 0.5, "free_memory": "512 MiB", "speed": 0.8, "battery": 0.15,
         "slowdown": {"cpu": 1.4, "gpu": 2}},
 "pi": {"battery": 0.1, "charging": true}}
"""
FOUND = (
    DeviceStatistics(
        device=LAB,
        load_fraction=0.5,
        free_memory_bytes=512 << 20,
        speed_fraction=0.8,
        battery_fraction=0.15,
        slowdowns=((UnitId("cpu"), 1.4), (UnitId("gpu"), 2.0)),
    ),
    DeviceStatistics(device=DeviceId("pi")),
)


def test_every_statistic_is_read_and_a_battery_that_is_charging_spares_nothing() -> None:
    assert decode_statistics(WHOLE, "now.toml", UNITS) == FOUND


def test_json_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "now.json").write_text(SAME_AS_JSON)
    assert load_statistics(tmp_path / "now.json", UNITS) == FOUND


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[lob]", "now.toml: key lob: is unknown, want one of lab, pi; did you mean lab?"),
        ("lab = 3", "now.toml: key lab: got 3, want a table"),
        ("[lab]\nlod = 1", "key lab.lod: is unknown, want one of load, free_memory, speed"),
        ("[lab]\nload = 1.5", "key lab.load: got 1.5, want a number from 0 to 1"),
        ("[lab]\nload = true", "key lab.load: got true, want a number from 0 to 1"),
        ("[lab]\nload = nan", "key lab.load: got nan, want a number from 0 to 1"),
        ('[lab]\nload = "50 %"', 'key lab.load: got "50 %", want a number from 0 to 1'),
        ("[lab]\nspeed = 0.0", "key lab.speed: got 0.0, want at least 1e-06; leave the device out"),
        ("[lab]\nfree_memory = 512", "key lab.free_memory: got 512, want bytes with their unit"),
        ('[lab]\nfree_memory = "512"', 'key lab.free_memory: got "512", want bytes as in'),
        ("[lab]\ncharging = 1", "key lab.charging: got 1, want true or false"),
        ("[lab]\ncharging = true", "key lab.battery: is missing, want the charge left"),
        ("[lab]\nslowdown = { npu = 2 }", "key lab.slowdown.npu: is unknown, want one of cpu, gpu"),
        ("[lab]\nslowdown = { cpu = 0 }", "key lab.slowdown.cpu: got 0, want observed over"),
        ("[lab", "now.toml: is not valid TOML"),
        (
            "lab = " + "[" * 100_000,
            "now.toml: is not valid TOML: its tables or lists are nested too deep; correct it",
        ),
        (
            "lab = " + "9" * 5_000,
            "now.toml: is not valid TOML: it has a number of more than 4300 digits; correct it",
        ),
        ("[lab]\nload = " + "9" * 400, f"key lab.load: got {'9' * 80}…, want a number from 0 to 1"),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_cure(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        decode_statistics(text, "now.toml", UNITS)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "now.json: got no table"),
        ("{", "now.json: is not valid JSON"),
        ("[" * 100_000, "now.json: is not valid JSON"),
        ("9" * 5_000, "now.json: is not valid JSON"),
        ('{"lab": {"load": 0.1, "load": 0.9}}', 'now.json: key "load": is given twice in one'),
        ('{"lab": {}, "lab": {"load": 1}}', 'now.json: key "lab": is given twice in one table'),
    ],
)
def test_wrong_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        decode_statistics(text, "now.json", UNITS)
    assert message in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--stats .*now\.toml: cannot be read: No such file"):
        load_statistics(tmp_path / "now.toml", UNITS)
    (tmp_path / "now.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8; save it as UTF-8 text"):
        load_statistics(tmp_path / "now.toml", UNITS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("null", "key lab.load: got null, want a number from 0 to 1"),
        ("false", "key lab.load: got false, want a number from 0 to 1"),
        ('["a", null]', 'key lab.load: got ["a", null], want a number from 0 to 1'),
        ("9" * 5_000, "now.json: is not valid JSON: it has a number of more than 4300 digits"),
        ("9" * 400, f"key lab.load: got {'9' * 80}…, want a number from 0 to 1"),
    ],
)
def test_a_wrong_value_is_told_as_json_has_it(value: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        decode_statistics(f'{{"lab": {{"load": {value}}}}}', "now.json", UNITS)
    assert message in str(refused.value)
