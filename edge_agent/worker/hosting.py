"""A worker that hosts stages of another device's model: no request comes to it from its agent."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from functools import partial

from edge_agent.errors import EdgeAgentError
from edge_agent.transport.local import FrameStream
from edge_agent.wire.hosting import Dial, HostStages, Listen
from edge_agent.wire.messages import (
    AgentToHost,
    Codec,
    Message,
    Ready,
    RunError,
    decode,
    error_text,
)
from edge_agent.worker.dividing import host
from edge_agent.worker.opening import open_stage

log = logging.getLogger(__name__)


def serve_stages(stream: FrameStream, hosted: HostStages) -> None:
    """Run stages until the stream closes.

    Raises:
        ConnectionLost: it did.
    """
    codec = Codec()
    sending = threading.Lock()

    def tell(message: Message) -> None:
        encoded = codec.encode(message)
        with sending:
            stream.send(encoded)

    leases = ExitStack()  # until this process ends
    try:
        divided = host(hosted.epoch, hosted.part, partial(open_stage, leases), tell)
    except EdgeAgentError as error:
        log.warning("the stages of %s cannot be opened: %s", hosted.epoch, error)
        tell(RunError(epoch=hosted.epoch, sequence=-1, code=error.code, message=error_text(error)))
        stream.receive()  # only the end of the stream can come
        return
    tell(Ready(epoch=hosted.epoch, inputs=(), outputs=(), opened_s=0.0, key=divided.key))
    while True:
        raw, _ = stream.receive()
        message: AgentToHost = decode(codec.to_host, raw)
        match message:
            case Listen():
                divided.listen(message)
            case Dial():
                divided.dial(message)
