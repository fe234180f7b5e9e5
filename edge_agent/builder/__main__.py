"""Start of a builder process: `python -m edge_agent.builder FD SETTINGS`.

FD is a connected socket; SETTINGS are the agent's, as JSON. The builder answers one question
after the other and ends when the socket closes.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_agent import clock
from edge_agent.config import Settings, decode_settings
from edge_agent.errors import EdgeAgentError, ProtocolError, StorageError
from edge_agent.transport import local
from edge_agent.wire.cutting import AdmitStage, CutStages, StagesCut
from edge_agent.wire.messages import (
    Admit,
    AskDevice,
    AskGrant,
    Build,
    BuilderRequest,
    Codec,
    Failure,
    Grant,
    Message,
    Probed,
    Progress,
    Trying,
    decode,
    error_text,
)
from edge_agent.wire.opening import Staged

log = logging.getLogger(__name__)

PROGRESS_S = 0.1


class Channel:
    """The socket to the agent."""

    def __init__(self, stream: local.FrameStream) -> None:
        self._stream = stream
        self._codec = Codec()
        self._reported_s = float("-inf")

    def receive(self) -> BuilderRequest:
        """The next message of the agent."""
        raw, _ = self._stream.receive()
        message: BuilderRequest = decode(self._codec.to_builder, raw)
        return message

    def send(self, message: Message) -> None:
        """Send a message to the agent."""
        self._stream.send(self._codec.encode(message))

    def ask_grant(self) -> None:
        """Block until the agent allows the next slice."""
        self.send(AskGrant())
        answer = self.receive()
        if not isinstance(answer, Grant):
            raise ProtocolError(f"got {type(answer).__name__}, want Grant")

    def report(self, fraction: float, what: str) -> None:
        """Tell the agent how far it is, at most ten times a second."""
        now_s = clock.monotonic_s()
        if now_s - self._reported_s >= PROGRESS_S or fraction in (0.0, 1.0):
            self._reported_s = now_s
            self.send(Progress(fraction=fraction, what=what))


def _answer(message: BuilderRequest, settings: Settings, channel: Channel) -> Message:
    # What each question needs is imported then: admission is on the way to the first answer.
    match message:
        case Admit(path=path, pins=pins, samples=samples):
            from edge_agent.builder.admitting import admit

            return admit(
                Path(path),
                settings,
                pins=pins,
                samples=None if samples is None else Path(samples),
                on_staged=lambda staged: channel.send(Staged(path=str(staged))),
                wait_until_movable=channel.ask_grant,
            )
        case Build():
            from edge_agent.builder.benches import Slices
            from edge_agent.builder.building import Building

            slices = Slices(
                channel.ask_grant,
                channel.report,
                lambda units, is_keeping: channel.send(Trying(units, is_keeping)),
            )
            with temporary_in_staging(settings):
                return Building(message, settings, slices).build()
        case CutStages():
            from edge_agent.builder.cutting import cut_stages

            with temporary_in_staging(settings):
                return StagesCut(cut_stages(message, settings, channel.ask_grant))
        case AdmitStage(stage=stage):
            from edge_agent.builder.stage_admitting import admit_stage

            return admit_stage(stage, settings)
        case AskDevice():
            from edge_agent.profiling.device import this_device

            with temporary_in_staging(settings):
                return Probed(device=this_device(settings))
        case Grant():
            raise ProtocolError("a grant that nobody asked for")


def _end_with(stream: local.FrameStream) -> None:
    # Compiling a large model takes long, and nobody wants it any more. What is left half-done in
    # the staging folders is swept.
    stream.wait_until_closed()
    os._exit(0)


@contextmanager
def temporary_in_staging(settings: Settings) -> Iterator[None]:
    """Have what is written to temporary files lie where it is swept if this process is killed."""
    from edge_agent.store.pool import POOL_FOLDER, Pool

    try:
        pool = Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)
        workspace = pool.workspace()
    except StorageError as error:
        log.info("temporary files lie where the system has them: %s", error)
        yield
        return
    with workspace as scratch:
        before, tempfile.tempdir = tempfile.tempdir, str(scratch.path)
        try:
            yield
        finally:
            tempfile.tempdir = before


def main(arguments: list[str]) -> None:
    """Answer questions until the socket closes."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="builder: %(message)s")
    fd, settings_text = arguments
    settings = decode_settings(settings_text)
    with socket.socket(fileno=int(fd)) as connected:
        stream = local.FrameStream(connected)
        threading.Thread(target=_end_with, args=(stream,), daemon=True).start()
        channel = Channel(stream)
        while True:
            try:
                message = channel.receive()
            except local.ConnectionLost:
                return
            try:
                answer = _answer(message, settings, channel)
            except local.ConnectionLost:
                return
            except EdgeAgentError as error:
                answer = Failure(request=None, code=error.code, message=error_text(error))
            except Exception as error:
                log.exception("%s failed", type(message).__name__)
                text = f"the builder failed: {type(error).__name__}: {error_text(error)}"
                answer = Failure(request=None, code=EdgeAgentError.code, message=text)
            channel.send(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
