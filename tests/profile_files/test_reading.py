from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from edge_agent.devices import Layout, UnitKind
from edge_agent.errors import UsageError
from edge_agent.hardware import DeviceProfile, SourceKind
from edge_agent.profile_files import reading
from edge_agent.profiles import HOST_UNIT
from edge_agent.summaries import Arithmetic, OperatorClass
from tests.profile_files.made_profiles import MODEL, WHOLE, changed


def _read(text: str = WHOLE) -> DeviceProfile:
    return reading.decode(text, "board.toml")


def _refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        _read(text)
    assert str(caught.value).startswith("board.toml: ")
    return str(caught.value)


def test_quantities_become_si_numbers() -> None:
    profile = _read()
    cpu, npu = profile.units
    assert profile.memory_bytes.value == 8 * 2**30
    assert profile.available_bytes is not None
    assert profile.available_bytes.value == 6.5e9
    assert profile.network.send_s_per_byte is not None
    assert profile.network.send_s_per_byte.value == pytest.approx(0.6e-9)
    assert profile.network.encrypted_receive_s_per_byte is not None
    assert profile.network.encrypted_receive_s_per_byte.value == pytest.approx(2.4e-9)
    assert profile.network.receive_s_per_byte is None
    assert {a: rate.value for a, rate in cpu.operations_per_s} == {
        Arithmetic.FLOAT32: 76.8e9,
        Arithmetic.INT8: 300e9,
    }
    assert cpu.launch_s.value == pytest.approx(20e-6)
    assert (npu.idle_w, npu.memory_bytes) != (None, None)
    assert profile.idle_w is not None
    assert profile.idle_w.value == 2.7


def test_units_have_kind_layouts_threads_and_what_they_take() -> None:
    profile = _read()
    cpu, npu = profile.units
    assert (cpu.id, cpu.kind, profile.cores) == (HOST_UNIT, UnitKind.CPU, 4)
    assert cpu.layouts == (Layout.NCHW, Layout.BLOCKED)
    assert cpu.threads == (1, 4)
    assert [(kind, share.value) for kind, share in cpu.efficiencies] == [
        (OperatorClass.CONVOLUTION, 0.5)
    ]
    assert (npu.kind, npu.layouts, npu.threads) == (UnitKind.NPU, (Layout.NATIVE,), ())
    assert (npu.takes, npu.refuses) == ((Arithmetic.INT8,), ("Resize",))


def test_every_value_knows_its_source_and_its_date() -> None:
    source = _read().memory_bytes.source
    assert (source.key, source.text, source.kind) == (
        "sheet",
        "Product brief",
        SourceKind.DATA_SHEET,
    )
    assert source.date == datetime.date(2026, 11, 29)
    assert source.url == "https://example.org/brief"


def test_measured_latency_is_read_for_its_model_and_division() -> None:
    (measured,) = _read().latency
    assert (measured.model, measured.starts) == (MODEL, (0, 12))
    assert measured.shapes == (("images", (1, 3, 224, 224)),)
    assert measured.times.segment_s == (0.001, 0.002)
    assert str(measured.times.configuration) == "cpu/NCHW/4t"


