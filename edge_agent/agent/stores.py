"""Which stores an agent has, and what is cleared away over all of them."""

from __future__ import annotations

import logging

from edge_agent.config import Settings
from edge_agent.store.artifacts import ArtifactStore
from edge_agent.store.models import ModelStore
from edge_agent.store.records import PlanStore, ProfileStore
from edge_agent.store.registry import Registry
from edge_agent.subgraphs import ModelId

log = logging.getLogger(__name__)


class Stores:
    """Everything of the agent that is on disk."""

    def __init__(self, settings: Settings) -> None:
        self.registry = Registry(settings.state)
        self.models = ModelStore(settings.state)
        self.plans = PlanStore(settings.state)
        self.artifacts = ArtifactStore(settings.cache)
        self.profiles = ProfileStore(settings.cache)

    def sweep(self) -> None:
        """Remove what dead processes left half-done."""
        for part in (self.registry, self.models, self.plans, self.artifacts, self.profiles):
            for path in part.sweep():
                log.info("removed what was left half-done: %s", path)

    def collect(self, keep: set[ModelId]) -> None:
        """Remove everything large of models that are loaded under no name.

        What was measured stays: it is small, and spares a model that is loaded again the wait.
        """
        self.models.collect(keep)
        self.artifacts.collect(keep)
