"""A model file as planning over devices needs it: summarised in place, with the user's pins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_agent.builder.allowed import pinned_segments
from edge_agent.builder.source import Sizes, read_in_place, sized
from edge_agent.config import Limits
from edge_agent.devices import UnitId
from edge_agent.errors import UsageError
from edge_agent.model.divide import summarise
from edge_agent.model.pins import parted, pinned_units
from edge_agent.plans import Pin
from edge_agent.store.output import digest
from edge_agent.subgraphs import ModelId, ModelSummary
from edge_agent.tensors import Shape, TensorName, TensorSpec, size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarisedModel:
    """What a problem takes from a model."""

    summary: ModelSummary
    input_bytes: int
    output_bytes: int
    pinned: tuple[str | None, ...]
    """Where the user wants each of the segments."""
    note: str | None
    """What is to be said of the shapes that sizes are counted for."""


def summarise_file(
    path: Path,
    limits: Limits,
    shapes: dict[str, Shape],
    pins: Sequence[tuple[str, str]],
    measured: Collection[ModelId] = (),
) -> SummarisedModel:
    """The model at `path`, divided; `pins` are (pattern of node names, where).

    Places for branches that may run at once are parted too, but not of the models `measured`:
    times were measured without, and are valid for one division only.

    Raises:
        ModelRefused: as `read_in_place`, or the model cannot be divided where pins differ.
        InputMismatch: as `sized`.
        UsageError: a pin matches no node, or the size of an input or output is not known.
    """
    graph = read_in_place(path, limits)
    sizes = sized(graph, shapes)
    wanted = [Pin(pattern=pattern, unit=UnitId(where)) for pattern, where in pins]
    pinned = pinned_units(graph, wanted)
    model = ModelId(digest(path, path.name).sha256)
    summary = summarise(
        graph,
        model,
        sizes.shapes,
        sizes.specs,
        apart=parted(pinned),
        with_forks=model not in measured,
    )
    inputs = [name for name in graph.inputs if name in graph.users]
    return SummarisedModel(
        summary=summary,
        input_bytes=_bytes_of(inputs, "input", sizes),
        output_bytes=_bytes_of(list(graph.outputs), "output", sizes),
        pinned=pinned_segments(summary, pinned, graph.label),
        note=sizes.note,
    )


def _bytes_of(names: Sequence[str], word: str, sizes: Sizes) -> int:
    total = 0
    for name in dict.fromkeys(names):
        given = sizes.shapes.get(TensorName(name))
        spec = sizes.specs.tensors.get(TensorName(name))
        shape = given if given is not None else _static(spec)
        if spec is None or shape is None:
            raise UsageError(
                f'{word} "{name}": its size is not known ({sizes.specs.described(name)}), so what '
                "sending it takes cannot be predicted; where inputs have open dimensions, --shape "
                "INPUT=SIZES says them, but a size that depends on values is never known before"
            )
        total += size_bytes(spec.element_type, shape)
    return total


def _static(spec: TensorSpec | None) -> Shape | None:
    if spec is None or not spec.is_static:
        return None
    return tuple(dim for dim in spec.dims or () if isinstance(dim, int))