@pytest.mark.parametrize(
    ("old", "new", "key", "rest"),
    [
        (
            '"10 GB/s"',
            '"34 GB"',
            "units.cpu.bandwidth",
            'got "34 GB", want bytes per second as in "34 GB/s"',
        ),
        ('"8 GiB"', '"8"', "memory.size", 'got "8", want bytes as in "8 GiB"'),
        ('"8 GiB"', "8", "memory.size", 'got 8, want bytes as in "8 GiB"'),
        ('"8 GiB"', '"-8 GiB"', "memory.size", "a number of at least 0"),
        ('"8 GiB"', '"nan GiB"', "memory.size", "a number of at least 0"),
        ('"8 GiB"', '"1e300 GiB GiB"', "memory.size", "in one of B, kB"),
        ('"8 GiB"', '"1e308 GiB"', "memory.size", "at most 100 PB"),
        ('"20 us"', '"20 W"', "units.cpu.launch", 'want seconds as in "20 us"'),
        ('"10 GB/s"', '"0 GB/s"', "units.cpu.bandwidth", "want bytes per second above 0"),
        ("bandwidth =", "bandwith =", "units.cpu.bandwith", "did you mean bandwidth?"),
        ("[power]", "[powr]", "powr", "did you mean power?"),
        ("busy =", "busi =", "units.cpu.busi", "did you mean busy?"),
        ('launch = { value = "20 us", source = "here" }', "", "units.cpu.launch", "is missing"),
        ("[memory]", "[memories]", "memories", "did you mean memory?"),
        ('source = "sheet"', 'source = "sheat"', "memory.size.source", "did you mean sheet?"),
        ('source = "sheet"', 'source = "blog"', "memory.size.source", "add [sources.blog]"),
        ('{ value = "8 GiB", source = "sheet" }', '"8 GiB"', "memory.size", "names its source"),
        (', source = "sheet"', "", "memory.size.source", "is missing"),
        ("peak.int8", "peak.int4", "units.cpu.peak.int4", "did you mean int8?"),
        ('kind = "NPU"', 'kind = "TPU"', "units.npu.kind", 'got "TPU", want one of CPU, GPU, NPU'),
        ('kind = "NPU"', 'kind = "CPU"', "units.npu.kind", "[units.cpu] to be of kind CPU"),
        ('takes = ["int8"]', 'takes = ["int9"]', "units.npu.takes", "did you mean int8?"),
        ('takes = ["int8"]', 'takes = ["float32"]', "units.npu.peak", "want a peak for one of"),
        ('refuses = ["Resize"]', 'refuses = "Resize"', "units.npu.refuses", "a list of operators"),
        ("takes =", "threads = [1]\ntakes =", "units.npu.threads", "only a CPU has it"),
        ("threads = [1, 4]", "threads = [1, 8]", "units.cpu.threads", "up to 4 cores"),
        ("threads = [1, 4]", "threads = [4, 1]", "units.cpu.threads", "ascending"),
        ("value = 4", "value = true", "units.cpu.cores", "a whole number of at least 1"),
        ("value = 4", "value = 0", "units.cpu.cores", "a whole number of at least 1"),
        ("value = 0.5", "value = 1.5", "units.cpu.efficiency.convolution", "1e-06 to 1"),
        ("value = 0.5", "value = 1e-300", "units.cpu.efficiency.convolution", "1e-06 to 1"),
        ("value = 4", "value = 100000000000", "units.cpu.cores", "a whole number of at most 65536"),
        ('"20 us"', '"1e9 s"', "units.cpu.launch", "at most 86400 s"),
        ('"8.0 W"', '"1e300 W"', "units.cpu.busy", "at most 1000000 W"),
        ('"8.0 W"', '"0 W"', "units.cpu.busy", 'got "0 W", want watts above 0; leave it out where'),
        ("convolution =", "convolutions =", "units.cpu.efficiency.convolutions", "did you mean"),
        ('"8.0 W"', '"2 W"', "units.cpu.busy", 'got "2 W", want at least power.idle, "2.7 W"'),
        (
            '"20 GFLOP/s"',
            '"80 GFLOP/s"',
            "units.cpu.core_peak.float32",
            'got "80 GFLOP/s", want at most that of all',
        ),
        (
            '"6 GB/s"',
            '"60 GB/s"',
            "units.cpu.core_bandwidth",
            'got "60 GB/s", want at most that of all',
        ),
        ('"6.5 GB"', '"65 GB"', "memory.available", "at most memory.size"),
        (
            '"6.5 GB"',
            '"75260 MiB"',
            "memory.available",
            'got "75260 MiB", want at most memory.size, "8 GiB"',
        ),
        ('source = "sheet"', 'source = "blog"', "memory.size.source", 'got "blog", want a source'),
        ('source = "sheet"', "source = 5", "memory.size.source", "got 5, want the key of a source"),
        ("version = 1", "version = true", "version", "got true, want 1"),
        ("date = 2026-11-29", "date = 10:00:00", "sources.sheet.date", "got 10:00:00, want a date"),
        ("starts = [0, 12]", 'starts = "0"', "latency[0].starts", 'got "0", want a list'),
        ('refuses = ["Resize"]', 'refuses = ["a", 1]', "units.npu.refuses", 'got ["a", 1], want'),
        ('{ value = "8 GiB", source = "sheet" }', "{ }", "memory.size.value", "is missing"),
        ("segment_s = [0.001", f"segment_s = [{'9' * 400}", "latency[0].segment_s", "999…, want"),
        ("version = 1", "version = 2", "version", "got 2, want 1"),
        ("version = 1", "", "version", "is missing"),
        ('id = "board-1"', 'id = "Board 1"', "id", "1 to 64 of a-z 0-9 -"),
        ("date = 2026-11-29", 'date = "2026-11-29"', "sources.sheet.date", "without quotes"),
        ('"data sheet"', '"datasheet"', "sources.sheet.kind", "did you mean data sheet?"),
        (
            *('"data sheet"', '"blog"', "sources.sheet.kind"),
            "one of data sheet, third-party specification, computed from specifications, published",
        ),
        ("starts = [0, 12]", "starts = [1, 12]", "latency[0].starts", "from 0 on"),
        ("[0.001, 0.002]", "[0.001]", "latency[0].segment_s", "a list of 2 seconds"),
        ("[0.001, 0.002]", "[0.001, nan]", "latency[0].segment_s", "got nan, want a number"),
        ("[0.001, 0.002]", "[0.001, 1e9]", "latency[0].segment_s", "a number from 0 to 86400"),
        ("overhead_s = 2e-5", "overhead_s = 1e300", "latency[0].overhead_s", "from 0 to 86400"),
        ("= 1e-10", "= 1.0", "latency[0].border_s_per_byte", "got 1.0, want a number from 0 to"),
        ("= 0.03", "= 1e9", "latency[0].error_fraction", "a number from 0 to 1000"),
        ("threads = 4", "threads = 5", "latency[0].threads", "got 5, want at most 4, the cores of"),
        (
            "threads = 4",
            "threads = 4\ninstances = 2",
            "latency[0].instances",
            "got 2, want at most 1:",
        ),
        ('unit = "cpu"', 'unit = "gpu"', "latency[0].unit", "want one of cpu, npu"),
        (MODEL, "abc", "latency[0].model", "64 hexadecimal digits"),
    ],
)
def test_what_is_wrong_is_named_with_key_value_and_cure(
    old: str, new: str, key: str, rest: str
) -> None:
    message = _refusal(changed(old, new))
    assert message.startswith(f"board.toml: key {key}: ")
    assert rest in message


