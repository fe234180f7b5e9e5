"""What can be kept on disk of a graph on a compute unit, and that it is as good as the graph.

Measured. QNN on the emulator of an NPU, a classifier of 302 nodes: 0.03 s from its context instead
of 0.5 s, equal outputs; but a context of a part of a graph that was not optimised ends the process
on opening. OpenVINO 2025.4 on its CPU device writes a context and cannot read it. WebGPU 1.27 opens
its optimised graph in 0.010 s instead of 0.025 s (a classifier of 239 nodes, the best of 6), with
equal outputs; that is little beside the first run, which takes 0.8 s longer than the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from edge_agent import clock
from edge_agent.devices import ComputeUnit, Keeping, ProviderUse
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.compile import GRAPH, interface_of, published, save_to
from edge_agent.engine.placing import create
from edge_agent.engine.providers import known_provider
from edge_agent.engine.refusals import loading
from edge_agent.engine.runtime import CPU, FATAL_ONLY
from edge_agent.engine.session import OptimisationLevel, Session, session_options
from edge_agent.engine.tiny import chain_model, quantised_model
from edge_agent.errors import ModelRefused, RunFailed
from edge_agent.tensors import Arrays

_SIDE: Final = 16
_TOLERANCE: Final = 1e-3
"""Of the largest output: some kernels add in an order that changes from run to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledForm:
    """What was kept of a graph; sessions open it with OptimisationLevel.NONE and the same use."""

    graph: Path
    """The other files in its folder belong to it."""
    open_s: float
    """What opening took from the graph itself, writing the form included."""
    reopen_s: float
    """What opening takes from the form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoForm:
    """Nothing is kept of a graph."""

    because: str


def compile_on(
    use: ProviderUse,
    keeps: Keeping,
    source: Path,
    folder: Path,
    feeds: Arrays,
    cancel: Cancellation | None = None,
) -> CompiledForm | NoForm:
    """Write to `folder` what the unit makes of the graph at `source`, all of which it must take.

    The form is opened again and run on `feeds`; the folder appears only if the outputs are those
    of the session that wrote it. It is valid for these versions of ONNX Runtime, provider and
    driver only, and for these options. For a process of its own: providers have ended it where
    they could not read what they wrote.

    Raises: RuntimeUnavailable; StorageError; the reason of `cancel`.
    """
    if keeps is Keeping.NOTHING:
        return NoForm(because=f"{use.provider} keeps nothing")
    try:
        with published(folder) as draft:
            return _kept(use, keeps, source, draft, folder, feeds, cancel)
    except (ModelRefused, RunFailed) as error:
        return NoForm(because=str(error))


def _kept(
    use: ProviderUse,
    keeps: Keeping,
    source: Path,
    draft: Path,
    folder: Path,
    feeds: Arrays,
    cancel: Cancellation | None,
) -> CompiledForm:
    session, open_s = _opened(source, _writing(keeps, draft / GRAPH), use)
    if not (draft / GRAPH).exists():
        raise ModelRefused(f"{use.provider} wrote no {keeps}")
    interface = interface_of(session)
    want = _outputs(session, source, feeds, cancel)
    del session  # the unit may not have the memory for two
    try:
        session, reopen_s = _opened(draft / GRAPH, _options(OptimisationLevel.NONE), use)
    except ModelRefused as error:
        raise ModelRefused(f"the {keeps} that it wrote does not open: {error}") from error
    if differing := sorted(interface ^ interface_of(session)):
        raise ModelRefused(f"the {keeps} that it wrote differs in {differing[0]}")
    got = _outputs(session, draft / GRAPH, feeds, cancel)
    if differing := sorted(name for name in want if not agrees(got[name], want[name])):
        raise ModelRefused(f'the {keeps} that it wrote gives another output "{differing[0]}"')
    return CompiledForm(graph=folder / GRAPH, open_s=open_s, reopen_s=reopen_s)


def _writing(keeps: Keeping, graph: Path) -> Any:
    options = _options(OptimisationLevel.ALL)
    if keeps is Keeping.GRAPH:
        save_to(graph, options)
    else:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(graph))
        # In one file, as the pool keeps graphs: what is above 2 GiB is not kept.
        options.add_session_config_entry("ep.context_embed_mode", "1")
    return options


def _options(level: OptimisationLevel) -> Any:
    options = session_options(level, threads=1)
    options.log_severity_level = FATAL_ONLY
    return options


def write_optimised(source: Path, use: ProviderUse, graph: Path) -> None:
    """Write the graph at `source` to `graph` as a session on `use` would run it, with other files
    beside it, whether it could be opened again or not.

    Raises: ModelRefused, RuntimeUnavailable: it does not open there; StorageError: the disk is
        full.
    """
    options = _options(OptimisationLevel.ALL)
    save_to(graph, options)
    with loading(source):
        create(source, options, use)


def _opened(path: Path, options: Any, use: ProviderUse) -> tuple[Any, float]:
    """A session, and how long it took to open."""
    began_s = clock.precise_s()
    with loading(path):
        session = create(path, options, use)
    return session, clock.precise_s() - began_s


def _outputs(session: Any, path: Path, feeds: Arrays, cancel: Cancellation | None) -> Arrays:
    opened = Session(session, path, None)
    return opened.run(feeds, opened.output_names, cancel)


def agrees(got: Any, want: Any) -> bool:
    """Whether two values of one output are as good as equal: floats to a thousandth of the largest,
    everything else exactly."""
    if not isinstance(want, np.ndarray):
        return bool(got == want)
    if got.shape != want.shape or want.dtype.kind != "f":
        return np.array_equal(got, want)
    finite = want[np.isfinite(want)]
    largest = float(np.abs(finite).max(initial=0))
    return np.allclose(got, want, rtol=0, atol=_TOLERANCE * largest, equal_nan=True)


def with_keeping(unit: ComputeUnit) -> ComputeUnit:
    """`unit`, which was proven, with what it keeps of a small model; it may end the process.

    Raises: RuntimeUnavailable; StorageError.
    """
    known = known_provider(unit.provider)
    keeps = Keeping.GRAPH if known is None else known.keeps
    if unit.provider == CPU:
        return replace(unit, keeps=keeps)
    feeds: Arrays
    if unit.takes_floats:
        model, feeds = chain_model(3), {"v0": np.array([-1.0, 2.0], np.float32)}
    else:
        model = quantised_model(_SIDE, bytes(_SIDE * _SIDE), 1.0)
        feeds = {"x": np.ones((_SIDE, _SIDE), np.float32)}
    with TemporaryDirectory(prefix="keeping-") as folder:
        source = Path(folder) / "probe.onnx"
        source.write_bytes(model)
        use = unit.use(unit.layouts[0], 1)
        found = compile_on(use, keeps, source, Path(folder) / "kept", feeds)
    if isinstance(found, NoForm):
        return replace(unit, keeps_nothing_because=found.because)
    return replace(unit, keeps=keeps)
