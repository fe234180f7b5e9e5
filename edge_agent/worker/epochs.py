"""What a worker has of an epoch, from its opening until the last thread that serves it has left."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_agent.engine.memory import give_back_freed
from edge_agent.errors import EdgeAgentError, ProtocolError
from edge_agent.plans import Epoch
from edge_agent.tensors import TensorSpec
from edge_agent.transport.local import ConnectionLost
from edge_agent.wire.messages import (
    Deployment,
    Message,
    Ready,
    RunError,
    error_text,
)
from edge_agent.wire.parts import Unopened
from edge_agent.worker.by_shape import ShapeCounter
from edge_agent.worker.runners import Runner

if TYPE_CHECKING:
    # A worker of a model that is not divided does without sockets to other devices.
    from edge_agent.worker.dividing import Divided

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Opened:
    """An epoch that can serve."""

    epoch: Epoch
    runner: Runner
    """Nobody else may keep it, or it outlives the epoch."""
    instances: int
    """How many threads are to serve it."""
    counter: ShapeCounter | None = None
    """None: shapes are not counted."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    unopened: tuple[Unopened, ...] = ()
    opened_s: float = 0.0
    divided: Divided | None = None
    """What of it runs on other devices; None: nothing."""
    leases: ExitStack = field(default_factory=ExitStack)
    """Closed when nothing maps its files any more."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one of its threads that waits for the next request. Each epoch has its own, so
    that threads of the one before, which leave, do not wait for a request."""
    _left: int = 0
    _leaving: threading.Lock = field(default_factory=threading.Lock)

    @property
    def threads(self) -> int:
        """How many serve it: of a divided one, also one that reads while all others wait for other
        devices, and one for the request that is sent ahead."""
        return self.instances if self.divided is None else self.instances + 2

    def ready(self) -> Ready:
        """What the agent is told of it."""
        return Ready(
            epoch=self.epoch,
            inputs=self.inputs,
            outputs=self.outputs,
            opened_s=self.opened_s,
            takes_connections=True,
            unopened=self.unopened,
            key="" if self.divided is None else self.divided.key,
        )

    def leave(self) -> None:
        """A thread does not serve it any more; after the last one, it is closed."""
        with self._leaving:
            self._left += 1
            is_over = self._left == self.threads
        if is_over:
            self.close()

    def close(self) -> None:
        """Give up its sessions, and then the files that they had mapped."""
        divided, self.divided = self.divided, None
        has_ended = divided is None or divided.close()
        del self.runner
        if has_ended:  # else they are given back with this process
            self.leases.close()
        give_back_freed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What an epoch needs to know of the one beside which it is opened."""

    counter: ShapeCounter | None
    """It goes on with this, if shapes are counted."""
    has_pause: Callable[[], bool]
    """Blocks until nothing was run for a while; whether that came to be before long."""
    tell: Callable[[Message], None] = lambda _message: None
    """Sends to the agent."""


class NextEpoch:
    """The epoch that is opened beside the one that serves, until it takes over."""

    def __init__(self, open_deployment: Callable[[Deployment, Beside], Opened]) -> None:
        """Make it on a thread that is bound to no core."""
        self._open_deployment = open_deployment
        self._cores = os.sched_getaffinity(0)
        self._opening = threading.Lock()
        """Held while sessions are created: one after the other."""
        self._changing = threading.Lock()
        self._opened: Opened | None = None
        self._unwanted: set[Epoch] = set()
        """Discarded before they were open."""

    def begin(
        self, deployment: Deployment, beside: Beside, send: Callable[[Message], None]
    ) -> None:
        """Open it on another thread, which sends what came of it.

        If one was opened before and has not taken over, it is given up.
        """
        threading.Thread(
            target=self._open, args=(deployment, beside, send), name="open", daemon=True
        ).start()

    def take(self, epoch: Epoch) -> Opened:
        """It takes over.

        Raises:
            ProtocolError: it is not ready.
        """
        opened = self._exchange(None)
        if opened is None or opened.epoch != epoch:
            raise ProtocolError(f"told to switch to {epoch}, which is not ready")
        return opened

    def divided(self, epoch: Epoch) -> Divided | None:
        """What of it runs on other devices; None: nothing, or it is not open, or has taken over."""
        with self._changing:
            opened = self._opened
            return opened.divided if opened is not None and opened.epoch == epoch else None

    def discard(self, epoch: Epoch) -> None:
        """It will not take over: give it up, now or when it is open."""
        with self._changing:
            opened = self._opened
            if opened is None or opened.epoch != epoch:
                self._unwanted.add(epoch)
                return
            self._opened = None
        opened.close()

    def _exchange(self, opened: Opened | None) -> Opened | None:
        """Make that the next epoch; the one that it was before, or, if nobody wants it any more,
        itself."""
        with self._changing:
            if opened is not None and opened.epoch in self._unwanted:
                self._unwanted.remove(opened.epoch)
                return opened
            before, self._opened = self._opened, opened
        return before

    def _open(
        self, deployment: Deployment, beside: Beside, send: Callable[[Message], None]
    ) -> None:
        with self._opening, suppress(ConnectionLost):
            send(self._answer(deployment, beside))

    def _answer(self, deployment: Deployment, beside: Beside) -> Message:
        try:
            # The thread that began this may be bound, and the sessions' threads would be too.
            os.sched_setaffinity(0, self._cores)
            opened = self._open_deployment(deployment, beside)
        except EdgeAgentError as error:
            code, text = error.code, error_text(error)
        except Exception as error:
            log.exception("%s could not be opened", deployment.epoch)
            code, text = EdgeAgentError.code, f"{type(error).__name__}: {error_text(error)}"
        else:
            before = self._exchange(opened)
            if before is not None:
                before.close()
            give_back_freed()  # what reading the graphs took, as much as a tenth of the sessions
            return opened.ready()
        return RunError(epoch=deployment.epoch, sequence=-1, code=code, message=text)
