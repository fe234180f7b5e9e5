"""A worker process that runs stages of other devices' models, as the thread that hosts them sees
it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from edge_agent.agent.processes import Child
from edge_agent.agent.workers import when_opened
from edge_agent.devices import DeviceId
from edge_agent.errors import ProtocolError, WorkerLost, error_from_code
from edge_agent.plans import Epoch
from edge_agent.transport import local
from edge_agent.wire.deploying import EpochLinked, EpochUnlinked, ListeningFor, failure
from edge_agent.wire.hosting import HostStages, Linked, Listening, Unlinked
from edge_agent.wire.messages import Codec, Message, Ready, RunError, WorkerMessage, decode
from edge_agent.wire.parts import MAX_TOLD_CHARACTERS

log = logging.getLogger(__name__)

END_S: Final = 1.0


class StageWorker:
    """See the module."""

    def __init__(
        self,
        child: Child,
        epoch: Epoch,
        tell: Callable[[Message], None],
        offend: Callable[[DeviceId, str], None],
    ) -> None:
        """`tell` sends to the owner; `offend` hears which neighbour broke which rule."""
        self._offend = offend
        self._child = child
        self._epoch = epoch
        self._tell = tell
        self._stream = local.FrameStream(child.stream)
        self._codec = Codec()
        self._sending = threading.Lock()
        self._is_ending = False

    def tell(self, message: Message) -> None:
        """Send it a message; one that is dead is told of elsewhere."""
        with self._sending:
            try:
                self._stream.send(self._codec.encode(message))
            except local.ConnectionLost:
                log.info("a worker of %s is gone", self._epoch)

    def open(self, message: HostStages) -> str:
        """Have it open the stages; the key by which other workers know it.

        Raises:
            WorkerLost: it died.
            EdgeAgentError: it cannot open them.
        """
        self.tell(message)
        answer = decode(self._codec.from_worker, when_opened(self._child, self._stream))
        if isinstance(answer, RunError):
            raise error_from_code(answer.code, answer.message)
        if not isinstance(answer, Ready):
            raise ProtocolError(f"worker sent {type(answer).__name__}")
        threading.Thread(target=self._read, name="stage-worker", daemon=True).start()
        return answer.key

    def _read(self) -> None:
        while True:
            try:
                raw, _ = self._stream.receive()
            except local.ConnectionLost:
                break
            message: WorkerMessage = decode(self._codec.from_worker, raw)
            match message:
                case Listening(device=device, port=port):
                    self._tell(ListeningFor(epoch=self._epoch, device=device, port=port))
                case Linked():
                    self._tell(EpochLinked(epoch=self._epoch))
                case Unlinked(device=device, why=why, is_offence=is_offence):
                    if is_offence:
                        self._offend(device, why)
                    why = why[:MAX_TOLD_CHARACTERS]
                    self._tell(EpochUnlinked(epoch=self._epoch, device=device, why=why))
                case other:
                    log.error("a worker of %s sent %s", self._epoch, type(other).__name__)
                    break
        if not self._is_ending:
            self._child.end()
            how = self._child.how_it_ended()
            log.warning("the worker of %s died (%s)", self._epoch, how)
            self._tell(failure(self._epoch, WorkerLost(f"the worker died ({how})")))

    def end(self) -> None:
        """End the process."""
        self._is_ending = True
        self._child.end(END_S)
