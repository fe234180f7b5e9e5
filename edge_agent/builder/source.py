"""A model file of the user's, checked as `load` checks it but used in place, and its sizes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edge_agent.builder.made_up import find_samples
from edge_agent.builder.specs import fixed_shapes, general_specs, inner_specs
from edge_agent.config import Limits
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.engine.specs import infer_specs as ask_runtime
from edge_agent.errors import EdgeAgentError, ModelRefused, RuntimeUnavailable
from edge_agent.model.admit import (
    AdmissionLimits,
    check,
    declared_inputs,
    external_locations,
    read_model,
)
from edge_agent.model.graph import ModelGraph
from edge_agent.model.probe import open_values, write_probe
from edge_agent.model.specs import infer_specs
from edge_agent.samples import check_shapes
from edge_agent.store.foreign import external_bytes
from edge_agent.tensors import Shape, TensorName, ValueSpecs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is known of the values of a model for one set of input shapes."""

    shapes: dict[TensorName, Shape]
    """Of the inputs; not of all of them where `note` says why."""
    specs: ValueSpecs
    note: str | None
    """Where the shapes come from, or why some are missing, if they were not all given."""


def read_in_place(path: Path, limits: Limits) -> ModelGraph:
    """The model at `path`, whose larger weights stay in its files.

    Raises:
        ModelRefused: `load` would refuse it too; the message names file, place and reason.
    """
    if not path.is_file():
        reason = "is no regular file" if path.exists() else "no such file"
        raise ModelRefused(f"{path}: {reason}; name a model file")
    admission = AdmissionLimits(max_file_bytes=limits.max_model_bytes)
    model = read_model(path, admission, is_lean=True)
    left_bytes = limits.max_external_bytes
    for location in external_files(external_locations(model, path), path):
        place = f'{path}: external data "{location}"'
        left_bytes -= external_bytes(path.parent, location, place)
        if left_bytes < 0:
            raise ModelRefused(
                f"{place}: got more than {limits.max_external_bytes} bytes of external data; "
                "raise max_external_bytes in the settings"
            )
    check(model, path, path.parent, admission, runtime_opset=None)
    return ModelGraph.from_model(model, path)


def external_files(locations: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """The locations that are other files than the model file itself."""
    return tuple(location for location in locations if location != path.name)


def sized(graph: ModelGraph, given: Mapping[str, Shape]) -> Sizes:
    """Types and sizes for the `given` input shapes; sizes that are left open are tried, as `load`
    does, until the model runs.

    Raises:
        InputMismatch: a shape is given for no input, or against what the input declares.
    """
    shapes = {TensorName(name): shape for name, shape in given.items()}
    declared = [s for s in declared_inputs(graph.model) if s.name in graph.inputs]
    check_shapes(declared, shapes)
    shapes = fixed_shapes(graph) | shapes
    note = None
    if any(spec.name not in shapes for spec in declared):
        shapes, note = _tried(graph, shapes)
    with tempfile.TemporaryDirectory(prefix="edge-agent-") as scratch:
        return Sizes(
            shapes=shapes, specs=inner_specs(graph, shapes, Path(scratch) / "probe.onnx"), note=note
        )


def _tried(
    graph: ModelGraph, given: Mapping[TensorName, Shape]
) -> tuple[dict[TensorName, Shape], str]:
    wanted = "give the shapes with --shape INPUT=SIZES"
    try:
        session = Session.open(graph.path, threads=1, level=OptimisationLevel.NONE, is_silent=True)
        samples = find_samples(session, given, Limits().max_request_bytes)
    except EdgeAgentError as error:
        return dict(given), f"sizes are not known, {wanted}: {error}"
    if samples is None:
        return dict(given), f"sizes are not known: no size that was tried runs; {wanted}"
    sizes = ", ".join(f"{n}={'x'.join(map(str, s))}" for n, s in samples.shapes.items())
    return samples.shapes, f"open dimensions were tried: {sizes}; {wanted} for others"


def general(graph: ModelGraph) -> ValueSpecs:
    """Types and sizes that hold for every shape that the model takes."""
    specs = infer_specs(graph, {})
    if not open_values(graph, specs):
        return specs
    with tempfile.TemporaryDirectory(prefix="edge-agent-") as scratch:
        return general_specs(graph, inner_specs(graph, {}, Path(scratch) / "probe.onnx"))


def ranked(graph: ModelGraph, specs: ValueSpecs, names: Iterable[str]) -> ValueSpecs:
    """`specs`, in which those of `names` whose rank is not known have the one that ONNX Runtime
    finds, with open dimensions, if it finds one."""
    known = specs.tensors
    wanted = [spec.name for n in names if (spec := known.get(TensorName(n))) and spec.dims is None]
    if not wanted:
        return specs
    try:
        with tempfile.TemporaryDirectory(prefix="edge-agent-") as scratch:
            probe = write_probe(graph, wanted, {}, Path(scratch) / "probe.onnx")
            found = ask_runtime(probe, wanted, {}).tensors
    except (ModelRefused, RuntimeUnavailable):
        return specs
    # What is found of the sizes may be wrong; a model with a wrong rank would not open at all.
    with_rank = {
        name: replace(known[name], dims=(None,) * len(spec.dims))
        for name, spec in found.items()
        if spec.dims is not None and spec.element_type == known[name].element_type
    }
    return ValueSpecs(tensors={**known, **with_rank}, others=specs.others)
