"""The stages of one epoch that run in this worker: tensors come together, a stage runs, and what it
gives goes on, over streams or to another stage here.

A run that ends early ends everywhere: whatever fails tells the stages behind it, down to the owner,
and whoever is told drops what it holds of that run.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from edge_agent import clock
from edge_agent.engine.cancel import Cancellation
from edge_agent.errors import DeadlineExceeded, EdgeAgentError, ProtocolError, error_from_code
from edge_agent.plans import Epoch
from edge_agent.stages import OWNER, Crossing, Division
from edge_agent.tensors import Arrays, ElementType, TensorName, TensorSpec
from edge_agent.wire.arrays import pack_arrays
from edge_agent.wire.messages import error_text
from edge_agent.wire.streaming import MAX_TOLD_CHARACTERS, Cancel, RunFailed, Stale, Tensors
from edge_agent.worker.flows import Arrived, Steering
from edge_agent.worker.narrowing import check_narrowed, narrow, widen
from edge_agent.worker.streams import Stream

log = logging.getLogger(__name__)

MOST_ENDED: Final = 4096
"""Runs that ended early and are remembered, for what of them is still on the way."""
CLOSE_S: Final = 5.0
"""How long the operator that a stage is at may take when everything is to end."""


class StageRunner(Protocol):
    """What computes a stage; safe to run from several threads."""

    def run(self, feeds: Arrays, outputs: Sequence[str], cancel: Cancellation) -> Arrays:
        """Outputs by name.

        Raises:
            EdgeAgentError: the run failed, or was cancelled.
        """
        ...


class Origin(Protocol):
    """The owner's end, in the worker that has it. Called on any thread; must not block."""

    def finished(self, run: int, arrays: Arrays) -> None:
        """All outputs of a run are here."""
        ...

    def failed(self, run: int, error: EdgeAgentError) -> None:
        """A run ended early."""
        ...

    def lost(self, runs: Sequence[int], why: str) -> None:
        """These runs can end no more: a stage of theirs is out of reach, or knows nothing of
        them."""
        ...


@dataclass(slots=True)
class _Gathered:
    """What of the tensors for one stage in one run has come."""

    until_s: float | None
    arrived: dict[int, tuple[Arrays, Stream | None, Arrived | None]] = field(default_factory=dict)
    """By the stage that they are from."""


@dataclass(slots=True)
class _Job:
    run: int
    stage: int
    gathered: _Gathered
    cancel: Cancellation


