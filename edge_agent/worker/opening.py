"""Opens what a deployment names: its sessions as one chain, warmed up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import structs

from edge_agent import clock
from edge_agent.engine.chain import Chain, Turns
from edge_agent.engine.files import open_file
from edge_agent.engine.memory import bounded_memory, enough_for
from edge_agent.engine.runtime import load_runtime
from edge_agent.engine.session import Session
from edge_agent.errors import EdgeAgentError, StorageError
from edge_agent.samples import random_arrays
from edge_agent.store.manifests import Entry
from edge_agent.store.pool import entry_of
from edge_agent.tensors import (
    Arrays,
    Shape,
    ShapeSet,
    TensorName,
    TensorSpec,
    required,
    shape_names,
)
from edge_agent.wire.hosting import DividedPart, StageHere
from edge_agent.wire.messages import (
    Deployment,
    Message,
    error_text,
)
from edge_agent.wire.parts import (
    Specialised,
    SubgraphFile,
    Unopened,
)
from edge_agent.worker.by_shape import ByShape, Choice, ShapeCounter
from edge_agent.worker.epochs import Beside, Opened
from edge_agent.worker.watching import Watch

log = logging.getLogger(__name__)

_WARM_RUNS = 2


class ChainRunner:
    """A chain of sessions, and the core that its callers belong on."""

    def __init__(
        self, chain: Chain, sessions: Sequence[Session], watch: Watch | None = None
    ) -> None:
        """`watch`: for chains with subgraphs on units that may hang."""
        self._chain = chain
        self._watch = watch
        self._pinned = next((s for s in sessions if s.pinned_cores), None)
        cores = None if self._pinned is None else self._pinned.pinned_cores
        self.core = cores[0] if cores else None

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """See `runners.Runner`; the agent has checked the request."""
        if self._watch is None:
            return self._chain.run_checked(feeds, outputs)
        with self._watch.running():
            return self._chain.run_checked(feeds, outputs)

    def pin_caller(self) -> None:
        """See `runners.Runner`."""
        if self._pinned is not None:
            self._pinned.pin_caller()


def load() -> None:
    """Load ONNX Runtime, so that it is there when the deployment comes."""
    load_runtime()


def load_divided() -> None:
    """Load what opening compiled stages of divided models takes beside that."""
    import edge_agent.worker.hosting  # noqa: F401
    from edge_agent.profiling.device import device_key

    device_key()


def _open(
    file: SubgraphFile, pinned_cores: tuple[int, ...], leases: ExitStack, *, is_background: bool
) -> Session:
    """The session of a file, which is not given back before `leases` are."""
    if file.compiled_for is not None:
        _check_device(file.path, file.compiled_for)
    entry = entry_of(Path(file.path))
    if entry is not None:
        leases.callback(entry.release)
    is_lean = entry is not None and file.compiled_for is None and _is_large(entry)
    return open_file(file, pinned_cores, is_idle=is_background, is_lean=is_lean)


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
            # A staged file is no entry of the pool: there is nothing to hold.
            return _open(file, (), ExitStack(), is_background=is_background)
    except EdgeAgentError as error:
        log.info("not opened ahead: %s", error)
        return None


def open_deployment(
    deployment: Deployment,
    beside: Beside | None = None,
    *,
    is_background: bool,
    tell: Callable[[Message], None] = lambda _message: None,
    ahead: Session | None = None,
) -> Opened:
    """Open all sessions of a deployment, and run them on made-up inputs if shapes are given.

    What is specialised and cannot be opened is left out and named. `beside` tells of the epoch
    that this process serves already; `ahead` is the only session, if it was opened already, from
    another path. `tell` sends to the agent, if there is none beside.

    Raises:
        ModelRefused, RuntimeUnavailable: ONNX Runtime does not open a file.
        StorageError: a compiled file is damaged, or for another processor or ONNX Runtime.
    """
    started_s = clock.precise_s()
    with ExitStack() as leases:
        opening = _Opening(deployment, beside, leases, is_background=is_background)
        opened = opening.opened(ahead, tell if beside is None else beside.tell)
        opened.leases = leases.pop_all()
    opened.opened_s = clock.precise_s() - started_s
    return opened


def open_stage(
    leases: ExitStack, stage: StageHere, *, is_background: bool = False
) -> tuple[Chain, list[Session]]:
    """The sessions of a stage; `leases` hold their files. Raises: as `open_deployment`."""
    files = stage.subgraphs
    sessions = [_open(f, stage.pinned_cores, leases, is_background=is_background) for f in files]
    turns = Turns(stage.threads)
    chain = Chain(
        sessions,
        required(stage.inputs),
        [spec.name for spec in stage.outputs],
        [turns.of(file.resource, file.at_once) for file in files],
    )
    return chain, sessions


class _Opening:
    """A deployment while it is opened."""

    def __init__(
        self,
        deployment: Deployment,
        beside: Beside | None,
        leases: ExitStack,
        *,
        is_background: bool,
    ) -> None:
        self._deployment = deployment
        self._beside = beside
        self._leases = leases
        self._is_background = is_background
        self._inputs: tuple[TensorSpec, ...] = ()
        self._outputs: tuple[TensorSpec, ...] = ()
        self._turns = Turns(deployment.most_instances)

    def opened(self, ahead: Session | None, tell: Callable[[Message], None]) -> Opened:
        """All of it."""
        deployment = self._deployment
        if ahead is not None:
            (file,) = deployment.subgraphs
            ahead.path = Path(file.path)  # the file was moved there
            sessions = [ahead]
        else:
            sessions = self._sessions(deployment)
        inputs, outputs = deployment.inputs, deployment.outputs
        self._inputs = inputs if inputs is not None else _inputs(sessions)
        self._outputs = outputs if outputs is not None else sessions[-1].outputs
        general = self._runner(sessions, deployment.subgraphs)
        # A divided epoch is compared with it, which warms it up, before anything serves.
        if deployment.warm_shapes and deployment.division is None:
            self._warm(general, dict(deployment.warm_shapes))
        opened = Opened(
            epoch=deployment.epoch,
            runner=general,
            instances=deployment.most_instances,
            inputs=self._inputs,
            outputs=self._outputs,
        )
        if deployment.counted is not None:
            before = None if self._beside is None else self._beside.counter
            opened.counter = before or ShapeCounter(deployment.counted)
        if opened.counter is not None or deployment.specialised:
            self._add_specialised(opened, general)
        if deployment.division is not None:
            self._divide(opened, deployment.division, tell)
        return opened

    def _divide(
        self, opened: Opened, division: DividedPart, tell: Callable[[Message], None]
    ) -> None:
        """Have requests take routes over other devices; what was opened takes those that are lost
        there."""
        from edge_agent.worker.dividing import own

        deployment = self._deployment
        opened.divided = own(
            deployment.epoch,
            division,
            partial(open_stage, self._leases, is_background=self._is_background),
            tell,
            fallback=opened.runner,
            at_once=max((deployment.instances, *(s.instances for s in deployment.specialised))),
            outputs=self._outputs,
        )
        assert opened.divided.runner is not None
        opened.runner = opened.divided.runner

    def _sessions(self, chain: Deployment | Specialised) -> list[Session]:
        return [
            _open(file, cores, self._leases, is_background=self._is_background)
            for file, cores in _beside_others(chain, self._deployment)
        ]

    def _runner(self, sessions: Sequence[Session], files: Sequence[SubgraphFile]) -> ChainRunner:
        outputs = [spec.name for spec in self._outputs]
        turns = [self._turns.of(file.resource, file.at_once) for file in files]
        limits_s = [file.run_limit_s for file in files if file.run_limit_s is not None]
        watch = Watch(sum(limits_s)) if limits_s else None
        return ChainRunner(Chain(sessions, required(self._inputs), outputs, turns), sessions, watch)

    def _add_specialised(self, opened: Opened, general: ChainRunner) -> None:
        """Have what serves single sets of shapes opened, warmed up, and picked where they come."""
        choices: dict[ShapeSet, Choice] = {}
        unopened: list[Unopened] = []
        names = shape_names(self._inputs)
        for special in self._deployment.specialised:
            try:
                runner = self._runner(self._sessions(special), special.subgraphs)
            except EdgeAgentError as error:
                log.warning("the subgraphs for %s cannot be opened: %s", special.shapes, error)
                unopened.append(Unopened(special.shapes, error_text(error)))
                continue
            self._warm(runner, dict(zip(names, special.shapes, strict=True)))
            choices[special.shapes] = self._choice(runner, special.instances)
        general_choice = self._choice(general, self._deployment.instances)
        opened.runner = ByShape(names, general_choice, choices, opened.counter)
        opened.unopened = tuple(unopened)

    def _choice(self, runner: ChainRunner, instances: int) -> Choice:
        is_limited = instances < self._deployment.most_instances
        return Choice(runner, threading.Semaphore(instances) if is_limited else None)

    def _warm(self, runner: ChainRunner, shapes: Mapping[TensorName, Shape]) -> None:
        """The first runs allocate memory and touch the weights; requests should not pay for that,
        nor those of the epoch beside.

        Measured on SqueezeNet with two threads on two cores that others use too, asked every 30
        ms: such a run beside another slowed two or three requests from 28 to more than 84 ms.
        """
        try:
            feeds = random_arrays(self._inputs, shapes, np.random.default_rng(0))
            for _ in range(_WARM_RUNS):
                if self._beside is not None and not self._beside.has_pause():
                    return
                runner.run(feeds, [s.name for s in self._outputs])
        except EdgeAgentError as error:
            log.info("made-up inputs do not run: %s", error)


def _inputs(sessions: Sequence[Session]) -> tuple[TensorSpec, ...]:
    free = {spec.name: spec for session in sessions for spec in session.overridable}
    return (*sessions[0].inputs, *free.values())


def _beside_others(
    chain: Deployment | Specialised, deployment: Deployment
) -> Iterator[tuple[SubgraphFile, tuple[int, ...]]]:
    """The files of a chain as they are opened where a worker has several, each with its cores.

    The threads of a plain session spin for some 45 ms after each run, and would take a core from
    a run of another chain that follows. So it is opened as those are: its threads stop, and are
    bound to cores.
    """
    chains: tuple[Deployment | Specialised, ...] = (deployment, *deployment.specialised)
    cores = max((c.pinned_cores for c in chains), key=len)
    must_stop = len(chains) > 1 and len(cores) > 1 and chain.instances == 1
    for file in chain.subgraphs:
        if must_stop and file.is_plain and file.threads != 1:
            yield structs.replace(file, is_plain=False, threads=len(cores)), cores
        else:
            yield file, chain.pinned_cores
