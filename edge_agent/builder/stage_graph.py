"""What the graph of a stage must be, where it is cut out and where it is hosted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.config import Limits
from edge_agent.engine.memory import bounded_memory, enough_for
from edge_agent.errors import ModelRefused
from edge_agent.model.admit import (
    AdmissionLimits,
    check,
    declared_inputs,
    declared_outputs,
    external_places,
    read_model,
    too_much_to_read,
)
from edge_agent.model.external import ExternalPlace
from edge_agent.model.graph import ModelGraph
from edge_agent.stages import StageModel
from edge_agent.store.pool import BLOBS_FOLDER
from edge_agent.tensors import TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto

_CUT_AGAIN = "cut it again on the device that has the model"


def check_nodes(stage: StageModel, graph: ModelGraph) -> None:
    """Compare the nodes of a stage with what its owner says of them.

    Raises: ModelRefused: they are not as many, so that its segments would be others.
    """
    if len(graph.nodes) != stage.nodes:
        raise ModelRefused(
            f"{graph.path.name}: got {len(graph.nodes)} nodes, want {stage.nodes}; {_CUT_AGAIN}"
        )


def check_same_nodes(part: ModelGraph, graph: ModelGraph, start: int, stop: int) -> None:
    """Compare a model that was cut out with the nodes [start, stop) of `graph`: both have to be
    divided at the same places.

    Raises: ModelRefused.
    """
    got = [(node.op_type, *node.output) for node in part.nodes]
    want = [(node.op_type, *node.output) for node in graph.nodes[start:stop]]
    if got != want:
        raise ModelRefused(
            f"{graph.path.name}: nodes {start} to {stop - 1} by themselves are {len(got)} other "
            "nodes in another order, so they cannot be a stage; choose other cuts"
        )


def tensor_ends(
    model: ModelProto, place: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """What comes into a stage and what leaves it; `place` names it in messages.

    Raises: ModelRefused: it is no tensor, or of no known type, so it cannot leave a device.
    """
    inputs, outputs = declared_inputs(model), declared_outputs(model)
    known = {spec.name: spec for spec in (*inputs, *outputs)}
    for what, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            spec = known.get(value.name)
            if spec is not None and not spec.container:
                continue
            kind = "of a type that is not known" if spec is None else f"a {spec.container}"
            raise ModelRefused(
                f'{place}: {what} "{value.name}" is {kind}, want a tensor: nothing else is sent '
                "to other devices; choose other cuts"
            )
    for what, specs in (("comes into", inputs), ("leaves", outputs)):
        if not specs:
            raise ModelRefused(f"{place}: nothing {what} it; choose other cuts")
    return inputs, outputs


def check_graph(stage: StageModel, file: Path, name: str, limits: Limits) -> None:
    """Check the graph of a stage in `file`, which another device may have made to do harm; `name`
    is what messages call it.

    Raises: ModelRefused: the first thing that is wrong.
    """
    try:
        with bounded_memory(enough_for(stage.graph.size_bytes)):
            _check_graph(stage, file, name, limits)
    except MemoryError as error:
        raise too_much_to_read(name) from error


def _check_graph(stage: StageModel, file: Path, name: str, limits: Limits) -> None:
    admission = AdmissionLimits(
        max_file_bytes=limits.max_model_bytes, max_external_bytes=limits.max_external_bytes
    )
    model = read_model(file, admission, name)
    called = Path(name)
    check(model, called, None, admission, runtime_opset=None)
    _check_places(stage, external_places(model, called), name)
    inputs, outputs = tensor_ends(model, name)
    _check_ends("inputs", inputs, stage.inputs, name)
    _check_ends("outputs", outputs, stage.outputs, name)
    check_nodes(stage, ModelGraph.from_model(model, called))


def _check_places(stage: StageModel, found: frozenset[ExternalPlace], name: str) -> None:
    wanted = {
        ExternalPlace(
            location=f"{BLOBS_FOLDER}/{blob.sha256}", offset_bytes=0, length_bytes=blob.size_bytes
        )
        for blob in stage.tensors
    }
    for place in sorted(found - wanted, key=lambda p: (p.location, p.offset_bytes)):
        raise ModelRefused(
            f"{name}: got a tensor of {place.length_bytes} bytes at byte {place.offset_bytes} of "
            f'"{place.location}", want only the {len(wanted)} tensors that are listed, by their '
            f"hashes; {_CUT_AGAIN}"
        )
    if unused := sorted(place.location for place in wanted - found):
        raise ModelRefused(
            f"{name}: lists {len(unused)} tensors that it does not refer to, {unused[0]} among "
            f"them; {_CUT_AGAIN}"
        )


def _check_ends(
    what: str, got: Sequence[TensorSpec], want: Sequence[TensorSpec], name: str
) -> None:
    if tuple(got) != tuple(want):
        raise ModelRefused(f"{name}: got {what} {_told(got)}, want {_told(want)}; {_CUT_AGAIN}")


def _told(specs: Sequence[TensorSpec]) -> str:
    shown = ", ".join(f'"{spec.name}" {spec}' for spec in specs[:8])
    return f"{shown} and {len(specs) - 8} more" if len(specs) > 8 else shown or "none"