def test_busy_power_without_idle_power_is_refused() -> None:
    text = changed('idle = { value = "2.7 W", source = "here" }', "")
    assert "key units.cpu.busy" in _refusal(text)
    assert "add [power] idle" in _refusal(text)


def test_a_latency_profile_that_is_there_twice_is_refused() -> None:
    entry = WHOLE[WHOLE.index("[[latency]]") :]
    assert "key latency[1]: is there twice, as latency[0]" in _refusal(WHOLE + entry)


def test_bad_toml_is_named_with_its_line() -> None:
    assert "line 3" in _refusal("version = 1\n\nid = \n")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: no such file.*--export"):
        reading.load(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="is a folder"):
        reading.load(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'version = 1\nname = "\xe9"\n')
    with pytest.raises(UsageError, match="line 2 is not UTF-8"):
        reading.load(latin)
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(reading.MOST_FILE_BYTES + 1)
    with pytest.raises(UsageError, match="more than 16 MiB"):
        reading.load(large)


def test_a_file_is_read_like_its_text(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    file.write_text(WHOLE, "utf-8")
    assert reading.load(file) == _read()


@pytest.mark.parametrize("text", ["version =", "version = " + "[" * 100_000, "x = " + "9" * 5_000])
def test_what_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"board\.toml: is not valid TOML: .*; correct it there"):
        _read(text)
