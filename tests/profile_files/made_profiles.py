"""Device profiles for tests: a whole file as text, and changes to it."""

from __future__ import annotations

MODEL = "ab" * 32
WHOLE = f"""
version = 1
id = "board-1"
name = "A board"

[sources.sheet]
text = "Product brief"
kind = "data sheet"
date = 2026-11-29
url = "https://example.org/brief"

[sources.here]
text = "measured with a watch"
kind = "measured"
date = 2026-11-28

[memory]
size = {{ value = "8 GiB", source = "sheet" }}
available = {{ value = "6.5 GB", source = "here" }}

[network]
send = {{ value = "0.6 ns/B", source = "here" }}
encrypted_receive = {{ value = "2.4 s/GB", source = "here" }}

[power]
idle = {{ value = "2.7 W", source = "here" }}

[units.cpu]
kind = "CPU"
cores = {{ value = 4, source = "sheet" }}
peak.float32 = {{ value = "76.8 GFLOP/s", source = "sheet" }}
peak.int8 = {{ value = "300 GOP/s", source = "sheet" }}
core_peak.float32 = {{ value = "20 GFLOP/s", source = "here" }}
bandwidth = {{ value = "10 GB/s", source = "here" }}
core_bandwidth = {{ value = "6 GB/s", source = "here" }}
launch = {{ value = "20 us", source = "here" }}
operator = {{ value = "2 us", source = "here" }}
busy = {{ value = "8.0 W", source = "here" }}
layouts = ["NCHW", "blocked"]
threads = [1, 4]

[units.cpu.efficiency]
convolution = {{ value = 0.5, source = "here" }}

[units.npu]
kind = "NPU"
peak.int8 = {{ value = "6 TOP/s", source = "sheet" }}
bandwidth = {{ value = "8 GB/s", source = "here" }}
launch = {{ value = "200 us", source = "here" }}
operator = {{ value = "1 us", source = "here" }}
busy = {{ value = "5 W", source = "here" }}
idle = {{ value = "500 mW", source = "here" }}
memory = {{ value = "64 MiB", source = "sheet" }}
border = {{ value = "0.25 ns/B", source = "here" }}
takes = ["int8"]
refuses = ["Resize"]

[[latency]]
model = "{MODEL}"
source = "here"
starts = [0, 12]
shapes = {{ images = [1, 3, 224, 224] }}
unit = "cpu"
layout = "NCHW"
threads = 4
segment_s = [0.001, 0.002]
overhead_s = 2e-5
border_s_per_byte = 1e-10
turn_s_per_byte = 5e-11
error_fraction = 0.03
"""


def changed(old: str, new: str) -> str:
    """The whole file with one text in it replaced."""
    assert WHOLE.count(old) >= 1, old
    return WHOLE.replace(old, new, 1)
