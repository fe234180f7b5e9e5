"""Which stores an agent has, and what is cleared away over all of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from edge_agent.config import Settings
from edge_agent.errors import StorageError
from edge_agent.store.cuts import CutStore
from edge_agent.store.hosted import HostedStore
from edge_agent.store.leases import Lease
from edge_agent.store.models import ModelStore
from edge_agent.store.peer_times import PeerTimesStore
from edge_agent.store.pool import POOL_FOLDER, Pool, entry_of
from edge_agent.store.profiled import ProfiledStore
from edge_agent.store.records import PlanStore, ProfileStore
from edge_agent.store.registry import LoadedModel, Registry
from edge_agent.store.samples import SampleStore
from edge_agent.subgraphs import ModelId
from edge_agent.wire.parts import SubgraphFile

log = logging.getLogger(__name__)


class Stores:
    """Everything of the agent that is on disk."""

    def __init__(self, settings: Settings) -> None:
        self.registry = Registry(settings.state)
        self.models = ModelStore(settings.state)
        self.plans = PlanStore(settings.state)
        self.pool = Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)
        self.samples = SampleStore(settings.state)
        self.profiles = ProfileStore(settings.cache)
        self.profiled = ProfiledStore(settings.state)
        self.cuts = CutStore(settings.state)
        self.hosted = HostedStore(settings.state, settings.limits.max_hosted_bytes)
        self.peer_times = PeerTimesStore(settings.state)

    def sweep(self) -> None:
        """Remove what dead processes left half-done."""
        parts = (self.registry, self.models, self.plans, self.pool, self.samples, self.profiles)
        for part in (*parts, self.profiled, self.cuts, self.hosted, self.peer_times):
            for path in part.sweep():
                log.info("removed what was left half-done: %s", path)

    def collect(self, loaded: Collection[LoadedModel]) -> None:
        """Remove everything large of models other than those `loaded` and of stages that are
        neither hosted nor cut out of those, and what was compiled beyond the budget.

        What was measured stays: it is small, and spares a model that is loaded again the wait.
        """
        keep = {record.model for record in loaded}
        pooled = {m for m in self.models.ids() if m in keep and self._is_pooled(m)}
        self.models.collect(keep - pooled)
        self.pool.collect(keep | self.cuts.collect(keep) | self.hosted.collect(keep))
        self.samples.collect({r.samples for r in loaded if r.samples is not None})
        self.profiled.collect({r.name for r in loaded})
        self.peer_times.collect({(r.name, r.model) for r in loaded})

    def _is_pooled(self, model: ModelId) -> bool:
        try:
            return self.pool.holds(self.pool.graph(model))
        except StorageError:
            return False

    def model_path(self, model: ModelId) -> Path:
        """What ONNX Runtime opens as the model: the file that was admitted, until the pool has it.

        Raises: StorageError if it is in neither.
        """
        return self.models.path(model) if model in self.models.ids() else self.pool.graph(model)

    def in_place(
        self, model: ModelId, subgraphs: tuple[SubgraphFile, ...]
    ) -> tuple[SubgraphFile, ...]:
        """`subgraphs`, with the model itself where it lies by now.

        Raises: StorageError if it is needed and gone.
        """
        if all(file.compiled_for is not None for file in subgraphs):
            return subgraphs
        path = str(self.model_path(model))
        return tuple(
            file if file.compiled_for is not None else msgspec.structs.replace(file, path=path)
            for file in subgraphs
        )

    def hold(self, subgraphs: Iterable[SubgraphFile]) -> tuple[Lease, ...]:
        """Keep the compiled ones where they are until the leases are released.

        Raises: StorageError if one is gone or damaged.
        """
        leases: list[Lease] = []
        try:
            for file in subgraphs:
                entry = None if file.compiled_for is None else entry_of(Path(file.path))
                if entry is not None:
                    leases.append(entry.lease)
        except StorageError:
            for lease in leases:
                lease.release()
            raise
        return tuple(leases)
