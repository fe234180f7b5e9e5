from __future__ import annotations

import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.config import UnitSettings
from edge_agent.devices import ComputeUnit, Keeping, Layout, RefusedUnit, UnitId, UnitKind
from edge_agent.engine.offers import Candidate, candidates, configured
from edge_agent.engine.runtime import runtime_build, runtime_version
from edge_agent.engine.units import (
    describe_device,
    described,
    find_units,
    finding_as_json,
    judge,
    offered_as_json,
    probe_in_child,
    probe_with,
)
from edge_agent.errors import RuntimeUnavailable
from tests.engine.made_library import Loading, make_library

GPU = ComputeUnit(
    id=UnitId("gpu0"),
    kind=UnitKind.GPU,
    provider="GpuExecutionProvider",
    provider_version="1.0",
    layouts=(Layout.NCHW,),
    cores=0,
    options=(("device", "0"),),
)
SLOW_S = 60
QUICK_S = 5
"""A probe of the processor takes a tenth of it."""
FILE = Path("/etc/edge-agent/config.toml")
CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


def table(unit: str, **settings: object) -> UnitSettings:
    return UnitSettings(id=UnitId(unit), file=FILE, **settings)  # type: ignore[arg-type]


def refusal(provider: str, settings: UnitSettings | None, cores: int = 1) -> RefusedUnit:
    judged = judge(Candidate(provider=provider, settings=settings), cores)
    assert isinstance(judged, RefusedUnit)
    return judged


def child(*before: str, skipping: str = "") -> list[str]:
    """A child that offers a GPU and one more provider, and does `before` unless told to skip."""
    script = [
        "import os, signal, sys, time",
        f"if {skipping!r} in sys.argv[1:]: sys.exit(0)",
        f"print({offered_as_json([Candidate(provider=p) for p in (GPU.provider, 'Bad')])!r})",
        f"print({finding_as_json(GPU.provider, GPU)!r}, flush=True)",
        *before,
    ]
    return [sys.executable, "-c", "\n".join(script)]


def test_the_processor_is_a_unit_with_every_layout() -> None:
    units, refused = find_units(cores=3)
    (cpu,) = (u for u in units if u.provider == "CPUExecutionProvider")
    assert (cpu.id, cpu.kind, cpu.cores) == ("cpu", UnitKind.CPU, 3)
    assert cpu.provider_version == runtime_version()
    assert set(cpu.layouts) == {Layout.NCHW, Layout.NHWC, Layout.BLOCKED}
    assert all(r.reason and r.remedy for r in refused)


def test_azure_and_unknown_providers_are_refused_with_a_reason() -> None:
    azure = judge(Candidate(provider="AzureExecutionProvider"), cores=1)
    assert isinstance(azure, RefusedUnit)
    assert "network" in azure.reason
    unknown = judge(Candidate(provider="NewExecutionProvider"), cores=1)
    assert isinstance(unknown, RefusedUnit)
    assert "does not know" in unknown.reason


def test_a_child_finds_what_we_find() -> None:
    assert probe_in_child(SLOW_S, cores=2) == find_units(cores=2)


def test_a_device_is_described_with_its_units() -> None:
    device = describe_device(processor="P (avx)", cores=(0, 2), memory_bytes=7)
    assert (device.processor, device.cores, device.memory_bytes) == ("P (avx)", (0, 2), 7)
    assert (device.runtime_build, device.runtime_version) == (runtime_build(), runtime_version())
    assert [u.cores for u in device.units if u.id == "cpu"] == [2]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("SIGILL", "instructions that the processor lacks"), ("SIGKILL", "memory")],
)
def test_a_provider_that_kills_the_probe_is_refused_and_the_others_stay(
    name: str, remedy: str
) -> None:
    command = child(f"os.kill(os.getpid(), signal.{name})", skipping="Bad")
    units, (refused,) = probe_with(command, SLOW_S)
    assert units == (GPU,)
    assert (refused.provider, refused.reason) == ("Bad", f"its probe was ended by {name}")
    assert remedy in refused.remedy


def test_a_provider_that_hangs_is_refused() -> None:
    command = child("time.sleep(600)", skipping="Bad")
    units, (refused,) = probe_with(command, 1.0)
    assert units == (GPU,)
    assert refused.reason == "its probe did not end within 1 s"


