"""The planner process as the agent sees it: there is one when it is needed, and one request at a
time goes there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edge_agent import clock
from edge_agent.agent.hunger import WINDOW_S, Hunger
from edge_agent.agent.processes import Child
from edge_agent.agent.turns import Turn
from edge_agent.config import Settings, encode_settings
from edge_agent.errors import (
    AgentUnavailable,
    Busy,
    DeadlineExceeded,
    EdgeAgentError,
    ProtocolError,
    error_from_code,
)
from edge_agent.transport import local
from edge_agent.wire.frames import MAX_MESSAGE_BYTES
from edge_agent.wire.messages import (
    Codec,
    Distributions,
    Failure,
    Progress,
    decode,
)
from edge_agent.wire.planning import FROM_PLANNER, PlannerMessage, PlannerRequest

log = logging.getLogger(__name__)

IDLE_S = 30.0
"""An unused planner ends after that: starting another takes a third of a second."""
MOST_WAITING = 4
"""So many requests wait for the one under way; each takes a thread of the agent."""

_LITTLE_S = 2.0
"""What it has computed in so many seconds of a core is done again at once, rather than waited for;
what took more, after as many seconds of starving as below."""
_PATIENT_WINDOWS = 10
_COMPETING = "planning, beside others that take the whole processor"


class Starved(Exception):
    """A planner gets next to nothing of the processor, and may not be given more."""


class Planner:
    """A planner child; used by one thread at a time, except for `kill`.

    It runs where nobody else wants the processor. If that is nowhere, it competes for it at low
    priority until it has answered.
    """

    def __init__(self, settings: Settings, *, competes: bool = False) -> None:
        """Start it; `competes`: from its start on."""
        self._codec = Codec()
        self._child = Child("edge_agent.planner", [encode_settings(settings)])
        self.stream = local.FrameStream(self._child.stream)
        self._competes = competes
        if competes:
            self._child.give_way()
        else:
            self._child.give_way_to_all()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._child.process.poll() is None

    def ask(
        self,
        message: PlannerRequest,
        limit_s: float,
        report: Callable[[Progress], None],
        since_s: float | None = None,
    ) -> Distributions:
        """What it answers; `report` takes how far it is. `limit_s` counts from `since_s`, a time of
        `clock.monotonic_s`; None: from now.

        Raises:
            DeadlineExceeded: it took longer than `limit_s`; it is of no more use.
            ConnectionLost: it died; as above.
            ProtocolError: it answers what makes no sense; as above.
            Starved: it does not get on, and one that competes from its start would.
            EdgeAgentError: the request is too large, or it could not do what was asked.
        """
        encoded = self._codec.encode(message)
        if len(encoded) > MAX_MESSAGE_BYTES:
            raise EdgeAgentError(
                f"the planning problem has {len(encoded)} bytes, want at most {MAX_MESSAGE_BYTES}: "
                "leave out devices or configurations"
            )
        until_s = (clock.monotonic_s() if since_s is None else since_s) + limit_s
        hunger = Hunger(self.pid)
        last: Progress | None = None
        try:
            self.stream.send(encoded, (), until_s)
            while True:
                if self._wait(until_s, hunger):
                    done = 0.0 if last is None else last.fraction
                    report(Progress(fraction=done, what=_COMPETING))
                raw, _ = self.stream.receive(until_s)
                told: PlannerMessage = decode(FROM_PLANNER, raw)
                if not isinstance(told, Progress):
                    break
                report(told)
                last = told
        except DeadlineExceeded as error:
            reached = "it did not begin"
            if last is not None:
                reached = f"it was {last.fraction:.0%} through, at {last.what}"
            raise DeadlineExceeded(
                f"planning took longer than {limit_s:g} s, planner_s of [planning] in the config "
                f"file ({reached}): ask for fewer targets, or when the device does less"
            ) from error
        if self._competes:
            self._competes = False
            self._child.give_way_to_all()
        if isinstance(told, Failure):
            raise error_from_code(told.code, told.message)
        return told

    def _wait(self, until_s: float, hunger: Hunger) -> bool:
        """Until it has something to say, or `until_s`; from when it starves on it competes, which
        is told by True, and waited for no longer."""
        while not self.stream.is_coming(min(until_s, clock.monotonic_s() + WINDOW_S)):
            if clock.monotonic_s() >= until_s:
                break
            if self._competes or not hunger.is_starving():
                continue
            if not self._child.give_way_less():
                if hunger.spent_s < _LITTLE_S or hunger.windows >= _PATIENT_WINDOWS:
                    raise Starved
                continue
            self._competes = True
            log.info("others take the whole processor: the planner competes for it now")
            return True
        return False

    def kill(self) -> None:
        """Stop it at once, from any thread."""
        self._child.kill()

    def release(self) -> None:
        """End the stream, on which it ends by itself."""
        self._child.release()

    def end(self) -> str:
        """End it; how it ended."""
        self._child.end()
        return self._child.how_it_ended()


class Planners:
    """At most one planner at a time: started on demand, ended when it was idle for a while."""

    def __init__(
        self, settings: Settings, *, idle_s: float = IDLE_S, most_waiting: int = MOST_WAITING
    ) -> None:
        self._settings = settings
        self._idle_s = idle_s
        self._most_waiting = most_waiting
        self._turn = Turn()
        """Held by whose request is under way."""
        self._changing = threading.Lock()
        """Held to change what follows."""
        self.asked = 0
        """How many requests are under way or wait."""
        self._planner: Planner | None = None
        self._is_busy = False
        self._is_unwanted: Callable[[], bool] = lambda: False
        """Tells it of the request under way."""
        self._is_given_up = False
        self._timer: threading.Timer | None = None
        self._is_closed = threading.Event()

    @property
    def pid(self) -> int | None:
        """The process id of the planner; None if there is none."""
        with self._changing:
            return None if self._planner is None else self._planner.pid

    def ask(
        self,
        message: PlannerRequest,
        limit_s: float | None = None,
        report: Callable[[Progress], None] = lambda _: None,
        *,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> Distributions:
        """What the planner answers; blocks until it does, after those who asked before.

        It may take `limit_s`; None: `planning.planner_s`. `report` takes how far it is. When
        `is_unwanted` becomes true, it is given up at the next `look_again`.

        Raises:
            Busy: too many others wait.
            DeadlineExceeded: it took longer.
            EdgeAgentError: it died, was given up, or could not do what was asked.
            AgentUnavailable: the agent is about to end.
        """

        def is_over() -> bool:
            return self._is_closed.is_set() or is_unwanted()

        with self._counted(), self._turn.held(is_over) as is_mine:
            if not is_mine and not self._is_closed.is_set():
                raise _unwanted()
            planner = self._take(is_unwanted)
            starved: Planner | None = None
            is_sound = False
            try:
                limit_s = limit_s or self._settings.planning.planner_s
                since_s = clock.monotonic_s()
                try:
                    answer = planner.ask(message, limit_s, report)
                except Starved:
                    starved = planner
                    planner = self._replace(starved)
                    report(Progress(fraction=0.0, what=_COMPETING))
                    answer = planner.ask(message, limit_s, report, since_s)
                is_sound = True
                return answer
            except local.ConnectionLost as error:
                if self._is_closed.is_set():
                    raise _stopping() from error
                how = planner.end()
                if self._is_given_up:
                    raise _unwanted() from error
                log.warning("the planner died (%s); the next request starts another", how)
                raise EdgeAgentError(f"the planner died ({how}): ask again") from error
            except (DeadlineExceeded, ProtocolError):
                planner.kill()
                raise
            except EdgeAgentError:
                is_sound = planner is not starved
                raise
            finally:
                self._give_back(planner, is_sound=is_sound)
                if starved is not None and starved is not planner:
                    # Not before: to end takes the processor too.
                    starved.end()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changing:
            if self.asked > self._most_waiting:
                raise Busy(f"{self.asked} requests to the planner are waited for: ask again later")
            self.asked += 1
        try:
            yield
        finally:
            with self._changing:
                self.asked -= 1

    def _take(self, is_unwanted: Callable[[], bool]) -> Planner:
        with self._changing:
            if self._is_closed.is_set():
                raise _stopping()
            if is_unwanted():
                raise _unwanted()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._planner is not None and not self._planner.is_alive:
                self._planner.end()
                self._planner = None
            if self._planner is None:
                self._planner = Planner(self._settings)
            self._is_busy, self._is_unwanted, self._is_given_up = True, is_unwanted, False
            return self._planner

    def _replace(self, starved: Planner) -> Planner:
        """One that competes, instead of one that starves and may not."""
        log.info("others take the whole processor: another planner is started, which competes")
        starved.kill()
        with self._changing:
            if self._is_closed.is_set():
                raise _stopping()
            if self._is_given_up:
                raise _unwanted()
            self._planner = Planner(self._settings, competes=True)
            return self._planner

    def _give_back(self, planner: Planner, *, is_sound: bool) -> None:
        with self._changing:
            self._is_busy = False
            if is_sound and not self._is_closed.is_set():
                self._timer = threading.Timer(self._idle_s, self._end_idle, [planner])
                self._timer.daemon = True
                self._timer.start()
                return
            self._planner = None
        planner.end()

    def look_again(self) -> None:
        """See which requests are unwanted by now, and end them; who waits for one is told."""
        with self._changing:
            if self._is_busy and self._planner is not None and self._is_unwanted():
                self._is_given_up = True
                self._planner.kill()
        self._turn.look_again()

    def _end_idle(self, planner: Planner) -> None:
        with self._changing:
            is_idle = self._planner is planner and self._timer is threading.current_thread()
            if is_idle:
                self._planner = self._timer = None
        if is_idle:
            planner.end()

    def close(self) -> None:
        """End the planner; who waits for it gets `AgentUnavailable`."""
        self._is_closed.set()
        with self._changing:
            planner, timer, is_busy = self._planner, self._timer, self._is_busy
            if timer is not None:
                timer.cancel()
            if planner is not None:
                planner.kill()
            if not is_busy:
                self._planner = self._timer = None
        self._turn.look_again()
        if planner is not None and not is_busy:
            planner.end()


def _unwanted() -> EdgeAgentError:
    return EdgeAgentError("planning was given up: nobody wants it")


def _stopping() -> AgentUnavailable:
    return AgentUnavailable("the agent is stopping")
