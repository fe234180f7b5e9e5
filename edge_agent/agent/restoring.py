"""How a model that was loaded before the agent started comes back from what is on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edge_agent.agent.builders import Builder
from edge_agent.agent.kept import Kept, load_kept, units_text
from edge_agent.agent.lanes import Lane
from edge_agent.agent.loaded import Loaded, Planning
from edge_agent.agent.stores import Stores
from edge_agent.agent.workers import Serve, plain_subgraph
from edge_agent.config import Settings
from edge_agent.errors import EdgeAgentError
from edge_agent.plans import Epoch
from edge_agent.store.registry import LoadedModel
from edge_agent.subgraphs import ModelId
from edge_agent.wire.parts import SubgraphFile


def restored(
    record: LoadedModel, stores: Stores, settings: Settings, epoch: Callable[[ModelId], Epoch]
) -> Loaded:
    """The model with the plan that was kept, as far as its files are intact.

    Raises:
        EdgeAgentError: the model itself is not.
    """
    path = str(stores.model_path(record.model))
    kept = load_kept(stores.plans, record.name, record.model)
    if kept is None:
        # Its interface is known only when a worker has opened it: the builder reads it.
        builder = Builder(settings)
        try:
            admitted = builder.admit(path)
        finally:
            builder.close()
        kept = Kept(model=record.model, inputs=admitted.inputs, outputs=admitted.outputs)
    is_as_before = kept.units == units_text(settings)
    if not kept.subgraphs or not is_as_before or not _holds(stores, kept.subgraphs):
        kept = Kept(model=record.model, inputs=kept.inputs, outputs=kept.outputs)
    # One that lost a file is made again if it is still wanted.
    specialisations = tuple(
        s for s in kept.specialisations if s.serve is None or _holds(stores, s.serve.subgraphs)
    )
    is_on = settings.specialising.most_shapes > 0
    serve = Serve(
        epoch=epoch(record.model),
        subgraphs=kept.subgraphs or (plain_subgraph(path, record.threads),),
        instances=kept.instances,
        pinned_cores=kept.pinned_cores,
        inputs=kept.inputs,
        outputs=kept.outputs,
        warm_shapes=kept.warm_shapes,
        specialised=tuple(s.serve for s in specialisations if is_on and s.serve is not None),
    )
    lane = Lane(record.name, kept.inputs, kept.outputs)
    lane.quarantine = record.quarantined
    loaded = Loaded(
        record=record,
        lane=lane,
        serve=serve,
        plan=kept.plan,
        specialisations=specialisations,
        counted=kept.counted,
    )
    if kept.plan is not None:
        loaded.planning = Planning("done", 1.0, "done")
    loaded.hold(stores.hold(loaded.serve.files))
    return loaded


def out_of_service(record: LoadedModel, epoch: Epoch, error: EdgeAgentError) -> Loaded:
    """A model that cannot come back: it answers every request with the reason. The next start tries
    again."""
    lane = Lane(record.name, (), ())
    lane.isolate(f"what is stored of it is damaged: {error}")
    return Loaded(
        record=record,
        lane=lane,
        serve=Serve(epoch=epoch, subgraphs=(), instances=1),
        planning=Planning("failed", 1.0, str(error)),
    )


def _holds(stores: Stores, files: Sequence[SubgraphFile]) -> bool:
    return all(f.compiled_for is None or stores.pool.holds(Path(f.path)) for f in files)
