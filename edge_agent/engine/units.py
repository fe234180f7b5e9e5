"""Which execution providers become compute units, and how each proves that it really computes."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from edge_agent.config import UnitSettings, encode_units
from edge_agent.devices import ComputeUnit, Device, Layout, RefusedUnit, UnitKind
from edge_agent.engine import remedies
from edge_agent.engine.aside import opens_aside
from edge_agent.engine.asking import Heard, Line, hear
from edge_agent.engine.compiled_form import with_keeping
from edge_agent.engine.listening import listening
from edge_agent.engine.offers import Candidate, candidates, fault_of, is_unknown
from edge_agent.engine.placing import create, record, recorded
from edge_agent.engine.plugins import devices_of, register
from edge_agent.engine.providers import REFUSALS, KnownProvider, known_provider
from edge_agent.engine.refusals import is_not_whole, reason_of
from edge_agent.engine.runtime import (
    CPU,
    ERRORS_ONLY,
    load_runtime,
    runtime_build,
    runtime_errors,
    runtime_version,
)
from edge_agent.engine.tiny import one_node_model, quantised_model
from edge_agent.errors import RuntimeUnavailable

_SIDE: Final = 16
_LOGGED: Final = re.compile(r".*\[E:onnxruntime:[^]]*\] (?P<text>[^\x1b]*)")
"""A line of ONNX Runtime's log that tells of an error."""
_STEP: Final = 2.0
"""Of the quantised outputs."""
_NEEDED_S: Final = 60.0
"""For what there is no doing without, ONNX Runtime and the processor: on a busy device, a process
that gives way to others may take long to begin."""


def find_units(
    cores: int, skip: Collection[str] = (), units: Sequence[UnitSettings] = ()
) -> tuple[tuple[ComputeUnit, ...], tuple[RefusedUnit, ...]]:
    """The units that work, and the providers that are there but not used, without `skip`.

    Loads libraries and runs a probe model in this process, which a broken provider may kill: see
    `probe_in_child`.

    Raises: RuntimeUnavailable.
    """
    found = [judge(c, cores) for c in candidates(units) if c.name not in skip]
    return (
        tuple(with_keeping(f) for f in found if isinstance(f, ComputeUnit)),
        tuple(f for f in found if isinstance(f, RefusedUnit)),
    )


def judge(candidate: Candidate, cores: int) -> ComputeUnit | RefusedUnit:
    """The compute unit of a provider, or why it is none."""
    table = candidate.settings
    if table is not None and table.off and not is_unknown(candidate):
        remedy = f"to use it, remove {table.key('off')}"
        return _refused(candidate, "switched off in the configuration", remedy)
    if candidate.provider in REFUSALS:
        return _refused(candidate, *REFUSALS[candidate.provider])
    if fault := fault_of(candidate):
        return _refused(candidate, fault, remedies.after_fault(candidate))
    known = candidate.entry
    assert known is not None
    if reason := _failure_of_library(candidate):
        return _refused(candidate, reason, remedies.after_failure(candidate))
    unit = described(candidate, known, cores)
    reason = _failure_in_any_layout(unit)
    if reason and unit.kind is UnitKind.NPU and known_provider(candidate.provider) is None:
        # Of an NPU that we do not know, only trying tells whether it computes in float32.
        quantised = replace(unit, takes_floats=False)
        if not _failure_in_any_layout(quantised):
            unit, reason = quantised, ""
    if reason:
        return _refused(candidate, reason, remedies.after_failure(candidate))
    # Of others it is not known what else two epochs in one process would do to each other.
    return replace(unit, opens_aside=unit.provider == CPU and opens_aside(unit.provider))


def _refused(candidate: Candidate, reason: str, remedy: str) -> RefusedUnit:
    return RefusedUnit(
        provider=candidate.provider, reason=reason, remedy=remedy, unit=candidate.unit
    )


def described(candidate: Candidate, known: KnownProvider, cores: int) -> ComputeUnit:
    """The unit that a candidate would be by its entry and its table, before it is tried."""
    table = candidate.settings or UnitSettings(id=known.unit, file=Path())
    kind = table.kind or known.kind
    given = dict(table.options)
    options = dict(known.options())
    if known.memory_option and table.memory_bytes is not None:
        options[known.memory_option] = str(table.memory_bytes)
    layouts = _layouts_left(known, given)
    has_options = any(layouts.values())
    is_on_host = known.runs_on_host_cores and kind is UnitKind.CPU
    return ComputeUnit(
        id=table.id,
        kind=kind,
        provider=candidate.provider,
        provider_version=_version(candidate),
        layouts=tuple(layouts),
        cores=min(cores, table.threads or cores) if is_on_host else 0,
        options=tuple(sorted((options | given).items())),
        layout_options=tuple(tuple(sorted(layouts[x].items())) for x in layouts)
        if has_options
        else (),
        threads_option="" if known.threads_option in given else known.threads_option,
        library=candidate.library,
        memory=known.memory,
        memory_bytes=table.memory_bytes or 0,
        takes_open_dimensions=known.takes_open_dimensions,
        takes_floats=known.takes_floats,
    )


