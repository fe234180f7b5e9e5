from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import onnx
import pytest

from edge_agent.engine import runtime
from edge_agent.engine.refusals import reason_of
from edge_agent.engine.tiny import one_node_model
from edge_agent.errors import RuntimeUnavailable


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions that is the only one on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_the_installed_build_is_told_without_importing_it() -> None:
    code = (
        "import sys; from edge_agent.engine import runtime, units, session; "
        "print(runtime.runtime_build(), runtime.runtime_version(), 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    build = runtime.runtime_build()
    assert done.stdout.split() == [build, metadata.version(build), "False"]


def test_no_runtime_says_what_to_install(distributions: Path) -> None:
    assert list(distributions.iterdir()) == []
    with pytest.raises(RuntimeUnavailable, match=r"not installed.*pip install 'edge-agent\[cpu\]'"):
        runtime.runtime_version()


def test_two_builds_are_refused_by_name(distributions: Path) -> None:
    install(distributions, "onnxruntime", "1.27.0")
    install(distributions, "onnxruntime-openvino", "1.27.0")
    with pytest.raises(
        RuntimeUnavailable, match=r"onnxruntime and onnxruntime-openvino.*uninstall"
    ):
        runtime.runtime_build()


def test_a_plugin_provider_does_not_count_as_a_build(distributions: Path) -> None:
    install(distributions, "onnxruntime", "1.27.0")
    install(distributions, "onnxruntime-qnn", "2.0.0")
    assert runtime.installed_builds() == (("onnxruntime", "1.27.0"),)


def test_a_tiny_model_is_what_onnx_would_write() -> None:
    model = onnx.load_from_string(
        one_node_model("MatMul", opset=13, inputs=("x", "w"), shape=(16, 300))
    )
    onnx.checker.check_model(model)
    (node,) = model.graph.node
    assert (node.op_type, list(node.input), list(node.output)) == ("MatMul", ["x", "w"], ["y"])
    dims = model.graph.input[1].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [16, 300]
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 13)]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/graph/model.cc:256 "
            "onnxruntime::Model::Model(onnx::ModelProto&&, const PathString&) Unsupported version",
            "Unsupported version",
        ),
        (
            "/onnxruntime_src/onnxruntime/python/state.cc:3113 onnxruntime::python::add(pybind11::"
            "module&, Fn)::<lambda(const Options&, bool)> use_per_session_threads must be false",
            "use_per_session_threads must be false",
        ),
        (
            "/onnxruntime_src/onnxruntime/core/providers/webgpu/webgpu_context.cc:78 virtual void "
            "onnxruntime::webgpu::WebGpuContext::Initialize(const Config&) adapter != nullptr was "
            "false. Failed to get a WebGPU adapter.\n",
            "Failed to get a WebGPU adapter.",
        ),
        (
            "/s/onnxruntime/core/a.cc:12 void onnxruntime::f(int) size > 0 was false. ",
            "size > 0 was false.",
        ),
        (
            "/onnxruntime_src/onnxruntime/core/session/bridge.cc:1978 onnxruntime::Provider& "
            "onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load "
            "library a.so",
            "Failed to load library a.so",
        ),
        ("the flag was false. Set it.", "the flag was false. Set it."),
        (
            "Error in execution: Got invalid dimensions for input: x\n index: 0 Got: 3\n\n",
            "Got invalid dimensions for input: x; index: 0 Got: 3",
        ),
        ("Load model from /home/a/m.onnx failed: see /Conv_0 (x)", "see /Conv_0 (x)"),
        ("Load model from /home/a/m.onnx failed:Load model /home/a/m.onnx failed. No such file",
         "No such file"),
        ("/home/a/m.onnx lacks /home/a/w.bin", "it lacks w.bin"),
    ],
)  # fmt: skip
def test_reasons_lose_prefixes_sources_and_folders(raw: str, reason: str) -> None:
    assert reason_of(RuntimeError(raw), Path("/home/a/m.onnx")) == reason


WATCHED_RUN = """
import os, sys, threading
from pathlib import Path
import numpy as np, psutil
def look():
    sockets = [f for f in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{f}")
               and os.readlink(f"/proc/self/fd/{f}").startswith("socket:")]
    return set(os.listdir("/proc/self/task")), sockets, psutil.Process().net_connections()
before = look()
from edge_agent.engine.session import OptimisationLevel, Session
session = Session.open(Path(sys.argv[1]), threads=2, level=OptimisationLevel.ALL)
y = session.run({"x": np.zeros((1, 3, 32, 32), np.float32)}, ["y"])["y"]
after = look()
print(y.shape, len(after[0] - before[0]), after[1], after[2])
kept = sorted(n for n in os.environ if n.startswith("ORT_"))
print(kept)
"""


def test_importing_and_running_leave_no_file_thread_or_connection(
    convnet: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment |= {"HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    environment |= {"ORT_LOAD_CONFIG_FROM_MODEL": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-B", "-c", WATCHED_RUN, str(convnet)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=home
    )
    ran, kept = done.stdout.splitlines()
    assert ran == "(1, 10) 1 [] []"
    assert kept == "['ORT_DISABLE_TELEMETRY']"
    assert list(home.rglob("*")) == []
    assert done.stderr == ""
