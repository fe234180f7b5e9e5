"""How ONNX Runtime is found and imported, and what the installed build accepts.

The only module that imports onnxruntime, and only on request: `runtime_version` and
`runtime_build` read the installed metadata alone, so that a process that runs no model stays small.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType
from typing import Final

from edge_agent.errors import RuntimeUnavailable

_LOG = logging.getLogger(__name__)

BUILDS: Final[Mapping[str, str]] = {
    "onnxruntime": "cpu",
    "onnxruntime-openvino": "openvino",
    "onnxruntime-webgpu": "gpu-npu",
    "onnxruntime-gpu": "cuda",
    "onnxruntime-directml": "",
    "onnxruntime-migraphx": "",
    "onnxruntime-rocm": "",
    "onnxruntime-training": "",
    "ort-nightly": "",
    "ort-nightly-gpu": "",
}
"""Distributions that own the package `onnxruntime`, with the extra of ours that installs each.

Plugin providers (onnxruntime-qnn, ...) are packages of their own and do not exclude these.
"""
CPU: Final = "CPUExecutionProvider"
OLDEST: Final = (1, 24)
NEWEST: Final = (1, 32)
OLDEST_OPSET: Final = 7
"""ONNX Runtime knows the operators of ai.onnx from this version on."""
ERRORS_ONLY: Final = 3
FATAL_ONLY: Final = 4
_CLEARED: Final = ("ORT_", "MLAS_")
_KEPT: Final = "ORT_DISABLE_TELEMETRY"
_INSTALL: Final = "install exactly one: pip install 'edge-agent[cpu]'"


def installed_builds() -> tuple[tuple[str, str], ...]:
    """(distribution, version) of every installed build of ONNX Runtime."""
    found = []
    for name in BUILDS:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _the_build() -> tuple[str, str]:
    builds = installed_builds()
    if not builds:
        raise RuntimeUnavailable(f"ONNX Runtime is not installed; {_INSTALL}")
    if len(builds) > 1:
        names = " and ".join(name for name, _ in builds)
        raise RuntimeUnavailable(
            f"{names} are installed together, but they own the same files; uninstall all of them "
            f"(pip uninstall {' '.join(name for name, _ in builds)}), then {_INSTALL}"
        )
    return builds[0]


def runtime_build() -> str:
    """Distribution name of the one installed ONNX Runtime; imports nothing.

    Raises: RuntimeUnavailable if there is none or more than one.
    """
    return _the_build()[0]


def runtime_version() -> str:
    """Version of the one installed ONNX Runtime; imports nothing.

    Raises: RuntimeUnavailable if there is none or more than one.
    """
    return _the_build()[1]


def load_runtime() -> ModuleType:
    """The module `onnxruntime`, imported without telemetry and deaf to the environment.

    Since 1.29 its wheels collect telemetry unless ORT_DISABLE_TELEMETRY is set before the import.
    Other variables of its own configure sessions behind our back (threads, options from the model
    file, kernels), so they are removed.

    Raises: RuntimeUnavailable if no build, several builds, or a broken build is installed.
    """
    for name in [n for n in os.environ if n.startswith(_CLEARED) and n != _KEPT]:
        del os.environ[name]
    if "onnxruntime" in sys.modules:
        return sys.modules["onnxruntime"]
    os.environ[_KEPT] = "1"
    build, version = _the_build()
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise RuntimeUnavailable(
            f"{build} {version} cannot be imported: {error}; reinstall it "
            f"(pip install --force-reinstall {build})"
        ) from error
    runtime.set_default_logger_severity(ERRORS_ONLY)
    _warn_of_an_untried(version)
    return runtime


def is_tried(version: str) -> bool:
    """Whether edge-agent was tried with that version of ONNX Runtime."""
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return False
    return OLDEST <= (major, minor) <= NEWEST


def _warn_of_an_untried(version: str) -> None:
    if not is_tried(version):
        _LOG.warning(
            "ONNX Runtime %s was never tried with edge-agent; tried are %d.%d to %d.%d",
            version,
            *OLDEST,
            *NEWEST,
        )


def runtime_errors() -> tuple[type[Exception], ...]:
    """Every class of exception that ONNX Runtime raises for a model, its options or its inputs.

    Its own classes share no base but Exception, and the bindings add three of Python's.
    """
    own = (v for v in vars(_bindings()).values() if isinstance(v, type))
    return (*(v for v in own if issubclass(v, Exception)), RuntimeError, ValueError, TypeError)


def _bindings() -> ModuleType:
    load_runtime()
    return importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
