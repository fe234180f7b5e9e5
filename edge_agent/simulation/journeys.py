"""What becomes of one request: from where it arrived through stations and streams to its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_agent.problems import Link
from edge_agent.simulation.deployment import Arm, Hop, Leg, Meeting, Run
from edge_agent.simulation.events import Act
from edge_agent.simulation.stations import Station
from edge_agent.simulation.transfers import Stream


def _nothing() -> None:
    """No lane to leave, or no credit to give back."""


@dataclass(slots=True, eq=False)
class Places:
    """What requests pass through, by number."""

    stations: Sequence[Station]
    streams: Sequence[Stream]
    joules_per_byte: Callable[[Link], float]
    """Of a transfer: the interfaces and both processors."""


class Journey:
    """A request under way, with what it cost so far."""

    def __init__(
        self,
        number: int,
        route: int,
        legs: Sequence[Leg],
        places: Places,
        done: Callable[[Journey], None],
        *,
        arrived_s: float,
    ) -> None:
        self.number = number
        self.route = route
        self.arrived_s = arrived_s
        self.joules = 0.0
        self.wire_bytes = 0
        self._legs = legs
        self._places = places
        self._done = done

    def begin(self) -> None:
        """Set out."""
        self._go(0, _nothing, _nothing)

    def _go(self, at: int, leave: Act, consumed: Act) -> None:
        """Begin leg `at`; `leave` frees the lane behind, `consumed` gives back the credit of what
        arrived."""
        if at == len(self._legs):
            leave()
            consumed()
            self._done(self)
            return
        leg = self._legs[at]
        match leg:
            case Run():
                leave()
                self._run(leg, consumed, lambda free: self._go(at + 1, free, _nothing))
            case Hop():
                consumed()
                self._hop(leg, leave, lambda taken: self._go(at + 1, _nothing, taken))
            case Meeting():
                leave()
                consumed()
                self._meet(leg, lambda: self._go(at + 1, _nothing, _nothing))

    def _run(self, run: Run, started: Act, then: Callable[[Act], None]) -> None:
        station = self._places.stations[run.station]

        def done() -> None:
            self.joules += run.work_s * station.plan.power_w
            then(station.leave)

        station.run(self.number, run.work_s, started=started, done=done)

    def _hop(self, hop: Hop, granted: Act, then: Callable[[Act], None]) -> None:
        stream = self._places.streams[hop.stream]

        def arrived() -> None:
            self.wire_bytes += hop.size_bytes
            self.joules += hop.size_bytes * self._places.joules_per_byte(stream.connection.link)
            then(lambda: stream.consumed(hop.size_bytes))

        stream.send(self.number, hop.size_bytes, granted=granted, done=arrived)

    def _meet(self, meeting: Meeting, then: Act) -> None:
        missing = len(meeting.arms)

        def one_done() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                then()

        for arm in meeting.arms:
            self._set_out(arm, one_done)

    def _set_out(self, arm: Arm, done: Act) -> None:
        back = arm.back

        def ran(leave: Act) -> None:
            if back is None:
                leave()
                done()
            else:
                self._hop(back, leave, came_back)

        def came_back(consumed: Act) -> None:
            consumed()
            done()

        if arm.there is None:
            self._run(arm.run, _nothing, ran)
        else:
            self._hop(arm.there, _nothing, lambda taken: self._run(arm.run, taken, ran))