def test_a_runtime_that_dies_on_import_is_unavailable() -> None:
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"]
    with pytest.raises(RuntimeUnavailable, match="ended by SIGILL on import; this build uses"):
        probe_with(command, SLOW_S)


def test_a_missing_runtime_is_told_by_the_child() -> None:
    line = json.dumps({"unavailable": "ONNX Runtime is not installed; install it"})
    with pytest.raises(RuntimeUnavailable, match="not installed; install it"):
        probe_with([sys.executable, "-c", f"print({line!r})"], SLOW_S)


def test_a_unit_that_is_off_is_told_with_the_key_that_says_so() -> None:
    off = refusal("WebGpuExecutionProvider", table("webgpu", off=True))
    assert (off.unit, off.reason) == ("webgpu", "switched off in the configuration")
    assert off.remedy == f"to use it, remove [units.webgpu] off in {FILE}"


def test_a_name_that_is_no_unit_cannot_be_switched_off() -> None:
    _, refused = find_units(cores=1, units=[table("webgup", off=True), table("tensorrt", off=True)])
    said = {r.unit: r.reason for r in refused if r.unit in ("webgup", "tensorrt")}
    assert said == {
        "webgup": "no provider of that name is installed",
        "tensorrt": "switched off in the configuration",
    }
    (webgup,) = (r for r in refused if r.unit == "webgup")
    assert webgup.remedy == (
        f"correct the name in {FILE}, which is none of cpu, openvino, webgpu, cuda, tensorrt, qnn, "
        "or remove the table: there is nothing to switch off"
    )


def test_a_unit_that_is_off_is_not_loaded(tmp_path: Path) -> None:
    library = make_library(tmp_path / "bad.so", Loading.ILLEGAL)
    off = table("mine", off=True, provider="Mine", library=library, kind=UnitKind.GPU)
    _, refused = find_units(cores=1, units=[off])
    assert [r.reason for r in refused if r.unit == "mine"] == ["switched off in the configuration"]


def test_the_processor_gets_no_more_cores_than_its_table_says() -> None:
    for threads, cores in ((1, 1), (2, 2), (8, 3), (None, 3)):
        units, _ = find_units(cores=3, units=[table("cpu", threads=threads, memory_bytes=9)])
        (cpu,) = (u for u in units if u.id == "cpu")
        assert (cpu.cores, cpu.memory_bytes) == (cores, 9)


def test_a_table_that_fits_nothing_is_told() -> None:
    units, refused = find_units(cores=1, units=[table("openvimo"), table("tensorrt")])
    assert "cpu" in [u.id for u in units]
    typo, missing = (r for r in refused if r.unit in ("openvimo", "tensorrt"))
    assert typo.reason == missing.reason == "no provider of that name is installed"
    assert "correct the name: without them it is one of cpu, openvino, webgpu" in typo.remedy
    assert missing.provider == "TensorrtExecutionProvider"
    assert missing.remedy.endswith(f"or remove [units.tensorrt] from {FILE}")


def test_a_table_takes_the_place_of_what_is_installed() -> None:
    offered = [Candidate(provider=OPENVINO), Candidate(provider=CPU)]
    plugin = Candidate(provider="Mine", library="/in/package.so", package="onnxruntime-mine")
    own = table("mine", provider="Mine", library=Path("/own.so"), kind=UnitKind.NPU)
    second = table("igpu", provider=OPENVINO, options=(("device_type", "GPU"),))
    first = table("openvino")
    assert configured([*offered, plugin], [own, second, first]) == (
        Candidate(provider=OPENVINO, settings=second),
        Candidate(provider=OPENVINO, settings=first),
        Candidate(provider=CPU),
        Candidate(provider="Mine", library="/own.so", settings=own),
    )
    assert configured([*offered, plugin], []) == (*offered, plugin)


def test_a_unit_does_not_take_the_name_of_another() -> None:
    named = refusal("Mine", table("webgpu", provider="Mine", kind=UnitKind.GPU))
    assert named.reason == "webgpu is the unit of WebGpuExecutionProvider"
    assert named.remedy == f"give [units.webgpu] in {FILE} another name"


