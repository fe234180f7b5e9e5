"""Start of a worker process: `python -m edge_agent.worker [--background]`.

Standard input brings one frame, the deployment, and then stays open: when it closes, the agent
has retired this worker or is dead, and the worker ends at once. Standard output is not used.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

from edge_agent.errors import EdgeAgentError
from edge_agent.transport.zeromq import Context, WorkerLink
from edge_agent.wire.frames import PREFIX, unpack_prefix
from edge_agent.wire.messages import Codec, Deployment, Ready, RunError, decode
from edge_agent.worker.serving import Serving


def _read_deployment(stream: BinaryIO, codec: Codec) -> Deployment | None:
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    message_bytes, _ = unpack_prefix(prefix)
    message = decode(codec.to_worker, stream.read(message_bytes))
    assert isinstance(message, Deployment)
    return message


def _in_thread(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def main(arguments: list[str]) -> None:
    """Serve one epoch until standard input closes."""
    is_background = "--background" in arguments
    codec = Codec()

    def warm_import() -> None:
        from edge_agent.worker import opening  # loads ONNX Runtime meanwhile

        opening.load()

    importing = _in_thread(warm_import)
    deployment = _read_deployment(sys.stdin.buffer, codec)
    if deployment is None:
        os._exit(0)
    importing.join()
    from edge_agent.worker import opening

    link = WorkerLink(Context(), deployment.requests_address, deployment.answers_address)
    try:
        opened = opening.open_deployment(deployment, is_background=is_background)
    except EdgeAgentError as error:
        failed = RunError(epoch=deployment.epoch, sequence=-1, code=error.code, message=str(error))
        link.send(codec.encode(failed))
    else:
        Serving(link, opened.runner, deployment.epoch, deployment.instances).start()
        link.send(
            codec.encode(
                Ready(
                    epoch=deployment.epoch,
                    inputs=opened.inputs,
                    outputs=opened.outputs,
                    opened_s=opened.opened_s,
                )
            )
        )
    while sys.stdin.buffer.read(4096):
        pass
    # The agent took every answer before it closed the pipe, and ending the interpreter the slow
    # way would wait for threads that wait for requests.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
