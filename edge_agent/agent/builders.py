"""A builder process as the agent sees it: one question at a time, with progress and grants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from edge_agent import clock
from edge_agent.agent.processes import Child
from edge_agent.config import Settings, encode_settings
from edge_agent.errors import (
    BuilderLost,
    DeadlineExceeded,
    ModelRefused,
    ProtocolError,
    error_from_code,
)
from edge_agent.transport import local
from edge_agent.wire.messages import (
    Admit,
    Admitted,
    AskDevice,
    AskGrant,
    Build,
    BuilderRequest,
    Built,
    Codec,
    Failure,
    Grant,
    Probed,
    Progress,
    Staged,
    decode,
)

A = TypeVar("A")
SILENCE_S = 1800.0
"""Longer than anything that a sound model makes a builder do at a stretch: it reports after every
slice. Without it, one that hangs would keep all others from their plans."""


class Builder:
    """A builder child; used by one thread, except for `kill`."""

    def __init__(
        self, settings: Settings, *, is_background: bool = False, silence_s: float = SILENCE_S
    ) -> None:
        """Start it; in the background it gives way to serving from the start, not only while it
        builds. One that says nothing for `silence_s` while it builds is given up."""
        self._child = Child("edge_agent.builder", [encode_settings(settings)])
        if is_background:
            self._child.give_way()
        self._stream = local.FrameStream(self._child.stream)
        self._codec = Codec()
        self._is_killed = False
        self._silence_s = silence_s

    def admit(
        self,
        path: str,
        on_staged: Callable[[str], None] = lambda _path: None,
        wait_until_movable: Callable[[], None] = lambda: None,
    ) -> Admitted:
        """Copy a model file into the store, checked.

        `on_staged` hears where the copy lies while it is checked, if it may be opened there: then
        `wait_until_movable` blocks until nobody uses that path any more. What the two raise ends
        the admission and is raised here; the builder must be closed then.

        Raises:
            ModelRefused: it cannot be accepted; nothing of it is kept.
            StorageError: it cannot be stored.
        """
        try:
            return self._ask(
                Admit(path=path),
                Admitted,
                wait_for_grant=wait_until_movable,
                on_staged=on_staged,
            )
        except BuilderLost as error:
            raise ModelRefused(f"{path}: reading it killed the builder ({error})") from error

    def build(
        self,
        message: Build,
        on_progress: Callable[[float, str], None],
        wait_for_grant: Callable[[], None],
    ) -> Built:
        """Divide, compile, profile and plan; from now on it gives way to serving.

        Raises:
            BuilderLost: it died, was killed, or hangs.
            EdgeAgentError: it could not.
        """
        self._child.give_way()
        return self._ask(message, Built, on_progress, wait_for_grant, silence_s=self._silence_s)

    def probe(self) -> Probed:
        """Find the compute units of this device."""
        return self._ask(AskDevice(), Probed)

    def _ask(
        self,
        message: BuilderRequest,
        want: type[A],
        on_progress: Callable[[float, str], None] = lambda _fraction, _what: None,
        wait_for_grant: Callable[[], None] = lambda: None,
        on_staged: Callable[[str], None] = lambda _path: None,
        silence_s: float | None = None,
    ) -> A:
        try:
            self._stream.send(self._codec.encode(message))
            while True:
                until_s = None if silence_s is None else clock.monotonic_s() + silence_s
                raw, _ = self._stream.receive(until_s)
                match decode(self._codec.from_builder, raw):
                    case Progress(fraction=fraction, what=what):
                        on_progress(fraction, what)
                    case Staged(path=path):
                        on_staged(path)
                    case AskGrant():
                        wait_for_grant()
                        self._stream.send(self._codec.encode(Grant()))
                    case Failure(code=code, message=text):
                        raise error_from_code(code, text)
                    case answer:
                        if not isinstance(answer, want):
                            raise ProtocolError(f"builder sent {type(answer).__name__}")
                        return answer
        except DeadlineExceeded as error:
            self.kill()
            self._child.end()
            raise BuilderLost(f"it did nothing for {silence_s:.0f} s") from error
        except local.ConnectionLost as error:
            self._child.end()
            how = "stopped" if self._is_killed else self._child.how_it_ended()
            raise BuilderLost(how) from error

    def kill(self) -> None:
        """Stop it at once, from any thread; whoever waits for it gets `BuilderLost`."""
        self._is_killed = True
        self._child.kill()

    def close(self) -> None:
        """End it."""
        self._child.end()