def _layouts_left(
    known: KnownProvider, given: Mapping[str, str]
) -> Mapping[Layout, Mapping[str, str]]:
    """The layouts that options from the config file leave to choose from."""
    left = {
        layout: options
        for layout, options in known.layouts.items()
        if all(given.get(name, value) == value for name, value in options.items())
    }
    return left or {Layout.NATIVE: {}}


def _version(candidate: Candidate) -> str:
    """What files compiled for the provider are valid for: of a library that the config file names,
    also when it was written."""
    if not candidate.library or candidate.package:
        return candidate.version or runtime_version()
    written = datetime.fromtimestamp(Path(candidate.library).stat().st_mtime, UTC)
    told = (device.ep_metadata.get("version", "") for device in devices_of(candidate.provider))
    return f"{next(told, '')} of {written:%Y-%m-%dT%H:%M:%SZ}".lstrip()


def _failure_of_library(candidate: Candidate) -> str:
    """Why the library of a plugin provider cannot be used, or ""; loads it."""
    if not candidate.library:
        return ""
    try:
        register(candidate.provider, candidate.library)
    except runtime_errors() as error:
        return f"its library cannot be loaded: {reason_of(error)}"
    return ""


def _failure_in_any_layout(unit: ComputeUnit) -> str:
    tried = unit.layouts if unit.layout_options else unit.layouts[:1]
    return next(filter(None, (_failure_of_probe(unit, layout) for layout in tried)), "")


def _failure_of_probe(unit: ComputeUnit, layout: Layout) -> str:
    """Why the unit does not compute a matrix product, or "" if it does, all by itself."""
    # Small whole numbers: every order of additions gives the same float32.
    x = np.arange(_SIDE * _SIDE, dtype=np.float32).reshape(_SIDE, _SIDE) % 7
    w = x.T % 5
    if unit.takes_floats:
        model = one_node_model("MatMul", opset=13, inputs=("x", "w"), shape=(_SIDE, _SIDE))
        feeds, tolerance = {"x": x, "w": w.copy()}, 0.0
    else:
        model = quantised_model(_SIDE, w.astype(np.uint8).tobytes(), _STEP)
        feeds, tolerance = {"x": x}, _STEP
    options = load_runtime().SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = 1
    record(options)
    use = unit.use(layout, 1)
    failure: Exception | None = None
    with listening() as heard:
        try:
            session = create(model, options, use)
            (y,) = session.run(["y"], feeds)
        except runtime_errors() as error:
            failure = error
    if failure is not None:
        return f"the probe model failed: {_reason_with(failure, heard.text)}"
    if np.abs(y - x @ w).max() > tolerance:
        return "the probe model gave a wrong matrix product"
    elsewhere = set(recorded(session)) - {use.provider}
    return f"the probe model ran on {', '.join(sorted(elsewhere))} instead" if elsewhere else ""


def _reason_with(failure: Exception, said: str) -> str:
    """Why a provider failed; where it was only left out, what it `said` when it was loaded."""
    reason = reason_of(failure)
    if not is_not_whole(reason):
        return reason
    found = (_LOGGED.match(line) for line in said.splitlines())
    errors = (line["text"] for line in found if line and not is_not_whole(line["text"]))
    first = next(errors, None)
    because = "it does not say why" if first is None else reason_of(RuntimeError(first))
    return f"the provider left it to the processor: {because}"


def describe_device(
    *,
    processor: str,
    cores: tuple[int, ...],
    memory_bytes: int,
    units: Sequence[UnitSettings] = (),
    timeout_s: float = 60.0,
) -> Device:
    """This device with the units that a child process proved; imports no ONNX Runtime itself.

    `units` are what the config file says of them; `timeout_s` is for each of them.

    Raises: RuntimeUnavailable.
    """
    build, version = runtime_build(), runtime_version()
    found, refused = probe_in_child(timeout_s, cores=len(cores), units=units)
    return Device(
        hostname=socket.gethostname(),
        processor=processor,
        cores=cores,
        memory_bytes=memory_bytes,
        runtime_version=version,
        runtime_build=build,
        units=found,
        refused=refused,
    )