def test_the_kind_of_an_unknown_provider_must_be_told() -> None:
    assert refusal("New", table("new", provider="New")).remedy == (
        f"give [units.new] kind in {FILE}: CPU, GPU or NPU"
    )
    assert 'a table [units.NAME] with provider = "New"' in refusal("New", None).remedy


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_fails_with_options_names_their_key() -> None:
    given = table("new", options=(("mode", "fast"),), kind=UnitKind.GPU)
    refused = refusal("NewExecutionProvider", given)
    assert refused.reason.startswith("the probe model failed: ")
    assert refused.remedy.startswith(f"change [units.new] options in {FILE}; reinstall ONNX")


def test_options_decide_on_layouts_and_caps_become_options() -> None:
    def unit(provider: str, settings: UnitSettings) -> ComputeUnit:
        candidate = Candidate(provider=provider, settings=settings)
        assert candidate.entry is not None
        return described(candidate, candidate.entry, cores=4)

    cuda = unit("CUDAExecutionProvider", table("cuda", memory_bytes=5, threads=1))
    assert (cuda.cores, cuda.memory_bytes) == (0, 5)
    assert cuda.options == (("gpu_mem_limit", "5"),)
    assert cuda.layouts == (Layout.NCHW, Layout.NHWC)
    nhwc = unit("CUDAExecutionProvider", table("cuda", options=(("prefer_nhwc", "1"),)))
    assert nhwc.layouts == (Layout.NHWC,)
    assert dict(nhwc.use(Layout.NHWC, 0).options) == {"prefer_nhwc": "1"}
    odd = unit("WebGpuExecutionProvider", table("webgpu", options=(("preferredLayout", "X"),)))
    assert odd.layouts == (Layout.NATIVE,)
    assert dict(odd.use(Layout.NATIVE, 0).options) == {"preferredLayout": "X"}
    igpu = table("igpu", provider=OPENVINO, kind=UnitKind.GPU, options=(("device_type", "GPU"),))
    found = unit(OPENVINO, igpu)
    assert (found.id, found.kind, found.cores) == ("igpu", UnitKind.GPU, 0)
    mine = unit("Mine", table("mine", provider="Mine", kind=UnitKind.CPU, threads=3))
    assert (mine.layouts, mine.cores, mine.threads_option) == ((Layout.NATIVE,), 3, "")


@pytest.mark.parametrize(
    ("loading", "reason", "remedy"),
    [
        (Loading.ILLEGAL, "its probe was ended by SIGILL", "instructions that the processor lacks"),
        (Loading.NULL_ACCESS, "its probe was ended by SIGSEGV", "install another version of "),
        pytest.param(
            Loading.WAITS,
            "its probe did not end within 5 s",
            "`probe_s` of [planning]",
            marks=pytest.mark.long,
        ),
        (
            Loading.RETURNS,
            "its library cannot be loaded: Failed to get symbol CreateEpFactories",
            f"correct [units.mine] library in {FILE}",
        ),
    ],
)
def test_a_library_that_is_broken_is_refused_and_the_processor_stays(
    tmp_path: Path, loading: Loading, reason: str, remedy: str
) -> None:
    library = make_library(tmp_path / "broken.so", loading)
    mine = table("mine", provider="MineEP", library=library, kind=UnitKind.NPU)
    units, refused = probe_in_child(QUICK_S, cores=2, units=[mine])
    assert "cpu" in [unit.id for unit in units]
    (found,) = (r for r in refused if r.unit == "mine")
    assert found.provider == "MineEP"
    assert found.reason.startswith(reason)
    assert remedy in found.remedy
    assert f"set [units.mine] off in {FILE} to true" in found.remedy
    assert loading is Loading.RETURNS or loading is Loading.WAITS or str(library) in found.remedy


def test_what_is_no_library_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    tables = [
        table(name, provider=name, library=tmp_path / f"{name}.so", kind=UnitKind.GPU)
        for name in ("gone", "text")
    ]
    units, refused = probe_in_child(QUICK_S, cores=1, units=tables)
    assert "cpu" in [unit.id for unit in units]
    gone, text = (r for r in refused if r.unit in ("gone", "text"))
    assert gone.reason == f"there is no file {tmp_path}/gone.so"
    assert gone.remedy.startswith(f"correct [units.gone] library in {FILE}")
    assert text.reason.startswith("its library cannot be loaded: ")
    assert "file too short" in text.reason
    assert text.remedy.startswith(f"correct [units.text] library in {FILE}")


