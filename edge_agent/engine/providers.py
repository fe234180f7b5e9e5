"""The execution providers that become compute units: to add one, add its entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.devices import Keeping, Layout, UnitId, UnitKind
from edge_agent.engine.plugins import plugin_module
from edge_agent.engine.runtime import CPU

Options = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProvider:
    """How one execution provider becomes a compute unit."""

    provider: str
    unit: UnitId
    kind: UnitKind
    layouts: Mapping[Layout, Options]
    """With the options of the provider that give each."""
    runs_on_host_cores: bool = False
    options: Callable[[], Options] = dict
    """What it is opened with in any case."""
    config_prefix: str = ""
    """If it reads options from the session's configuration and ignores those that a provider is
    given, how their keys begin there."""
    threads_option: str = ""
    """Which of its options says how many processor threads it may use, if it has threads."""
    memory: str = ""
    """As in `ProviderUse`."""
    takes_open_dimensions: bool = True
    """Whether it takes graphs whose dimensions are not all fixed."""
    takes_floats: bool = True
    """Whether it computes in float32; else only what is quantised."""
    memory_option: str = ""
    """Which of its options says how many bytes of its memory it may use, if it has one."""
    keeps: Keeping = Keeping.GRAPH
    """Which form to try, so that opening a graph again is quick. The option `cache_dir` of
    OpenVINO is none of them: on its CPU device, opening DenseNet-121 was no quicker with a cache
    that was there (six in turn on a busy machine, 1.24.1: at best 1.11 s, without 1.15 s, for
    0.63 s and 0.57 s of processor)."""
    remedy: str = "reinstall ONNX Runtime, or another version between 1.24 and 1.32"
    """What to do if it does not work."""


def _qnn_options() -> Options:
    found: dict[str, str] = {}
    package: Any = plugin_module("onnxruntime-qnn")
    if package is not None and hasattr(package, "get_qnn_htp_path"):
        found["backend_path"] = package.get_qnn_htp_path()
    return found


PROVIDERS: Final[tuple[KnownProvider, ...]] = (
    KnownProvider(
        provider=CPU,
        unit=UnitId("cpu"),
        kind=UnitKind.CPU,
        layouts={Layout.NCHW: {}, Layout.NHWC: {}, Layout.BLOCKED: {}},
        runs_on_host_cores=True,
    ),
    KnownProvider(
        provider="OpenVINOExecutionProvider",
        unit=UnitId("openvino"),
        kind=UnitKind.CPU,
        layouts={Layout.NATIVE: {}},
        runs_on_host_cores=True,
        options=lambda: {"device_type": "CPU"},
        threads_option="num_of_threads",
        keeps=Keeping.CONTEXT,
        remedy="install the version of openvino that this build wants, or reinstall "
        "onnxruntime-openvino",
    ),
    KnownProvider(
        provider="WebGpuExecutionProvider",
        unit=UnitId("webgpu"),
        kind=UnitKind.GPU,
        layouts={
            Layout.NCHW: {"preferredLayout": "NCHW"},
            Layout.NHWC: {"preferredLayout": "NHWC"},
        },
        config_prefix="ep.webgpuexecutionprovider.",
        memory="webgpu",
        remedy="install a Vulkan driver and loader (libvulkan.so.1) for this GPU; "
        "VK_ICD_FILENAMES may name the driver",
    ),
    KnownProvider(
        provider="CUDAExecutionProvider",
        unit=UnitId("cuda"),
        kind=UnitKind.GPU,
        layouts={Layout.NCHW: {"prefer_nhwc": "0"}, Layout.NHWC: {"prefer_nhwc": "1"}},
        memory="cuda",
        memory_option="gpu_mem_limit",
        remedy="install the CUDA and cuDNN versions that this build of onnxruntime-gpu wants, and "
        "a driver for them",
    ),
    KnownProvider(
        provider="TensorrtExecutionProvider",
        unit=UnitId("tensorrt"),
        kind=UnitKind.GPU,
        layouts={Layout.NATIVE: {}},
        keeps=Keeping.CONTEXT,
        remedy="install the TensorRT version that this build of onnxruntime-gpu wants",
    ),
    KnownProvider(
        provider="QNNExecutionProvider",
        unit=UnitId("qnn"),
        kind=UnitKind.NPU,
        layouts={Layout.NATIVE: {}},
        options=_qnn_options,
        takes_open_dimensions=False,
        takes_floats=False,
        keeps=Keeping.CONTEXT,
        remedy="reinstall onnxruntime-qnn, or the driver of the NPU",
    ),
)

REFUSALS: Final[Mapping[str, tuple[str, str]]] = {
    "AzureExecutionProvider": (
        "it sends tensors to a service on the network and runs nothing here",
        "nothing to do: models run on this device",
    ),
}
"""(reason, remedy) of providers that never become units."""


def known_provider(provider: str) -> KnownProvider | None:
    """The entry of a provider, if there is one."""
    return next((known for known in PROVIDERS if known.provider == provider), None)


def known_unit(unit: UnitId) -> KnownProvider | None:
    """The entry whose unit has that id, if there is one."""
    return next((known for known in PROVIDERS if known.unit == unit), None)


def unknown_provider(provider: str, unit: UnitId, kind: UnitKind) -> KnownProvider:
    """How a provider without an entry becomes a unit that the config file describes."""
    return KnownProvider(
        provider=provider,
        unit=unit,
        kind=kind,
        layouts={Layout.NATIVE: {}},
        runs_on_host_cores=kind is UnitKind.CPU,
    )
