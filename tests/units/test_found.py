from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from edge_agent.config import UnitSettings
from edge_agent.devices import ComputeUnit, Layout, RefusedUnit, UnitId, UnitKind
from edge_agent.engine.plugins import plugin_module
from edge_agent.engine.runtime import runtime_version
from edge_agent.engine.units import find_units, probe_in_child
from tests.units.conftest import PROBE_S, Found

NATIVE = {Layout.NATIVE}
BOTH = {Layout.NCHW, Layout.NHWC}
KNOWN = {
    "cpu": (UnitKind.CPU, "CPUExecutionProvider", BOTH | {Layout.BLOCKED}),
    "openvino": (UnitKind.CPU, "OpenVINOExecutionProvider", NATIVE),
    "webgpu": (UnitKind.GPU, "WebGpuExecutionProvider", BOTH),
    "cuda": (UnitKind.GPU, "CUDAExecutionProvider", BOTH),
    "tensorrt": (UnitKind.GPU, "TensorrtExecutionProvider", NATIVE),
    "qnn": (UnitKind.NPU, "QNNExecutionProvider", NATIVE),
}
PLUGINS = {"qnn": "onnxruntime-qnn"}
OPTIONAL = {"tensorrt"}
"""Comes with the build for CUDA, but works only where NVIDIA's libraries for it are installed."""

FILE = Path("/etc/edge-agent/config.toml")

Unit = Callable[[str], ComputeUnit]


def outcome(found: Found) -> tuple[set[str], dict[str, RefusedUnit]]:
    """(ids of the units, refusals by provider)."""
    return {u.id for u in found[0]}, {r.provider: r for r in found[1]}


def test_exactly_the_expected_units_are_found(found: Found, expected: frozenset[str]) -> None:
    if not expected:
        pytest.skip("nobody said which units are expected here: tools/testbed units does")
    ids, refused = outcome(found)
    assert ids - (OPTIONAL - expected) == expected, refused


@pytest.mark.parametrize("name", KNOWN)
def test_a_unit_has_its_kind_provider_layouts_and_version(unit: Unit, name: str) -> None:
    one = unit(name)
    assert (one.kind, one.provider, set(one.layouts)) == KNOWN[name]
    is_plugin = name in PLUGINS
    version = metadata.version(PLUGINS[name]) if is_plugin else runtime_version()
    assert (one.provider_version, bool(one.library)) == (version, is_plugin)


def test_a_gpu_without_its_driver_is_refused_and_the_others_stay(
    unit: Unit, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit("webgpu")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "missing.json"))
    monkeypatch.delenv("VK_DRIVER_FILES", raising=False)
    ids, refused = outcome(probe_in_child(PROBE_S, cores=2))
    assert ids == outcome(found)[0] - {"webgpu"}
    assert "No supported adapters" in refused["WebGpuExecutionProvider"].reason
    assert "install a Vulkan driver" in refused["WebGpuExecutionProvider"].remedy


def test_an_npu_without_its_backend_is_refused_and_the_others_stay(
    unit: Unit, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider then takes no node, and ONNX Runtime would run the model on the processor."""
    put_package(tmp_path, library=unit("qnn").library, backend=tmp_path / "missing.so")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ids, refused = outcome(probe_in_child(PROBE_S, cores=2))
    assert ids == outcome(found)[0] - {"qnn"}
    reason = refused["QNNExecutionProvider"].reason
    assert "the provider left it to the processor: " in reason
    assert f"{tmp_path}/missing.so: cannot open shared object file" in reason
    assert "reinstall onnxruntime-qnn" in refused["QNNExecutionProvider"].remedy


def test_a_plugin_that_cannot_be_loaded_is_refused_and_the_others_stay(
    unit: Unit, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit("qnn")
    put_package(tmp_path, library=str(tmp_path / "missing.so"), backend=Path("any.so"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ids, refused = outcome(probe_in_child(PROBE_S, cores=2))
    assert ids == outcome(found)[0] - {"qnn"}
    assert "missing.so" in refused["QNNExecutionProvider"].reason


def put_package(folder: Path, *, library: str, backend: Path) -> None:
    """A package of the provider for QNN that names these files; it hides the installed one."""
    (folder / "onnxruntime_qnn.py").write_text(
        f"def get_ep_names(): return ['QNNExecutionProvider']\n"
        f"def get_library_path(): return {library!r}\n"
        f"def get_qnn_htp_path(): return {str(backend)!r}\n"
    )
    described = folder / "onnxruntime_qnn-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-qnn\nVersion: 0\n"
    )


def test_the_emulated_npu_is_the_one_that_its_package_names(unit: Unit) -> None:
    options = dict(unit("qnn").options)
    package = plugin_module("onnxruntime-qnn")
    assert package is not None
    assert options == {"backend_path": package.get_qnn_htp_path()}


def openvino_with(*options: tuple[str, str], threads: int | None = None) -> UnitSettings:
    return UnitSettings(id=UnitId("openvino"), file=FILE, options=options, threads=threads)


def test_options_reach_the_provider_and_override_ours(unit: Unit) -> None:
    unit("openvino")
    settings = openvino_with(("num_of_threads", "1"), ("precision", "FP32"), threads=1)
    units, _ = find_units(cores=2, units=[settings])
    (openvino,) = (u for u in units if u.id == "openvino")
    assert openvino.cores == 1
    given = dict(openvino.use(openvino.layouts[0], 2).options)
    assert given == {"device_type": "CPU", "num_of_threads": "1", "precision": "FP32"}


def test_an_option_that_the_provider_refuses_is_told_with_its_reason(unit: Unit) -> None:
    unit("openvino")
    units, refused = find_units(cores=1, units=[openvino_with(("nonsense", "1"))])
    assert [unit.id for unit in units] == ["cpu"]
    (openvino,) = (r for r in refused if r.unit == "openvino")
    assert openvino.reason == "the probe model failed: Invalid OpenVINO EP option: nonsense"
    assert openvino.remedy.startswith(f"change [units.openvino] options in {FILE}; install the")


def test_options_that_a_gpu_reads_from_the_session_reach_it(unit: Unit) -> None:
    unit("webgpu")
    settings = UnitSettings(id=UnitId("webgpu"), file=FILE, options=(("validationMode", "odd"),))
    units, refused = find_units(cores=1, units=[settings])
    assert "webgpu" not in {unit.id for unit in units}
    (webgpu,) = (r for r in refused if r.unit == "webgpu")
    assert "Invalid validation mode: odd" in webgpu.reason
    assert webgpu.remedy.startswith(f"change [units.webgpu] options in {FILE}; ")