def test_a_library_for_another_processor_is_told_as_such(tmp_path: Path) -> None:
    other = "aarch64" if platform.machine() != "aarch64" else "x86_64"
    library = make_library(tmp_path / "other.so", Loading.RETURNS, other)
    mine = table("mine", provider="MineEP", library=library, kind=UnitKind.GPU)
    _, refused = find_units(cores=1, units=[mine])
    (found,) = (r for r in refused if r.unit == "mine")
    assert found.reason == f"{library} is made for another kind of processor"
    assert found.remedy.startswith(f"correct [units.mine] library in {FILE}")


@pytest.mark.long
def test_each_of_several_broken_libraries_is_named(tmp_path: Path) -> None:
    tables = [
        table(
            f"u{i}",
            provider=f"P{i}",
            library=make_library(tmp_path / f"{i}.so", loading),
            kind=UnitKind.GPU,
        )
        for i, loading in enumerate([Loading.ILLEGAL, Loading.RETURNS, Loading.NULL_ACCESS])
    ]
    units, refused = probe_in_child(QUICK_S, cores=1, units=tables)
    assert "cpu" in [unit.id for unit in units]
    assert [(r.unit, r.provider) for r in refused if r.unit] == [
        ("u0", "P0"),
        ("u1", "P1"),
        ("u2", "P2"),
    ]


def test_candidates_survive_the_way_to_the_parent() -> None:
    mine = table("mine", provider="Mine", library=Path("/l.so"), kind=UnitKind.NPU, threads=2)
    offered = offered_as_json(candidates([mine]))
    script = f"print({offered!r}, flush=True); import os, sys; '--skip' in sys.argv or os.abort()"
    _, (first, *_) = probe_with([sys.executable, "-c", script], SLOW_S)
    assert first.provider == candidates()[0].provider
    assert first.reason == "its probe was ended by SIGABRT"


def test_the_processor_has_more_time_than_others() -> None:
    offered = offered_as_json([Candidate(provider=CPU)])
    script = f"print({offered!r}, flush=True); import time; time.sleep(1); exit('at last')"
    units, refused = probe_with(
        [sys.executable, "-c", f"import sys; '--skip' in sys.argv and sys.exit(); {script}"], 0.1
    )
    assert units == ()
    assert [r.reason for r in refused] == ["its probe failed: at last"]


def test_a_crash_after_all_is_judged_does_no_harm() -> None:
    offered = offered_as_json([Candidate(provider=GPU.provider)])
    lines = f"print({offered!r}); print({finding_as_json(GPU.provider, GPU)!r}, flush=True)"
    assert probe_with([sys.executable, "-c", f"{lines}; import os; os.abort()"], SLOW_S) == (
        (GPU,),
        (),
    )


def test_a_provider_that_dies_of_what_it_keeps_is_a_unit_that_keeps_nothing() -> None:
    """And the providers behind it are still probed."""
    bad = RefusedUnit(provider="Bad", reason="r", remedy="s")
    script = [
        "import json, os, signal, sys",
        f"print({offered_as_json([Candidate(provider=p) for p in (GPU.provider, 'Bad')])!r})",
        f"gpu = {finding_as_json(GPU.provider, GPU)!r}",
        "if 'GpuExecutionProvider' not in sys.argv:",
        "    print(gpu, flush=True)",
        "    print(json.dumps({'keeping': 'GpuExecutionProvider'}), flush=True)",
        "    os.kill(os.getpid(), signal.SIGABRT)",
        f"print({finding_as_json('Bad', bad)!r})",
    ]
    units, refused = probe_with([sys.executable, "-c", "\n".join(script)], SLOW_S)
    reason = "the probe of what it keeps was ended by SIGABRT"
    assert units == (replace(GPU, keeps_nothing_because=reason),)
    assert refused == (bad,)


def test_what_a_unit_keeps_reaches_the_parent() -> None:
    units, _ = probe_in_child(SLOW_S, cores=1)
    (cpu,) = (u for u in units if u.provider == "CPUExecutionProvider")
    assert (cpu.keeps, cpu.keeps_nothing_because) == (Keeping.GRAPH, "")


def test_each_of_several_devices_of_a_provider_has_a_memory_of_its_own() -> None:
    one = replace(GPU, memory="cuda", options=())
    second = replace(one, options=(("device_id", "1"),))
    assert one.use(Layout.NCHW, 0).memory == "cuda"
    assert second.use(Layout.NCHW, 0).memory == "cuda:1"
    assert replace(second, memory="").use(Layout.NCHW, 0).memory == ""
