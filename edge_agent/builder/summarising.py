"""A model file as planning over devices needs it: summarised in place, with the user's pins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_agent.builder.allowed import pinned_segments
from edge_agent.builder.ends import Ends, ends_of
from edge_agent.builder.source import Sizes, read_in_place, sized
from edge_agent.config import Limits
from edge_agent.devices import UnitId
from edge_agent.errors import UsageError
from edge_agent.model.divide import summarise
from edge_agent.model.pins import parted, pinned_units
from edge_agent.plans import Pin
from edge_agent.store.output import digest
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import ModelSummary
from edge_agent.tensors import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarisedModel:
    """What a problem takes from a model."""

    summary: ModelSummary
    input_bytes: int
    output_bytes: int | None
    """None: not known before it is computed."""
    pinned: tuple[str | None, ...]
    """Where the user wants each of the segments."""
    notes: tuple[str, ...]
    """What is to be said of the shapes that sizes are counted for, and of sizes that are not
    known."""


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
        UsageError: a pin matches no node, or the size of an input is not known.
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
    ends = ends_of(graph, sizes.shapes, sizes.specs)
    return SummarisedModel(
        summary=summary,
        input_bytes=_input_bytes(ends, sizes),
        output_bytes=ends.output_bytes,
        pinned=pinned_segments(summary, pinned, graph.label),
        notes=tuple(note for note in (sizes.note, _remark(ends, sizes)) if note is not None),
    )


def _input_bytes(ends: Ends, sizes: Sizes) -> int:
    """Where the sizes of inputs are not known, neither is what anything inside takes."""
    total = 0
    for name, size in ends.inputs.items():
        if size is None:
            raise UsageError(
                f'input "{name}": its size is not known ({sizes.specs.described(name)}), so that '
                "nothing can be predicted; give it with --shape INPUT=SIZES"
            )
        total += size
    return total


def _remark(ends: Ends, sizes: Sizes) -> str | None:
    """What is said where the size of an output is not known."""
    found = [name for name, size in ends.outputs.items() if size is None]
    if not found:
        return None
    first = f'output "{found[0]}" ({sizes.specs.described(found[0])})'
    more = f", and of {len(found) - 1} more," if len(found) > 1 else ""
    return (
        f"the size of {first}{more} is not known before it is computed, so the last segment runs "
        "on the owner, where it need not be sent"
    )