def probe_in_child(
    timeout_s: float, *, cores: int, units: Sequence[UnitSettings] = ()
) -> tuple[tuple[ComputeUnit, ...], tuple[RefusedUnit, ...]]:
    """`find_units` in child processes, of at most `timeout_s` seconds for each provider.

    A provider that crashes or hangs its child is refused, and another child probes the rest.

    Raises: RuntimeUnavailable if ONNX Runtime itself cannot be imported.
    """
    command = [sys.executable, "-m", "edge_agent.engine.probe", "--cores", str(cores)]
    return probe_with([*command, "--units", encode_units(units)], timeout_s)


def probe_with(
    command: list[str], timeout_s: float
) -> tuple[tuple[ComputeUnit, ...], tuple[RefusedUnit, ...]]:
    """`probe_in_child` with the command that runs a child; it is given `--skip NAME` ..."""
    found: dict[str, ComputeUnit | RefusedUnit] = {}

    def limit_s(lines: Sequence[Line]) -> float:
        pending = _pending(lines, found)
        is_optional = pending is not None and pending.provider != CPU
        return timeout_s if is_optional else max(timeout_s, _NEEDED_S)

    while True:
        heard = hear([*command, *_skipping(found)], limit_s)
        for line in heard.lines:
            if "unavailable" in line:
                raise RuntimeUnavailable(line["unavailable"])
            found |= _findings(line)
        if heard.code == 0:
            break
        end = _end_of(heard, limit_s(heard.lines))
        last = heard.lines[-1].get("keeping", "") if heard.lines else ""
        tried = found.get(last)
        if isinstance(tried, ComputeUnit):
            reason = f"the probe of what it keeps {end.reason}"
            found[last] = replace(tried, keeps_nothing_because=reason)
            continue
        culprit = _pending(heard.lines, found)
        if culprit is None and any("offered" in line for line in heard.lines):
            # All are judged: some libraries crash when their process ends, and do no harm by it.
            break
        if culprit is None:
            nobody = Candidate(provider=CPU)
            raise RuntimeUnavailable(f"ONNX Runtime {end.reason} on import; {end.remedy(nobody)}")
        found[culprit.name] = _refused(culprit, f"its probe {end.reason}", end.remedy(culprit))
    return (
        tuple(f for f in found.values() if isinstance(f, ComputeUnit)),
        tuple(f for f in found.values() if isinstance(f, RefusedUnit)),
    )


def _pending(lines: Sequence[Line], found: Collection[str]) -> Candidate | None:
    """What a child that wrote these lines is busy with: a provider, or a package that it asks;
    None: ONNX Runtime itself."""
    judged = {*found, *(line["name"] for line in lines if "name" in line)}
    pending = None
    for line in lines:
        if "asking" in line:
            pending = Candidate(provider=line["asking"], package=line["asking"])
        if "offered" in line:
            offered = msgspec.convert(line["offered"], tuple[Candidate, ...], dec_hook=_path)
            pending = next((c for c in offered if c.name not in judged), None)
    return pending if pending is None or pending.name not in judged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a child ended that should have gone on."""

    reason: str
    remedy: Callable[[Candidate], str]


def _skipping(found: Collection[str]) -> Iterator[str]:
    for name in found:
        yield from ("--skip", name)


def _end_of(heard: Heard, limit_s: float) -> _End:
    if heard.code is None:
        reason = f"did not end within {limit_s:g} s"
        return _End(reason=reason, remedy=remedies.after_waiting)
    if heard.code < 0:
        reason = f"was ended by {signal.Signals(-heard.code).name}"
        return _End(reason=reason, remedy=partial(remedies.after_end, number=-heard.code))
    return _End(reason=f"failed: {heard.last_error}", remedy=remedies.after_failure)


def offered_as_json(offered: Sequence[Candidate]) -> str:
    """One line for `probe_with` to read: what a child is about to judge, in this order."""
    return msgspec.json.encode({"offered": offered}, enc_hook=str).decode()


def finding_as_json(name: str, finding: ComputeUnit | RefusedUnit) -> str:
    """One line for `probe_with` to read, of the candidate of that name."""
    what = "refused" if isinstance(finding, RefusedUnit) else "unit"
    return msgspec.json.encode({"name": name, what: finding}).decode()


def _findings(line: Mapping[str, Any]) -> dict[str, ComputeUnit | RefusedUnit]:
    if "refused" in line:
        return {line["name"]: msgspec.convert(line["refused"], RefusedUnit)}
    if "unit" in line:
        return {line["name"]: msgspec.convert(line["unit"], ComputeUnit)}
    return {}


def _path(_: type, value: Any) -> Path:
    return Path(value)
