"""How a stage comes to be ready on the device that hosts it, the owner's own among them: what is
missing of it is received, checked, compiled, measured, and what came of that is kept, so that the
same stage is ready at once the next time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from edge_agent import clock
from edge_agent.agent.builders import Builder
from edge_agent.agent.offers import Offered, content_of
from edge_agent.agent.stores import Stores
from edge_agent.agent.turns import Traffic, Turn, wait_for_quiet
from edge_agent.config import Settings
from edge_agent.devices import Device, DeviceId
from edge_agent.errors import (
    AlreadyRunning,
    BuilderLost,
    EdgeAgentError,
    PeerLost,
    StorageError,
)
from edge_agent.stages import Blob, StageModel
from edge_agent.store.hosted import Hosted, HostedKey
from edge_agent.store.partial import Partial, PartialStore
from edge_agent.store.stage_content import missing
from edge_agent.subgraphs import ModelId
from edge_agent.wire.hosting import StageHere
from edge_agent.wire.messages import Build, Built

log = logging.getLogger(__name__)
T = TypeVar("T")

ADMITTED_FRACTION = 0.5
"""Of the preparing of a stage that has to be received first."""
AWAY_S = 30.0
"""So long a device that sends may be away."""
_POLL_S = 0.2

Report = Callable[[float, str], None]
"""Takes how far it is, 0 to 1, and what is done."""
OnReceived = Callable[[int], None]


class Fetching(Protocol):
    """Gets what is missing of a tensor from another device."""

    def __call__(self, tensor: Partial, on_received: OnReceived) -> None:
        """Raises: as `Peering.fetch`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A stage that can be opened."""

    hosted: Hosted
    received_bytes: int

    @property
    def built(self) -> Built:
        """What is opened."""
        assert self.hosted.built is not None
        return self.hosted.built

    def here(self, number: int) -> StageHere:
        """It as a worker opens it, as the stage of that number."""
        built, model = self.built, self.hosted.key.stage
        return StageHere(
            number=number,
            subgraphs=built.subgraphs,
            pinned_cores=built.pinned_cores,
            inputs=model.inputs,
            outputs=model.outputs,
            threads=built.instances,
        )


class Preparing:
    """Prepares one stage after the other; any thread may ask."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        building: Turn,
        traffic: Traffic,
        *,
        device: Callable[[], Device | None],
        tidy: Callable[[], None],
    ) -> None:
        """`building` is held by whoever measures here; `device` is what is known of this one;
        `tidy` removes what is kept of stages that are hosted no more."""
        self._settings = settings
        self._stores = stores
        self._building = building
        self._traffic = traffic
        self._device = device
        self._tidy = tidy
        self._partial = PartialStore(settings.state)
        self._receiving = Turn()
        self._changing = threading.Lock()
        self._in_use: dict[ModelId, int] = {}
        """Stages that are being prepared or are open, by how often."""

    def hold(self, stage: ModelId) -> None:
        """A stage is in use from now on."""
        with self._changing:
            self._in_use[stage] = self._in_use.get(stage, 0) + 1

    def release(self, stage: ModelId) -> None:
        """It is used once less."""
        with self._changing:
            self._in_use[stage] -= 1
            if not self._in_use[stage]:
                del self._in_use[stage]

    def kept(self, key: HostedKey) -> Hosted | None:
        """A stage that was prepared before and is as it was; None: it has to be prepared."""
        hosted = self._stores.hosted.find(key)
        if hosted is None or hosted.built is None or not self._is_whole(hosted.built):
            return None
        self._stores.hosted.touch(key)
        return hosted

    def _is_whole(self, built: Built) -> bool:
        pool = self._stores.pool
        return all(
            file.compiled_for is None or pool.holds(Path(file.path)) for file in built.subgraphs
        )

    def receive(
        self, blob: Blob, fetch: Fetching, is_stopped: Callable[[], bool], on_received: OnReceived
    ) -> None:
        """Have a blob here, whole and checked, in the folder for what is received.

        Raises: as `Peering.fetch`; BuilderLost: `is_stopped`.
        """
        self._receive(blob, fetch, is_stopped, on_received, lambda _partial: None)

    def read(self, blob: Blob, fetch: Fetching, is_stopped: Callable[[], bool]) -> bytes:
        """The content of a small blob, of which nothing is kept here.

        Raises: as `receive`.
        """

        def taken(partial: Partial) -> bytes:
            raw = b"".join(map(bytes, partial))
            partial.discard()
            return raw

        return self._receive(blob, fetch, is_stopped, lambda _count: None, taken)

    def _receive(
        self,
        blob: Blob,
        fetch: Fetching,
        is_stopped: Callable[[], bool],
        on_received: OnReceived,
        use: Callable[[Partial], T],
    ) -> T:
        """What `use` makes of it, before anybody may remove it."""
        partial = self._partial.open(blob.sha256, blob.size_bytes)
        had_bytes, since_s = 0, clock.monotonic_s()
        while True:
            try:
                with partial:
                    on_received(partial.received_bytes - had_bytes)
                    had_bytes = partial.received_bytes
                    fetch(partial, on_received)
                    return use(partial)
            except AlreadyRunning:
                pass  # another owner is sending it: then it will be here
            except PeerLost:
                # What came is kept, and the connection may be back soon.
                if partial.received_bytes > had_bytes:
                    had_bytes, since_s = partial.received_bytes, clock.monotonic_s()
                elif clock.monotonic_s() - since_s > AWAY_S:
                    raise
            if is_stopped():
                raise BuilderLost("stopped")
            clock.sleep_s(_POLL_S)

    def prepare(
        self,
        key: HostedKey,
        fetch: Fetching | None,
        report: Report,
        is_stopped: Callable[[], bool],
        *,
        is_fresh: bool,
    ) -> Prepared:
        """Have a stage ready; `fetch` gets what is missing of it, None: all of it is here.

        `is_stopped` is looked at from time to time: once true, whatever is done ends.
        Raises:
            BuilderLost: it was stopped, or the builder died.
            EdgeAgentError: it cannot be received, is not as it should be, or cannot be run here.
        """
        if not is_fresh and (hosted := self.kept(key)) is not None:
            return Prepared(hosted=hosted, received_bytes=0)
        received_bytes = 0
        self.hold(key.stage.id)
        try:
            if fetch is not None:
                received_bytes = self._have_content(key, fetch, report, is_stopped)
            begun = ADMITTED_FRACTION if received_bytes else 0.0

            def report_build(fraction: float, what: str) -> None:
                report(begun + fraction * (1.0 - begun), what)

            built = self._build(key, report_build, is_stopped, is_fresh=is_fresh)
            hosted = Hosted(key=key, built=built)
            self._stores.hosted.save(hosted)
            return Prepared(hosted=hosted, received_bytes=received_bytes)
        finally:
            self.release(key.stage.id)

    def _have_content(
        self, key: HostedKey, fetch: Fetching, report: Report, is_stopped: Callable[[], bool]
    ) -> int:
        """Receive what is missing, and have it admitted; how many bytes came."""
        stage, stores = key.stage, self._stores
        with self._receiving.held(is_stopped) as is_mine:
            if not is_mine:
                raise BuilderLost("stopped")
            with self._changing:
                in_use = frozenset(self._in_use)
            removed = stores.hosted.make_room(stage, in_use)
            stores.hosted.save(Hosted(key=key))
            if removed:
                # Now, for the room is needed.
                self.forget_parts()
                self._tidy()
            wanted = missing(stage, stores.pool)
            total = sum(blob.size_bytes for blob in wanted)
            came = 0

            def on_received(count: int) -> None:
                nonlocal came
                came += count
                done = came / max(total, 1)
                what = f"receiving weights: {came / 1e6:.1f} of {total / 1e6:.1f} MB"
                report(ADMITTED_FRACTION * min(done, 1.0), what)
                if is_stopped():
                    raise BuilderLost("stopped")

            for blob in wanted:
                self.receive(blob, fetch, is_stopped, on_received)
            builder = Builder(self._settings, is_background=True)
            try:
                builder.admit_stage(stage)
            finally:
                builder.close()
        return total

    def _build(
        self, key: HostedKey, report: Report, is_stopped: Callable[[], bool], *, is_fresh: bool
    ) -> Built:
        with self._building.held(is_stopped) as is_mine:
            if not is_mine or is_stopped():
                raise BuilderLost("stopped")
            builder = Builder(self._settings, is_background=True)
            try:
                return self._ask(builder, key, report, is_stopped, is_fresh=is_fresh)
            finally:
                builder.close()
                self._sweep()

    def _ask(
        self,
        builder: Builder,
        key: HostedKey,
        report: Report,
        is_stopped: Callable[[], bool],
        *,
        is_fresh: bool,
    ) -> Built:
        message = Build(
            model=key.stage.id,
            target=key.target,
            threads=key.threads,
            shapes=key.stage.shapes,
            is_fresh=is_fresh,
            device=None if is_fresh else self._device(),
            half_bound=key.half_bound,
            stage=key.stage,
        )

        def wait() -> None:
            wait_for_quiet(self._traffic, is_stopped, lambda: None)

        return builder.build(message, report, wait)

    def _sweep(self) -> None:
        """What a builder that was killed left."""
        try:
            self._stores.pool.sweep()
        except StorageError as error:
            log.warning("could not remove what a builder left: %s", error)

    def hosted_for(self, owner: DeviceId) -> tuple[Hosted, ...]:
        """The stages that are kept for an owner. Raises: StorageError."""
        return tuple(h for h in self._stores.hosted.all() if h.key.owner == owner)

    def content_of(self, stage: StageModel) -> dict[str, Offered]:
        """All that a host of the stage may have. Raises: StorageError: it is not here."""
        return content_of(stage, self._stores.pool)

    def forget(self, key: HostedKey) -> None:
        """What was built of a stage is of no use any more. Raises: StorageError."""
        self._stores.hosted.remove(key)

    def forget_parts(self) -> None:
        """Remove what was received of stages that are hosted no more."""
        try:
            kept = {b.sha256 for h in self._stores.hosted.all() for b in h.key.stage.blobs}
            self._partial.collect(kept)
        except EdgeAgentError as error:
            log.warning("could not remove what was received: %s", error)
