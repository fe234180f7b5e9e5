"""Opens what a deployment names: its sessions as one chain, warmed up."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_agent import clock
from edge_agent.engine.chain import Chain
from edge_agent.engine.memory import bounded_memory, enough_for
from edge_agent.engine.runtime import load_runtime
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import EdgeAgentError, StorageError
from edge_agent.samples import random_arrays
from edge_agent.store.manifests import Entry
from edge_agent.store.pool import entry_of
from edge_agent.tensors import Arrays, TensorSpec, required
from edge_agent.wire.messages import Deployment, SubgraphFile

log = logging.getLogger(__name__)

_WARM_RUNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a worker serves."""

    runner: ChainRunner
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opened_s: float


class ChainRunner:
    """A chain of sessions, and the core that its callers belong on."""

    def __init__(self, chain: Chain, sessions: Sequence[Session]) -> None:
        self._chain = chain
        self._pinned = next((s for s in sessions if s.pinned_cores), None)

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """See `serving.Runner`; the agent has checked the request."""
        return self._chain.run_checked(feeds, outputs)

    def pin_caller(self) -> None:
        """See `serving.Runner`."""
        if self._pinned is not None:
            self._pinned.pin_caller()


def load() -> None:
    """Load ONNX Runtime, so that it is there when the deployment comes."""
    load_runtime()


def _open(file: SubgraphFile, pinned_cores: tuple[int, ...], *, is_background: bool) -> Session:
    if file.compiled_for is not None:
        _check_device(file.path, file.compiled_for)
    # For as long as this process lives, what it maps is not given back.
    entry = entry_of(Path(file.path))
    is_lean = entry is not None and file.compiled_for is None and _is_large(entry)
    is_pinned = not file.is_plain and file.threads == len(pinned_cores) and file.threads > 1
    open_session = Session.open_idle if is_background else Session.open
    return open_session(
        Path(file.path),
        threads=file.threads,
        level=OptimisationLevel(file.level),
        pinned_cores=pinned_cores if is_pinned else None,
        plain=file.is_plain,
        lean=is_lean,
    )


def _is_large(entry: Entry) -> bool:
    from edge_agent.profiling.device import is_large

    return is_large(entry.manifest.weight_bytes)


def _check_device(path: str, compiled_for: str) -> None:
    # Imported for compiled files alone: the first answer after a load need not wait for it.
    from edge_agent.profiling.device import device_key

    if compiled_for != device_key():
        raise StorageError(
            f"{path} was compiled for {compiled_for}, this is {device_key()}: "
            "it has to be compiled again"
        )


def open_ahead(file: SubgraphFile, *, is_background: bool) -> Session | None:
    """Open a file that is still being checked; None if ONNX Runtime refuses it.

    Its reason is not kept: `open_deployment` finds it again, and names the file as it should be.
    A file that takes more memory than sound ones do has to wait for the check too.
    """
    try:
        with bounded_memory(enough_for(Path(file.path).stat().st_size)):
            return _open(file, (), is_background=is_background)
    except EdgeAgentError as error:
        log.info("not opened ahead: %s", error)
        return None


def open_deployment(
    deployment: Deployment, *, is_background: bool, ahead: Session | None = None
) -> Opened:
    """Open all sessions of a deployment, and run them on zeros if shapes are given.

    `ahead` is the only one, if it was opened already, from another path.

    Raises:
        ModelRefused, RuntimeUnavailable: ONNX Runtime does not open a file.
        StorageError: a compiled file is damaged, or for another processor or ONNX Runtime.
    """
    started_s = clock.precise_s()
    if ahead is not None:
        (file,) = deployment.subgraphs
        ahead.path = Path(file.path)  # the file was moved there
        sessions = [ahead]
    else:
        sessions = [
            _open(file, deployment.pinned_cores, is_background=is_background)
            for file in deployment.subgraphs
        ]
    inputs = deployment.inputs if deployment.inputs is not None else _inputs(sessions)
    outputs = deployment.outputs if deployment.outputs is not None else sessions[-1].outputs
    chain = Chain(sessions, required(inputs), [s.name for s in outputs])
    runner = ChainRunner(chain, sessions)
    if deployment.warm_shapes:
        _warm(runner, deployment, inputs, outputs)
    return Opened(
        runner=runner, inputs=inputs, outputs=outputs, opened_s=clock.precise_s() - started_s
    )


def _inputs(sessions: Sequence[Session]) -> tuple[TensorSpec, ...]:
    free = {spec.name: spec for session in sessions for spec in session.overridable}
    return (*sessions[0].inputs, *free.values())


def _warm(
    runner: ChainRunner,
    deployment: Deployment,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> None:
    """The first runs allocate memory and touch the weights; requests should not pay for that."""
    try:
        feeds = random_arrays(inputs, dict(deployment.warm_shapes), np.random.default_rng(0))
        for _ in range(_WARM_RUNS):
            runner.run(feeds, [s.name for s in outputs])
    except EdgeAgentError as error:
        log.info("made-up inputs do not run: %s", error)
