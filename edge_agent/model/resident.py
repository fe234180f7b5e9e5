"""What nodes hold in memory while they run: the constants that they read, and activations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from edge_agent.model.cost import weights_read
from edge_agent.model.cuts import bounded
from edge_agent.model.graph import ModelGraph
from edge_agent.model.values import spec_bytes
from edge_agent.tensors import TensorName, TensorSpec


def value_sizes(graph: ModelGraph, specs: Mapping[TensorName, TensorSpec]) -> dict[str, int]:
    """Bytes of every value that is no constant; where the size is not known it counts nothing."""
    return {name: spec_bytes(specs.get(TensorName(name))) or 0 for name in graph.producers}


def working_bytes(
    graph: ModelGraph,
    positions: Sequence[int],
    sizes: Mapping[str, int],
    passing: Collection[str] = (),
) -> int:
    """Most bytes of activations alive at once while the nodes at `positions` run one by one.

    `positions` are ascending, `sizes` as of `value_sizes`. A value from before is alive until its
    last reader here has run; those of `passing` are alive all along, because others need them
    behind. A value given here is alive until its last reader has run, or to the end if it is read
    behind or an output of the model.
    """
    end = positions[-1]
    outputs = frozenset(graph.outputs)
    last = {name: at for at in positions for name in graph.reads[at] if name in sizes}
    given = {name for at in positions for name in graph.nodes[at].output if name}
    kept = {*passing, *(n for n in given if n in outputs or graph.users.get(n, (-1,))[-1] > end)}
    alive = sum(sizes[name] for name in {*passing, *last} - given)
    most = alive
    for at in positions:
        made = [name for name in graph.nodes[at].output if name]
        alive += sum(sizes[name] for name in made)
        most = max(most, alive)
        alive -= sum(sizes[n] for n in graph.reads[at] if last.get(n) == at and n not in kept)
        alive -= sum(sizes[name] for name in made if name not in last and name not in kept)
    return bounded(most)


def weights_of(
    graph: ModelGraph, positions: Iterable[int], specs: Mapping[TensorName, TensorSpec]
) -> dict[str, int]:
    """Bytes that the nodes at `positions` read of each stored constant, each counted once."""
    found: dict[str, int] = {}
    for position in positions:
        for root, read_bytes in weights_read(graph, position, specs).items():
            found[root] = max(found.get(root, 0), read_bytes)
    return found


def unread_bytes(graph: ModelGraph, weights: Mapping[str, int]) -> int:
    """What is not read of constants of which `weights_of` says what is."""
    return sum(graph.root_bytes(root) - read_bytes for root, read_bytes in weights.items())
