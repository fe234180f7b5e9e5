"""Start of a worker process: `python -m edge_agent.worker FD [--background] [--divided]`.

FD is a connected socket: the first frame on it is the deployment, the others are requests and what
belongs to them, and further deployments; before it, a file may be named that is to be opened
already while the rest of the deployment is found out.
When the socket closes, the agent has retired this worker or is dead, and the worker ends at once.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

from edge_agent.errors import EdgeAgentError
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.wire.hosting import HostStages
from edge_agent.wire.messages import (
    Codec,
    Deployment,
    Message,
    RunError,
    decode,
    error_text,
)
from edge_agent.wire.opening import OpenAhead, OpenedAhead
from edge_agent.worker.epochs import Opened
from edge_agent.worker.serving import Serving

SWITCH_S = 5e-4
"""Longest time that the opening of an epoch keeps the interpreter from a thread that serves."""


def _import_runtime(is_background: bool, is_divided: bool) -> None:
    # Takes longer than anything else here, and goes on while the agent checks the model.
    if is_background:
        from edge_agent.engine.background import give_way

        give_way()  # this thread alone: the ones that serve keep their priority
    from edge_agent.worker import opening

    opening.load()
    if is_divided:
        opening.load_divided()


def _end_with(stream: FrameStream) -> None:
    # From a thread of its own: a run or the opening of a model may take longer than anybody waits.
    stream.wait_until_closed()
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Serve until the stream closes."""
    sys.setswitchinterval(SWITCH_S)
    stream = FrameStream(socket.socket(fileno=int(arguments[0])), takes_descriptors=True)
    threading.Thread(target=_end_with, args=(stream,), daemon=True).start()
    is_background = "--background" in arguments
    loads = is_background, "--divided" in arguments
    importing = threading.Thread(target=_import_runtime, args=loads, daemon=True)
    importing.start()
    try:
        _serve(stream, importing, is_background=is_background)
    except ConnectionLost:
        # Ending the interpreter the slow way would wait for runs whose answers nobody wants.
        os._exit(0)


def _serve(stream: FrameStream, importing: threading.Thread, *, is_background: bool) -> None:
    codec = Codec()
    raw, _ = stream.receive()
    start = decode(codec.to_new_worker, raw)
    importing.join()
    if isinstance(start, HostStages):
        from edge_agent.worker.hosting import serve_stages

        serve_stages(stream, start)
        return
    serving: Serving

    def tell(message: Message) -> None:
        # Nothing is told before the agent says to whom to connect, which `serving` hears.
        serving.send(message)

    opened = _first_epoch(stream, start, tell, is_background=is_background)
    if opened is None:
        stream.receive()  # only the end of the stream can come
        return
    from edge_agent.worker import opening

    serving = Serving(stream, opened, partial(opening.open_deployment, is_background=True))
    stream.send(Codec().encode(opened.ready()))
    del opened  # or its sessions would stay when another epoch takes over
    serving.run()


def _first_epoch(
    stream: FrameStream,
    start: OpenAhead | Deployment,
    tell: Callable[[Message], None],
    *,
    is_background: bool,
) -> Opened | None:
    """What is served first; None if it cannot be opened, which the agent was told."""
    codec = Codec()
    from edge_agent.worker import opening

    ahead = None
    if isinstance(start, OpenAhead):
        ahead = opening.open_ahead(start.file, is_background=is_background)
        stream.send(codec.encode(OpenedAhead()))
        raw, _ = stream.receive()
        opened = decode(codec.to_new_worker, raw)
        assert isinstance(opened, Deployment)
        start = opened
    try:
        return opening.open_deployment(start, is_background=is_background, tell=tell, ahead=ahead)
    except EdgeAgentError as error:
        refused = RunError(
            epoch=start.epoch, sequence=-1, code=error.code, message=error_text(error)
        )
        stream.send(codec.encode(refused))
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
