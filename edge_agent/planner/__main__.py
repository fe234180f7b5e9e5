"""Start of a planner process: `python -m edge_agent.planner FD SETTINGS`.

FD is a connected socket; SETTINGS are the agent's, as JSON. The planner answers one request after
the other and ends when the socket closes.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace

from edge_agent.config import Settings, decode_settings
from edge_agent.distributions import Planned
from edge_agent.errors import EdgeAgentError
from edge_agent.planner.answering import Report, answer
from edge_agent.planner.appraising import Wanted, answer_loaded
from edge_agent.planner.posing import pose
from edge_agent.planner.telling import Telling
from edge_agent.plans import Target
from edge_agent.store.peer_times import PeerTimesStore
from edge_agent.store.profiled import ProfiledStore
from edge_agent.transport import local
from edge_agent.wire.messages import (
    Codec,
    Distributions,
    Failure,
    Message,
    Progress,
    decode,
    error_text,
)
from edge_agent.wire.planning import TO_PLANNER, PlanLoaded, PlannerRequest, PlanProblem
from edge_agent.wire.routes import pack

log = logging.getLogger(__name__)


def _planned(message: PlannerRequest, settings: Settings, report: Report) -> Planned:
    match message:
        case PlanProblem():
            return answer(
                message.problem,
                message.targets,
                is_pareto=message.is_pareto,
                effort=message.effort,
                report=report,
            )
        case PlanLoaded():
            return _planned_loaded(message, settings, report)


def _planned_loaded(message: PlanLoaded, settings: Settings, report: Report) -> Planned:
    report(0.0, "reading what was measured")
    profiled = ProfiledStore(settings.state).load(message.name, message.model)
    times = PeerTimesStore(settings.state)
    asked = {*message.targets, *(bound.target for bound in message.bounds)}
    posed = pose(
        profiled,
        message.around,
        {
            peer.device: times.load(message.name, message.model, peer.device)
            for peer in message.around.peers
        },
        bounds=message.bounds,
        pins=message.pins,
        most_routes=message.most_routes,
        # Without targets it is planned for all of them.
        is_for_throughput=not message.targets or Target.THROUGHPUT in asked,
    )
    wanted = Wanted(
        targets=message.targets,
        is_pareto=message.is_pareto,
        effort=message.effort,
        is_divided=message.is_divided,
        is_compared=message.is_compared,
    )
    planned = answer_loaded(posed, wanted, report)
    return replace(planned, disturbed_fraction=profiled.profile.disturbed_fraction)


def _answer(raw: bytes, settings: Settings, tell: Report) -> Message:
    try:
        with Telling(tell) as telling:
            planned = _planned(decode(TO_PLANNER, raw), settings, telling.report)
        return Distributions(pack(planned))
    except EdgeAgentError as error:
        return Failure(request=None, code=error.code, message=error_text(error))
    except (Exception, MemoryError) as error:
        log.exception("planning failed")
        text = f"the planner failed: {type(error).__name__}: {error_text(error)}"
        return Failure(request=None, code=EdgeAgentError.code, message=text)


def _end_with(stream: local.FrameStream) -> None:
    # A search may take long, and nobody wants it any more.
    stream.wait_until_closed()
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Answer requests until the socket closes."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="planner: %(message)s")
    fd, settings_text = arguments
    settings = decode_settings(settings_text)
    with socket.socket(fileno=int(fd)) as connected:
        stream, codec = local.FrameStream(connected), Codec()
        threading.Thread(target=_end_with, args=(stream,), daemon=True).start()

        def tell(fraction: float, what: str) -> None:
            # An agent that is gone is noticed where the answer is sent.
            with suppress(local.ConnectionLost):
                stream.send(codec.encode(Progress(fraction=fraction, what=what)))

        while True:
            try:
                raw, _ = stream.receive()
                stream.send(codec.encode(_answer(raw, settings, tell)))
            except local.ConnectionLost:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
