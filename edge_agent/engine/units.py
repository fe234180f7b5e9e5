"""Which execution providers become compute units, and how each proves that it really computes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_agent.devices import ComputeUnit, Device, Layout, RefusedUnit, UnitId, UnitKind
from edge_agent.engine.aside import opens_aside
from edge_agent.engine.refusals import reason_of
from edge_agent.engine.runtime import (
    load_runtime,
    runtime_build,
    runtime_errors,
    runtime_version,
)
from edge_agent.engine.tiny import one_node_model
from edge_agent.errors import RuntimeUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProvider:
    """How one execution provider becomes a compute unit."""

    provider: str
    unit: UnitId
    kind: UnitKind
    layouts: tuple[Layout, ...]
    runs_on_host_cores: bool


PROVIDERS: Final[tuple[KnownProvider, ...]] = (
    KnownProvider(
        provider="CPUExecutionProvider",
        unit=UnitId("cpu"),
        kind=UnitKind.CPU,
        layouts=(Layout.NCHW, Layout.NHWC, Layout.BLOCKED),
        runs_on_host_cores=True,
    ),
)
"""The providers that become units: to add one, add its entry."""

REFUSALS: Final[Mapping[str, tuple[str, str]]] = {
    "AzureExecutionProvider": (
        "it sends tensors to a service on the network and runs nothing here",
        "nothing to do: models run on this device",
    ),
}
"""(reason, remedy) of providers that never become units."""

_SIDE: Final = 16


def offered_providers() -> tuple[str, ...]:
    """Names of the providers that the installed ONNX Runtime offers, in its order."""
    return tuple(load_runtime().get_available_providers())


def find_units(
    cores: int, skip: Collection[str] = ()
) -> tuple[tuple[ComputeUnit, ...], tuple[RefusedUnit, ...]]:
    """The units that work, and the providers that are offered but not used, without `skip`.

    Runs a probe model in this process, which a broken provider may kill: see `probe_in_child`.

    Raises: RuntimeUnavailable.
    """
    found = [judge(name, cores) for name in offered_providers() if name not in skip]
    return (
        tuple(f for f in found if isinstance(f, ComputeUnit)),
        tuple(f for f in found if isinstance(f, RefusedUnit)),
    )


def judge(provider: str, cores: int) -> ComputeUnit | RefusedUnit:
    """The compute unit of an offered provider, or why it is none."""
    if provider in REFUSALS:
        reason, remedy = REFUSALS[provider]
        return RefusedUnit(provider=provider, reason=reason, remedy=remedy)
    known = next((k for k in PROVIDERS if k.provider == provider), None)
    if known is None:
        return RefusedUnit(
            provider=provider,
            reason="edge-agent does not know this provider yet",
            remedy="nothing to do: models run on the other units",
        )
    if reason := _failure_of_probe(provider):
        return RefusedUnit(
            provider=provider,
            reason=reason,
            remedy="reinstall ONNX Runtime, or another version between 1.24 and 1.32",
        )
    return ComputeUnit(
        id=known.unit,
        kind=known.kind,
        provider=provider,
        provider_version=runtime_version(),
        layouts=known.layouts,
        cores=cores if known.runs_on_host_cores else 0,
        # Of others it is not known what else two epochs in one process would do to each other.
        opens_aside=known.kind is UnitKind.CPU and opens_aside(provider),
    )


def _failure_of_probe(provider: str) -> str:
    """Why the provider does not compute a matrix product, or "" if it does."""
    runtime = load_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model = one_node_model("MatMul", opset=13, inputs=("x", "w"), shape=(_SIDE, _SIDE))
    # Small whole numbers: every order of additions gives the same float32.
    x = np.arange(_SIDE * _SIDE, dtype=np.float32).reshape(_SIDE, _SIDE) % 7
    w = x.T.copy()
    try:
        session = runtime.InferenceSession(model, options, providers=[provider], enable_fallback=0)
        (y,) = session.run(["y"], {"x": x, "w": w})
    except runtime_errors() as error:
        return f"the probe model failed: {reason_of(error)}"
    if not np.array_equal(y, x @ w):
        return "the probe model gave a wrong matrix product"
    elsewhere = _providers_that_ran(session) - {provider}
    return f"the probe model ran on {', '.join(sorted(elsewhere))} instead" if elsewhere else ""


def _providers_that_ran(session: Any) -> set[str]:
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    return {part.ep_name for part in ask()} if ask else set()


def describe_device(
    *, processor: str, cores: tuple[int, ...], memory_bytes: int, timeout_s: float = 60.0
) -> Device:
    """This device with the units that a child process proved; imports no ONNX Runtime itself.

    Raises: RuntimeUnavailable.
    """
    build, version = runtime_build(), runtime_version()
    units, refused = probe_in_child(timeout_s, cores=len(cores))
    return Device(
        hostname=socket.gethostname(),
        processor=processor,
        cores=cores,
        memory_bytes=memory_bytes,
        runtime_version=version,
        runtime_build=build,
        units=units,
        refused=refused,
    )


def probe_in_child(
    timeout_s: float, *, cores: int
) -> tuple[tuple[ComputeUnit, ...], tuple[RefusedUnit, ...]]:
    """`find_units` in child processes of at most `timeout_s` seconds each.

    A provider that crashes or hangs its child is refused, and another child probes the rest.

    Raises: RuntimeUnavailable if ONNX Runtime itself cannot be imported.
    """
    command = [sys.executable, "-m", "edge_agent.engine.probe", "--cores", str(cores)]
    return probe_with(command, timeout_s)


def probe_with(
    command: list[str], timeout_s: float
) -> tuple[tuple[ComputeUnit, ...], tuple[RefusedUnit, ...]]:
    """`probe_in_child` with the command that runs a child; it is given `--skip PROVIDER` ..."""
    found: dict[str, ComputeUnit | RefusedUnit] = {}
    while True:
        end, lines = _run_child([*command, *_skipping(found)], timeout_s)
        offered: list[str] = []
        for line in lines:
            offered = line.get("offered", offered)
            if "unavailable" in line:
                raise RuntimeUnavailable(line["unavailable"])
            found.update((f.provider, f) for f in _findings(line))
        if end is None:
            break
        culprit = next((name for name in offered if name not in found), None)
        if culprit is None:
            raise RuntimeUnavailable(f"ONNX Runtime {end[0]} on import; {end[1]}")
        found[culprit] = RefusedUnit(provider=culprit, reason=f"its probe {end[0]}", remedy=end[1])
    return (
        tuple(f for f in found.values() if isinstance(f, ComputeUnit)),
        tuple(f for f in found.values() if isinstance(f, RefusedUnit)),
    )


def _skipping(found: Collection[str]) -> Iterator[str]:
    for provider in found:
        yield from ("--skip", provider)


def _run_child(
    command: list[str], timeout_s: float
) -> tuple[tuple[str, str] | None, list[dict[str, Any]]]:
    """(what went wrong and its remedy, or None; the lines that the child wrote)."""
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        return _too_slow(timeout_s), _lines(error.stdout or b"")
    return _end_of(child.returncode, child.stderr), _lines(child.stdout)


def _too_slow(timeout_s: float) -> tuple[str, str]:
    return (
        f"did not end within {timeout_s:g} s",
        "update the driver of this unit, or restart the device",
    )


_REMEDIES: Final[Mapping[int, str]] = {
    signal.SIGILL: "this build uses instructions that the processor lacks: "
    "install another version of ONNX Runtime between 1.24 and 1.32",
    signal.SIGKILL: "the system ended it, most likely for want of memory: free some",
}


def _end_of(code: int, stderr: bytes) -> tuple[str, str] | None:
    if code == 0:
        return None
    if code < 0:
        remedy = _REMEDIES.get(-code, "reinstall ONNX Runtime, or update the driver of this unit")
        return f"was ended by {signal.Signals(-code).name}", remedy
    last = stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"failed: {''.join(last)}", "reinstall ONNX Runtime"


def _lines(output: bytes) -> list[dict[str, Any]]:
    lines = []
    for raw in output.splitlines():
        # A library that writes to stdout, or a line cut off by a crash, is no finding.
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


def finding_as_json(finding: ComputeUnit | RefusedUnit) -> str:
    """One line for `probe_with` to read."""
    if isinstance(finding, RefusedUnit):
        fields = {"reason": finding.reason, "remedy": finding.remedy}
        return json.dumps({"refused": {"provider": finding.provider, **fields}})
    unit = {
        "id": finding.id,
        "kind": finding.kind,
        "provider": finding.provider,
        "provider_version": finding.provider_version,
        "layouts": finding.layouts,
        "cores": finding.cores,
        "options": finding.options,
        "opens_aside": finding.opens_aside,
    }
    return json.dumps({"unit": unit})


def _findings(line: Mapping[str, Any]) -> Iterator[ComputeUnit | RefusedUnit]:
    if "refused" in line:
        yield RefusedUnit(**line["refused"])
    if "unit" in line:
        fields = line["unit"]
        yield ComputeUnit(
            id=UnitId(fields["id"]),
            kind=UnitKind(fields["kind"]),
            provider=fields["provider"],
            provider_version=fields["provider_version"],
            layouts=tuple(Layout(layout) for layout in fields["layouts"]),
            cores=fields["cores"],
            options=tuple((key, value) for key, value in fields["options"]),
            opens_aside=fields["opens_aside"],
        )
