"""A builder process as the agent sees it: one question at a time, with progress and grants."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from edge_agent import clock
from edge_agent.agent.processes import Child
from edge_agent.config import Settings, encode_settings
from edge_agent.devices import UnitId
from edge_agent.errors import (
    BuilderLost,
    DeadlineExceeded,
    ModelRefused,
    ProtocolError,
    error_from_code,
)
from edge_agent.stages import StageModel
from edge_agent.transport import local
from edge_agent.wire.cutting import AdmitStage, CutStages, StageAdmitted, StagesCut
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
    Trying,
    decode,
)
from edge_agent.wire.opening import Staged
from edge_agent.wire.parts import (
    Banned,
    Pins,
)

log = logging.getLogger(__name__)

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
        self._settings = settings
        self._silence_s = silence_s
        self._codec = Codec()
        self._is_killed = False
        self._replacing = threading.Lock()
        self._tried = Trying(())
        """What it is at."""
        self._used: set[UnitId] = set()
        """All units whose providers it was at."""
        self._child = self._new_child()
        self._stream = local.FrameStream(self._child.stream)
        if is_background:
            self._child.give_way()

    def _new_child(self) -> Child:
        return Child("edge_agent.builder", [encode_settings(self._settings)])

    def admit(
        self,
        path: str,
        on_staged: Callable[[str], None] = lambda _path: None,
        wait_until_movable: Callable[[], None] = lambda: None,
        pins: Pins = (),
        samples: str | None = None,
    ) -> Admitted:
        """Copy a model file into the store, checked.

        `on_staged` hears where the copy lies while it is checked, if it may be opened there: then
        `wait_until_movable` blocks until nobody uses that path any more. What the two raise ends
        the admission and is raised here; the builder must be closed then.

        Raises:
            ModelRefused: it cannot be accepted; nothing of it is kept.
            UsageError: a pin means no node, or one of the `samples` is wrong; as above.
            StorageError: it cannot be stored.
        """
        try:
            return self._ask(
                Admit(path=path, pins=pins, samples=samples),
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

        A unit whose provider ends it or falls silent for `planning.unit_s` is banned from this
        plan, which another process then begins anew. One that dies between, after units were
        tried, may die of what a provider did before: it is tried once more as it was, and then
        without those.

        Raises:
            BuilderLost: it died, was killed, or hangs, and no unit is to blame.
            EdgeAgentError: it could not.
        """
        is_repeated = False
        banned = {(b.unit, b.is_keeping): b for b in message.banned}
        while True:
            self._child.give_way()
            asked = msgspec.structs.replace(message, banned=tuple(banned.values()))
            try:
                return self._ask(
                    asked, Built, on_progress, wait_for_grant, silence_s=self._silence_s
                )
            except BuilderLost as error:
                tried = self._tried
                culprits = {u for u in tried.units if (u, tried.is_keeping) not in banned}
                if not culprits and self._used:
                    log.warning("a builder died after %s: %s", ", ".join(sorted(self._used)), error)
                    if is_repeated:
                        culprits = self._used
                    is_repeated = True
                elif not culprits:
                    raise
                if culprits:
                    log.warning("%s ended a builder: %s", ", ".join(sorted(culprits)), error)
                reason = f"its provider ended the builder: {error}"
                for unit in culprits:
                    banned[unit, tried.is_keeping] = Banned(unit, reason, tried.is_keeping)
                self._replace(error)

    def cut_stages(
        self, message: CutStages, wait_for_grant: Callable[[], None] = lambda: None
    ) -> tuple[StageModel, ...]:
        """Have stages of a loaded model as entries of the pool; at once where they are already.

        Raises:
            ModelRefused: it cannot be divided so between devices.
            StorageError: they cannot be stored.
            BuilderLost: it died, was killed, or hangs.
        """
        cut = self._ask(
            message, StagesCut, wait_for_grant=wait_for_grant, silence_s=self._silence_s
        )
        return cut.stages

    def admit_stage(self, stage: StageModel) -> StageAdmitted:
        """Have a stage as an entry of the pool, of what was received of it, checked.

        Raises:
            ModelRefused, ProtocolError: it is not as it should be; nothing of it is kept.
            StorageError: something of it is not here any more, or it cannot be stored.
        """
        try:
            return self._ask(AdmitStage(stage=stage), StageAdmitted, silence_s=self._silence_s)
        except BuilderLost as error:
            raise ModelRefused(
                f"stage {stage.id[:12]}: reading it killed the builder ({error})"
            ) from error

    def _replace(self, because: BuilderLost) -> None:
        """Have another process in place of one that ended. Raises: `because` if it was killed."""
        with self._replacing:
            if self._is_killed:
                raise because
            self._child = self._new_child()
            self._stream = local.FrameStream(self._child.stream)

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
        self._tried = Trying(())
        self._used = set()
        try:
            self._stream.send(self._codec.encode(message))
            while True:
                limit_s = silence_s
                if limit_s is not None and self._tried.units:
                    limit_s = min(limit_s, self._settings.planning.unit_s)
                until_s = None if limit_s is None else clock.monotonic_s() + limit_s
                raw, _ = self._stream.receive(until_s)
                match decode(self._codec.from_builder, raw):
                    case Progress(fraction=fraction, what=what):
                        on_progress(fraction, what)
                    case Staged(path=path):
                        on_staged(path)
                    case Trying() as tried:
                        self._tried = tried
                        self._used.update(tried.units)
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
            self._child.kill()
            self._child.end()
            raise BuilderLost(f"it did nothing for {limit_s:.0f} s") from error
        except local.ConnectionLost as error:
            self._child.end()
            how = "stopped" if self._is_killed else self._child.how_it_ended()
            raise BuilderLost(how) from error

    def kill(self) -> None:
        """Stop it at once, from any thread; whoever waits for it gets `BuilderLost`."""
        with self._replacing:
            self._is_killed = True
            self._child.kill()

    def close(self) -> None:
        """End it."""
        self._child.end()
