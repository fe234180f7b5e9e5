"""How consecutive subgraphs are run as one model: who needs which value, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from edge_agent import clock
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.session import Session, check_names
from edge_agent.engine.values import array_of, check_array
from edge_agent.tensors import Arrays, TensorSpec


class Turns:
    """What keeps subgraphs from running more at once than was planned for their resource.

    All chains that share one share its turns, for their runs would come on top of each other.
    """

    def __init__(self, most: int) -> None:
        """`most` requests run at once at all."""
        self._most = most
        self._turns: dict[tuple[str, int], AbstractContextManager[Any]] = {}

    def of(self, resource: str, at_once: int | None) -> AbstractContextManager[Any]:
        """What a subgraph holds while it runs, of which `at_once` may run on `resource`; None: any
        number."""
        if at_once is None or at_once >= self._most:
            return nullcontext()
        key = (resource, at_once)
        if key not in self._turns:
            self._turns[key] = threading.Semaphore(at_once)
        return self._turns[key]


class Chain:
    """Sessions of consecutive subgraphs; any number of threads may run it at once.

    Values between sessions stay in ONNX Runtime, whatever their type, and are freed as soon as the
    last session that uses them has run. Sessions of which nothing is wanted are not run.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        inputs: Sequence[str],
        outputs: Sequence[str],
        turns: Sequence[AbstractContextManager[Any]] | None = None,
    ) -> None:
        """`inputs` and `outputs` are those of the whole model; sessions are in topological order.

        `turns` has an entry for each session: it is held while the session runs, so that no unit
        runs more at once than was planned for it.

        Raises: ValueError if a session needs a value, or the model an output, that nothing before
            it provides.
        """
        self.sessions = tuple(sessions)
        self._turns = tuple(turns) if turns is not None else (nullcontext(),) * len(self.sessions)
        self.outputs = tuple(dict.fromkeys(outputs))
        self._inputs = tuple(dict.fromkeys(inputs))
        self._overridable = tuple(s.name for session in sessions for s in session.overridable)
        self._takes = tuple(dict.fromkeys((*self._inputs, *self._overridable)))
        self._specs = _specs_of_feeds(self.sessions, self._takes)
        self._given_by_first = set(self.sessions[0].output_names) if self.sessions else set()
        self._required = self._required_inputs()
        self._check_order()

    def _required_inputs(self) -> tuple[str, ...]:
        needed = {n for session in self.sessions for n in session.required_inputs}
        needed |= set(self.outputs)
        return tuple(name for name in self._inputs if name in needed)

    def _check_order(self) -> None:
        known = set(self._takes)
        for session in self.sessions:
            if missing := [n for n in session.required_inputs if n not in known]:
                raise ValueError(f"{session.path.name} needs {missing}, which nothing provides")
            known.update(session.output_names)
        if missing := [name for name in self.outputs if name not in known]:
            raise ValueError(f"no session gives the outputs {missing}")

    def pin_caller(self) -> None:
        """Bind the calling thread to the core that the sessions leave to it, if they are pinned."""
        for session in self.sessions:
            session.pin_caller()

    def run(
        self, feeds: Arrays, outputs: Sequence[str] = (), cancel: Cancellation | None = None
    ) -> Arrays:
        """Compute `outputs` (all of them if none is named) from `feeds`, by name.

        Raises: InputMismatch; RunFailed; the reason of `cancel`.
        """
        wanted = tuple(dict.fromkeys(outputs)) or self.outputs
        self.check(feeds, wanted)
        return self.run_checked(feeds, wanted, cancel)

    def run_checked(
        self,
        feeds: Arrays,
        wanted: Sequence[str],
        cancel: Cancellation | None = None,
        took_s: dict[Session, float] | None = None,
    ) -> Arrays:
        """`run` for a request that was compared with what the model declares before.

        `wanted` names each output once. The seconds of each session that runs go into
        `took_s`. Raises: RunFailed; the reason of `cancel`.
        """
        if len(self.sessions) == 1 and self._given_by_first.issuperset(wanted):
            with self._turns[0]:
                started_s = clock.precise_s()
                answer = self.sessions[0].run_checked(feeds, wanted, cancel)
                if took_s is not None:
                    took_s[self.sessions[0]] = clock.precise_s() - started_s
            return answer
        values: dict[str, Any] = dict(feeds)
        given = set(wanted)
        for step in self._steps(wanted):
            session = step.session
            if cancel is not None:
                cancel.check()
            takes = {n: session.value_of(n, values[n]) for n in session.takes if n in values}
            to_arrays = not session.containers.isdisjoint(given.intersection(step.gives))
            with step.turn:
                started_s = clock.precise_s()
                values |= session.compute(
                    takes, step.gives, cancel, to_arrays=to_arrays, staying=step.staying
                )
                if took_s is not None:
                    took_s[session] = clock.precise_s() - started_s
            del takes
            for name in step.drops:
                values.pop(name, None)
        return {name: array_of(name, values[name]) for name in wanted}

    def check(self, feeds: Arrays, outputs: Sequence[str] = ()) -> None:
        """Compare a request with what the model declares, without running it.

        Raises: InputMismatch for names, element types and fixed dimensions that differ.
        """
        check_names(self._required, self._takes, feeds, self.outputs, outputs)
        for name, array in feeds.items():
            if name in self._specs:
                check_array(self._specs[name], array)

    def _steps(self, wanted: Sequence[str]) -> list[_Step]:
        """The sessions to run, in order."""
        steps: list[_Step] = []
        needed = set(wanted)
        memories: dict[str, set[str]] = {name: {""} for name in wanted}
        """Where each value is read."""
        for session, turn in zip(reversed(self.sessions), reversed(self._turns), strict=True):
            gives = tuple(n for n in session.output_names if n in needed)
            if not gives:
                continue
            drops = tuple(n for n in session.takes if n not in needed)
            needed = (needed - set(gives)) | set(session.takes)
            stays = {session.memory} if session.memory else None
            steps.append(
                _Step(
                    session=session,
                    turn=turn,
                    gives=gives,
                    drops=drops,
                    staying=frozenset(n for n in gives if memories[n] == stays),
                )
            )
            for name in session.takes:
                memories.setdefault(name, set()).add(session.memory)
        return steps[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One session of a run."""

    session: Session
    turn: AbstractContextManager[Any]
    gives: tuple[str, ...]
    """What it is to compute."""
    drops: tuple[str, ...]
    """Values that nobody needs after it."""
    staying: frozenset[str]
    """Of `gives`, what is read by sessions on the same unit alone."""


def _specs_of_feeds(sessions: Sequence[Session], names: Sequence[str]) -> Mapping[str, TensorSpec]:
    """The first declaration of each graph input."""
    found: dict[str, TensorSpec] = {}
    for session in sessions:
        for spec in (*session.inputs, *session.overridable):
            if spec.name in names:
                found.setdefault(spec.name, spec)
    return found
