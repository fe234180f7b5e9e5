"""What each unit takes of a model when it is given the whole: evidence for plans and for people."""

from __future__ import annotations

from edge_agent.builder.benches import FIRST_RUN_S, Slices, Subject
from edge_agent.devices import ComputeUnit
from edge_agent.engine.cancel import cancelled_after
from edge_agent.engine.evidence import placed, placement_of, refused_whole
from edge_agent.errors import ModelRefused
from edge_agent.model.refusable import rules_against
from edge_agent.profiles import Placement


def look(unit: ComputeUnit, subject: Subject, slices: Slices) -> Placement:
    """Which nodes of the model `unit` takes, and which it refuses and why.

    Raises: StorageError; RunFailed, DeadlineExceeded: only a run would tell, and it fails or takes
        too long; RuntimeUnavailable.
    """
    workshop = subject.workshop
    graph = workshop.graph
    slices.progress(0.0, f"looking which nodes {unit.id} takes")
    labels = [graph.label(position) for position in range(len(graph.nodes))]
    path, names = workshop.named()
    use = unit.use(unit.layouts[0], min(unit.cores, len(subject.cores)))
    try:
        with slices.trying([unit.id]), cancelled_after(FIRST_RUN_S) as cancel:
            evidence = placement_of(path, use, names, subject.samples[0], cancel)
    except ModelRefused as error:
        return refused_whole(unit.id, names, labels, str(error))
    return placed(unit.id, evidence, labels, rules_against(graph, workshop.specs, unit))