class Stages:
    """Implements `streams.Receiver` for all streams of the epoch."""

    def __init__(
        self,
        epoch: Epoch,
        division: Division,
        runners: Mapping[int, StageRunner],
        *,
        instances: int,
        origin: Origin | None = None,
        on_broken: Callable[[Stream, str], None] = lambda _stream, _why: None,
        specs: Mapping[int, Sequence[TensorSpec]] = MappingProxyType({}),
    ) -> None:
        """`runners` are of the stages that run here, `instances` says how many at once; `origin`
        is there if this is the owner's worker. `specs` are of what comes to each stage here, and
        to the owner, where it is known."""
        self.counters: Counter[str] = Counter()
        self._epoch = epoch
        self._division = division
        self._runners = dict(runners)
        self._origin = origin
        self._on_broken = on_broken
        self._takes = {stage: division.takes(stage) for stage in (OWNER, *division.stages)}
        self._gives = {stage: division.gives(stage) for stage in (OWNER, *division.stages)}
        self._route_of = {s: number for number, r in enumerate(division.routes()) for s in r}
        self._streams: dict[int, Stream] = {}
        """To the worker that has a stage that is not here; of `OWNER`, if that is not here."""
        self._changing = threading.Lock()
        self._gathering: dict[tuple[int, int], _Gathered] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._running: dict[tuple[int, int], _Job] = {}
        """Also the ones that wait for a thread."""
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._specs = {stage: {s.name: s for s in found} for stage, found in specs.items()}
        self._routes: dict[int, int] = {}
        """Of the runs that the owner began here."""
        self._threads = [
            threading.Thread(target=self._serve, name=f"stage-{i}", daemon=True)
            for i in range(instances)
        ]
        for thread in self._threads:
            thread.start()

    def connect(self, stream: Stream, stages: Sequence[int]) -> None:
        """These stages, or the owner, are at the other end of a stream."""
        for stage in stages:
            self._streams[stage] = stream

    def close(self) -> bool:
        """End what runs, and the threads; whether all of them have ended."""
        for _ in self._threads:
            self._jobs.put(None)
        with self._changing:
            running = list(self._running.values())
        for job in running:
            job.cancel.cancel()
        until_s = clock.monotonic_s() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - clock.monotonic_s()))
        return not any(thread.is_alive() for thread in self._threads)

    # ---- the owner

    def begin(self, run: int, route: int, feeds: Arrays, until_s: float | None) -> None:
        """Send the inputs of a run to the stages of a route that take some; nothing happens if it
        was cancelled before."""
        with self._changing:
            if run in self._ended:
                return
            self._routes[run] = route
        for crossing in self._gives[OWNER]:
            if self._route_of[crossing.target] == route:
                self._hand_over(run, crossing, feeds, until_s)

    def cancel(self, run: int) -> None:
        """Nobody waits for this run any more."""
        self._end(run)
        self._tell(run, set(self._streams.values()), Cancel(epoch=self._epoch, run=run))

    # ---- what streams tell

    def opened(self, stream: Stream) -> None:
        """See `streams.Receiver`."""

    def arrived(self, stream: Stream, arrived: Arrived) -> None:
        """See `streams.Receiver`."""
        message = arrived.message
        if message.epoch != self._epoch:
            self.counters["messages of another epoch"] += 1
            stream.release(arrived)
            stream.steer(Stale(epoch=message.epoch, run=message.run))
            return
        crossing = self._crossing(stream, message)
        if tuple(head.name for head in message.tensors) != crossing.tensors:
            raise ProtocolError(f"got other tensors from stage {message.source} than agreed")
        check_narrowed(message.tensors, message.narrowed, crossing.wire)
        self._check_types(message)
        until_s = None if message.left_s is None else clock.monotonic_s() + message.left_s
        self._gather(message.run, crossing, arrived.arrays, until_s, stream, arrived)

    def _check_types(self, message: Tensors) -> None:
        """Raises: ProtocolError: something is of another type than the model says. Whether its
        sizes are right is left to ONNX Runtime: what a model says of those may be wrong."""
        specs = self._specs.get(message.target, {})
        narrowed = {one.tensor for one in message.narrowed}
        for at, head in enumerate(message.tensors):
            spec = specs.get(TensorName(head.name))
            if spec is None:
                continue
            got = ElementType.FLOAT32 if at in narrowed else head.element_type
            is_right = bool(spec.container) or got is spec.element_type
            if head.is_nested != bool(spec.container) or not is_right:
                told = "a sequence, map or optional" if head.is_nested else got
                raise ProtocolError(f'tensor "{head.name}": got {told}, want {spec}')

    def _crossing(self, stream: Stream, message: Tensors) -> Crossing:
        is_known = self._streams.get(message.source) is stream
        is_here = message.target in self._runners or (
            message.target == OWNER and self._origin is not None
        )
        for crossing in self._takes.get(message.target, ()):
            if crossing.source == message.source and is_known and is_here:
                return crossing
        raise ProtocolError(f"got tensors from stage {message.source} for {message.target}")

    def steered(self, stream: Stream, message: Steering) -> None:
        """See `streams.Receiver`."""
        if isinstance(message, RunFailed | Stale) and not self._may_end(stream, message.run):
            self.counters["ends of runs that are not theirs"] += 1
            return
        if isinstance(message, Cancel) and self._origin is not None:
            return  # it comes back from the last stage; nobody but the owner ends a run so
        match message:
            case Cancel(epoch=epoch, run=run) if epoch == self._epoch:
                self._end(run)
                self._tell(run, self._behind(), Cancel(epoch=epoch, run=run))
            case RunFailed(epoch=epoch) if epoch == self._epoch:
                self._fail(message)
            case Stale(epoch=epoch, run=run) if epoch == self._epoch:
                self._stale(run)
            case _:
                self.counters["messages of another epoch"] += 1

    def broken(self, stream: Stream, why: str, *, is_offence: bool) -> None:
        """See `streams.Receiver`."""
        del is_offence  # whoever made the stream tells
        gone = {stage for stage, one in self._streams.items() if one is stream}
        routes = {self._route_of[stage] for stage in gone if stage != OWNER}
        with self._changing:
            runs = [run for run, route in self._routes.items() if route in routes]
            dropped = [self._gathering.pop(key) for key in self._in_vain(gone)]
        for gathered in dropped:
            self._release(gathered)
        for run in runs:
            self.cancel(run)
        if self._origin is not None and runs:
            self._origin.lost(runs, why)
        self._on_broken(stream, why)

    def _in_vain(self, gone: set[int]) -> list[tuple[int, int]]:
        """What waits for tensors of stages that are out of reach."""
        return [
            (run, stage)
            for (run, stage), gathered in self._gathering.items()
            if any(c.source in gone - set(gathered.arrived) for c in self._takes[stage])
        ]

    # ---- coming together

    def _gather(
        self,
        run: int,
        crossing: Crossing,
        arrays: Arrays,
        until_s: float | None,
        stream: Stream | None,
        arrived: Arrived | None,
    ) -> None:
        key = run, crossing.target
        with self._changing:
            is_over = run in self._ended or not self._may_give(crossing, run)
            gathered = self._gathering.get(key)
            is_twice = gathered is not None and crossing.source in gathered.arrived
            if not is_over and not is_twice:
                if gathered is None:
                    gathered = self._gathering[key] = _Gathered(until_s)
                gathered.arrived[crossing.source] = arrays, stream, arrived
                is_whole = len(gathered.arrived) == self._wanted(run, crossing.target)
                if is_whole:
                    del self._gathering[key]
                    job = _Job(run, crossing.target, gathered, Cancellation())
                    if crossing.target != OWNER:
                        self._running[key] = job
        if is_over or is_twice:
            if stream is not None and arrived is not None:
                stream.release(arrived)
            if is_twice:
                raise ProtocolError(f"got tensors of run {run} from stage {crossing.source} twice")
            return
        if is_whole and crossing.target == OWNER:
            self._finish(run, gathered)
        elif is_whole:
            self._jobs.put(job)

    def _may_give(self, crossing: Crossing, run: int) -> bool:
        """Whether that may come in that run; devices of one route have no say in another."""
        is_result = crossing.target == OWNER
        return not is_result or self._routes.get(run) == self._route_of[crossing.source]

    def _may_end(self, stream: Stream, run: int) -> bool:
        """As `_may_give`, for whoever is at the other end of a stream."""
        if self._origin is None:
            return True
        with self._changing:
            route = self._routes.get(run)
        stages = [stage for stage, one in self._streams.items() if one is stream]
        return any(self._route_of.get(stage) == route for stage in stages)

    def _wanted(self, run: int, target: int) -> int:
        if target != OWNER:
            return len(self._takes[target])
        route = self._routes[run]
        return sum(self._route_of[c.source] == route for c in self._takes[OWNER])

    def _finish(self, run: int, gathered: _Gathered | None) -> None:
        assert gathered is not None
        assert self._origin is not None
        with self._changing:
            self._routes.pop(run, None)
        self._origin.finished(run, self._wide(OWNER, gathered))
        # The owner copies what it keeps longer before it says so.
        self._release(gathered)

    def _wide(self, target: int, gathered: _Gathered) -> Arrays:
        """All that came for a stage, nothing of it in fewer bits."""
        found: Arrays = {}
        for crossing in self._takes[target]:
            if (came := gathered.arrived.get(crossing.source)) is not None:
                arrays, _, arrived = came
                narrowed = () if arrived is None else arrived.message.narrowed
                found |= widen(arrays, narrowed, crossing.wire)
        return found

    @staticmethod
    def _release(gathered: _Gathered) -> None:
        for _, stream, arrived in gathered.arrived.values():
            if stream is not None and arrived is not None:
                stream.release(arrived)

    # ---- running

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._run(job)
            except Exception:
                log.exception("a stage met an error of its own")
                self._fail_from(job, EdgeAgentError("the worker failed: see its log"))
            finally:
                with self._changing:
                    self._running.pop((job.run, job.stage), None)
                self._release(job.gathered)

    def _run(self, job: _Job) -> None:
        feeds = self._wide(job.stage, job.gathered)
        until_s = job.gathered.until_s
        gives = self._gives[job.stage]
        wanted = tuple(dict.fromkeys(name for crossing in gives for name in crossing.tensors))
        timer = None
        try:
            job.cancel.check()
            if until_s is not None:
                left_s = until_s - clock.monotonic_s()
                if left_s <= 0:
                    raise DeadlineExceeded("the deadline passed before a stage could begin")
                timer = threading.Timer(left_s, job.cancel.cancel)
                timer.start()
            outputs = self._runners[job.stage].run(feeds, wanted, job.cancel)
        except EdgeAgentError as error:
            self._fail_from(job, error)
            return
        finally:
            if timer is not None:
                timer.cancel()
        for crossing in gives:
            self._hand_over(job.run, crossing, outputs, until_s)

    def _hand_over(
        self, run: int, crossing: Crossing, arrays: Arrays, until_s: float | None
    ) -> None:
        chosen: Arrays = {name: arrays[name] for name in crossing.tensors}
        stream = self._streams.get(crossing.target)
        if stream is None:
            self._gather(run, crossing, chosen, until_s, None, None)
            return
        sent, narrowed = narrow(chosen, crossing.wire)
        heads, buffers = pack_arrays(sent)
        left_s = None if until_s is None else max(0.0, until_s - clock.monotonic_s())
        message = Tensors(
            epoch=self._epoch,
            run=run,
            source=crossing.source,
            target=crossing.target,
            tensors=heads,
            left_s=left_s,
            narrowed=narrowed,
        )
        stream.put(message, buffers)

    # ---- ending early

    def _fail_from(self, job: _Job, error: EdgeAgentError) -> None:
        with self._changing:
            if job.run in self._ended:
                return  # it was told to end
        failed = RunFailed(
            epoch=self._epoch,
            run=job.run,
            stage=job.stage,
            code=error.code,
            message=error_text(error)[:MAX_TOLD_CHARACTERS],
        )
        self._fail(failed)

    def _fail(self, failed: RunFailed) -> None:
        if not self._end(failed.run):
            return
        if self._origin is not None:
            self._origin.failed(failed.run, error_from_code(failed.code, failed.message))
            # The others may still be at it.
            self.cancel(failed.run)
        else:
            self._tell(failed.run, self._behind(), failed)

    def _stale(self, run: int) -> None:
        if self._origin is not None:
            if self._end(run):
                self._origin.lost((run,), "a device knows nothing of this epoch")
        else:
            self._tell(run, self._behind(), Stale(epoch=self._epoch, run=run))

    def _behind(self) -> set[Stream]:
        """The streams to whom the stages here give."""
        targets = {c.target for stage in self._runners for c in self._gives[stage]}
        return {self._streams[target] for target in targets if target in self._streams}

    @staticmethod
    def _tell(run: int, streams: set[Stream], message: Cancel | RunFailed | Stale) -> None:
        for stream in streams:
            stream.cancel(run)
            stream.steer(message)

    def _end(self, run: int) -> bool:
        """Drop all that is of a run here; whether that was news."""
        with self._changing:
            if run in self._ended:
                return False
            self._ended[run] = None
            if len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)
            self._routes.pop(run, None)
            dropped = [self._gathering.pop(key) for key in [*self._gathering] if key[0] == run]
            running = [job for key, job in self._running.items() if key[0] == run]
        for gathered in dropped:
            self._release(gathered)
        for job in running:
            job.cancel.cancel()
        return True
