"""What a worker makes of its part of a divided epoch: stages that run here, the connections to the
other workers, and, if it is the owner's, the end that requests come to."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.chain import Chain
from edge_agent.engine.session import Session
from edge_agent.errors import ProtocolError
from edge_agent.plans import Epoch
from edge_agent.stages import Division
from edge_agent.tensors import Arrays, TensorSpec
from edge_agent.wire.hosting import (
    Compare,
    Dial,
    DividedPart,
    GiveUpRoute,
    Listen,
    StageHere,
    Unlinked,
)
from edge_agent.wire.messages import Message
from edge_agent.worker.comparing import Comparing
from edge_agent.worker.divided import DividedRunner, RouteState
from edge_agent.worker.linking import Links
from edge_agent.worker.runners import Runner
from edge_agent.worker.stages import StageRunner

log = logging.getLogger(__name__)


class ChainStage:
    """A stage as a chain of sessions. Implements `stages.StageRunner`."""

    def __init__(self, chain: Chain, sessions: Sequence[Session], at_once: int) -> None:
        """`at_once` runs of it may go on at a time. Make it on a thread that is bound to no
        core."""
        self._chain = chain
        self._takes = {name for session in sessions for name in session.takes}
        self._gives = set(chain.outputs)
        pinned = next((s.pinned_cores for s in sessions if s.pinned_cores), ())
        self._cores = {pinned[0]} if pinned else os.sched_getaffinity(0)
        self._caller = threading.local()
        self._room = threading.Semaphore(at_once)

    def run(self, feeds: Arrays, outputs: Sequence[str], cancel: Cancellation) -> Arrays:
        """See `stages.StageRunner`; what it does not compute itself it passes on."""
        own = [name for name in outputs if name in self._gives]
        passed: Arrays = {name: feeds[name] for name in outputs if name not in self._gives}
        taken: Arrays = {name: feeds[name] for name in feeds if name in self._takes}
        with self._room:
            # A thread runs several stages, one after the other.
            if getattr(self._caller, "cores", None) != self._cores:
                os.sched_setaffinity(0, self._cores)
                self._caller.cores = self._cores
            return self._chain.run_checked(taken, own, cancel) | passed


OpenStage = Callable[[StageHere], tuple[Chain, Sequence[Session]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A divided epoch in this worker."""

    links: Links
    runner: DividedRunner | None = None
    """None: the owner is elsewhere."""
    comparing: Comparing | None = None
    outputs: tuple[str, ...] = ()
    """Names of those of the whole model, if the owner is here."""

    @property
    def key(self) -> str:
        """See `Ready`."""
        return "" if self.links.keys is None else self.links.keys.public

    def close(self) -> bool:
        """See `Links`."""
        return self.links.close()

    def listen(self, message: Listen) -> None:
        """See `Links`."""
        self.links.listen(message)

    def dial(self, message: Dial) -> None:
        """See `Links`."""
        self.links.dial(message)

    def give_up(self, message: GiveUpRoute) -> None:
        """A route is of no use any more. Raises: ProtocolError: the owner is elsewhere."""
        if self.runner is None:
            raise ProtocolError("told to give up a route, whose owner is elsewhere")
        self.runner.route_is_lost(message.route, message.why)

    def compare(
        self, message: Compare, has_pause: Callable[[], bool], send: Callable[[Message], None]
    ) -> None:
        """See `Comparing`. Raises: ProtocolError: the owner is elsewhere."""
        if self.comparing is None:
            raise ProtocolError("told to compare, but the owner is elsewhere")
        self.comparing.begin(message, self.outputs, has_pause, send)


def host(
    epoch: Epoch, part: DividedPart, open_stage: OpenStage, tell: Callable[[Message], None]
) -> Divided:
    """Open the stages of a device that is not the owner's; `tell` sends to the agent.

    Raises: as `open_stage` and `Links`.
    """
    return Divided(links=Links(epoch, part, _opened(part, open_stage), tell))


def own(
    epoch: Epoch,
    part: DividedPart,
    open_stage: OpenStage,
    tell: Callable[[Message], None],
    *,
    fallback: Runner,
    at_once: int,
    outputs: Sequence[TensorSpec],
) -> Divided:
    """Open what the owner's worker has; requests that are lost on the way run on `fallback`,
    `at_once` at a time.

    Raises: as `host`.
    """
    routes = [RouteState(number=r.number, share=r.share, most=r.most) for r in part.routes]
    shapes = {str(name): shape for name, shape in part.shapes} if part.shapes else None
    runner = DividedRunner(routes, fallback, at_once, shapes)
    losing = _Losing(part, runner, tell)
    links = Links(epoch, part, _opened(part, open_stage), losing.tell, runner, outputs)
    runner.attach(links.stages)
    return Divided(
        links=links,
        runner=runner,
        comparing=Comparing(epoch, runner),
        outputs=tuple(spec.name for spec in outputs),
    )


def _opened(part: DividedPart, open_stage: OpenStage) -> Mapping[int, StageRunner]:
    return {s.number: ChainStage(*open_stage(s), s.threads) for s in part.stages}


class _Losing:
    """Has the routes given up at once of which a neighbour is lost: else requests would be sent
    there until the agent says so."""

    def __init__(
        self, part: DividedPart, runner: DividedRunner, tell: Callable[[Message], None]
    ) -> None:
        self._stages = {n.device: frozenset(n.stages) for n in part.neighbours}
        self._routes = Division(crossings=part.crossings).routes()
        self._runner = runner
        self._tell = tell

    def tell(self, message: Message) -> None:
        """Send a message to the agent."""
        if isinstance(message, Unlinked):
            for number, stages in enumerate(self._routes):
                if stages & self._stages[message.device]:
                    self._runner.route_is_lost(number, message.why)
        self._tell(message)
