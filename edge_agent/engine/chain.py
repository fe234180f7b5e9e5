"""How consecutive subgraphs are run as one model: who needs which value, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.session import Session, check_names
from edge_agent.engine.values import array_of, check_array
from edge_agent.tensors import Arrays, TensorSpec


class Chain:
    """Sessions of consecutive subgraphs; any number of threads may run it at once.

    Values between sessions stay in ONNX Runtime, whatever their type, and are freed as soon as the
    last session that uses them has run. Sessions of which nothing is wanted are not run.
    """

    def __init__(
        self, sessions: Sequence[Session], inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """`inputs` and `outputs` are those of the whole model; sessions are in topological order.

        Raises: ValueError if a session needs a value, or the model an output, that nothing before
            it provides.
        """
        self.sessions = tuple(sessions)
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
        self, feeds: Arrays, wanted: Sequence[str], cancel: Cancellation | None = None
    ) -> Arrays:
        """`run` for a request that was compared with what the model declares before.

        `wanted` names each output once. Raises: RunFailed; the reason of `cancel`.
        """
        if len(self.sessions) == 1 and self._given_by_first.issuperset(wanted):
            return self.sessions[0].run_checked(feeds, wanted, cancel)
        values: dict[str, Any] = dict(feeds)
        given = set(wanted)
        for session, gives, drops in self._steps(wanted):
            if cancel is not None:
                cancel.check()
            takes = {n: session.value_of(n, values[n]) for n in session.takes if n in values}
            to_arrays = not session.containers.isdisjoint(given.intersection(gives))
            values |= session.compute(takes, gives, cancel, to_arrays=to_arrays)
            del takes
            for name in drops:
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

    def _steps(
        self, wanted: Sequence[str]
    ) -> list[tuple[Session, tuple[str, ...], tuple[str, ...]]]:
        """(session, outputs to compute, values to drop after it) of the sessions to run."""
        steps: list[tuple[Session, tuple[str, ...], tuple[str, ...]]] = []
        needed = set(wanted)
        for session in reversed(self.sessions):
            gives = tuple(n for n in session.output_names if n in needed)
            if not gives:
                continue
            drops = tuple(n for n in session.takes if n not in needed)
            needed = (needed - set(gives)) | set(session.takes)
            steps.append((session, gives, drops))
        return steps[::-1]


def _specs_of_feeds(sessions: Sequence[Session], names: Sequence[str]) -> Mapping[str, TensorSpec]:
    """The first declaration of each graph input."""
    found: dict[str, TensorSpec] = {}
    for session in sessions:
        for spec in (*session.inputs, *session.overridable):
            if spec.name in names:
                found.setdefault(spec.name, spec)
    return found
