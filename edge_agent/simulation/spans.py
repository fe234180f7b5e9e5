"""Who did what when: what a timeline is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edge_agent.simulation.events import Events


class SpanKind(StrEnum):
    """What was going on."""

    RUN = "run"
    SEND = "send"
    """A chunk is made ready by the processor of its source."""
    WIRE = "wire"
    RECEIVE = "receive"
    REQUEST = "request"
    """From arrival to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that went on for a time, for one request."""

    kind: SpanKind
    request: int
    """Requests are counted from 0 in the order in which they arrived."""
    where: str
    """The resource, as metrics name it: a device, device/unit, a link, a medium."""
    what: str
    """Of a run: what ran; of a request: its route's number."""
    start_s: float
    stop_s: float


class SpanLog:
    """What went on so far, if that is wanted."""

    def __init__(self, events: Events, *, is_kept: bool) -> None:
        self._events = events
        self._is_kept = is_kept
        self._spans: list[Span] = []

    def add(self, kind: SpanKind, request: int, where: str, start_s: float, what: str = "") -> None:
        """Something that began at `start_s` ends now."""
        if self._is_kept:
            self._spans.append(
                Span(
                    kind=kind,
                    request=request,
                    where=where,
                    what=what,
                    start_s=start_s,
                    stop_s=self._events.now_s,
                )
            )

    def spans(self) -> tuple[Span, ...]:
        """All of them, in the order of their starts."""
        return tuple(sorted(self._spans, key=lambda span: (span.start_s, span.stop_s)))
