"""`edge-agent inspect`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_agent.cli.output import (
    count_text,
    ending_on_sigterm,
    print_json,
    print_table,
    settings_of,
    size_text,
)
from edge_agent.cli.shapes import add_shape_option, parse_shapes
from edge_agent.cli.split import print_cuts
from edge_agent.errors import UsageError
from edge_agent.planning.explain import human
from edge_agent.planning.short import run_text

if TYPE_CHECKING:
    from edge_agent.builder.showing import ShownModel, ShownSegment
    from edge_agent.model.hazards import Hazard

_SHOWN = 3
"""Occurrences of a hazard, and operators of a segment, that a line names."""


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `inspect`."""
    inspect = commands.add_parser(
        "inspect",
        parents=[shared],
        help="show what a model file consists of and where it can be divided",
        description="Show segments, cut points, operators and what makes a model hard to divide, "
        "without an agent.",
    )
    inspect.add_argument("model", metavar="MODEL.onnx")
    add_shape_option(
        inspect,
        "shape for which bytes and work are counted, where the model leaves dimensions open",
    )
    inspect.add_argument(
        "--dot", action="store_true", help="print a graph of the segments for Graphviz"
    )
    inspect.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show a model."""
    if options.dot and options.json:
        raise UsageError("--dot: prints a graph, so --json does not go with it")
    with ending_on_sigterm():
        return _show(options)


def _show(options: argparse.Namespace) -> int:
    # Only here, because onnx takes as long to import as all of the rest.
    from edge_agent.builder.dot import render_dot
    from edge_agent.builder.showing import show
    from edge_agent.builder.source import read_in_place, sized

    graph = read_in_place(Path(options.model), settings_of(options).limits)
    sizes = sized(graph, parse_shapes(options.shape))
    shown = show(graph, sizes)
    if shown.note is not None:
        print(shown.note, file=sys.stderr)
    if options.dot:
        print(render_dot(shown))
    elif options.json:
        print_json(shown)
    else:
        _print(shown)
    return 0


def _print(shown: ShownModel) -> None:
    _print_model(shown)
    print("\nOperators\n")
    print_table(("operator", "nodes"), [(name, str(often)) for name, often in shown.operators])
    print("\nSegments\n")
    print_table(
        (
            *("segment", "nodes", "operations", "activations", "weights", "ops/byte"),
            *("parallel", "score", "operators"),
        ),
        [_segment_row(segment) for segment in shown.segments],
    )
    print("\nCut points\n")
    if shown.cuts:
        print_cuts(shown.cuts)
    else:
        print(f"none: {shown.undivided_because}")
    print("\nHazards\n")
    for hazard in shown.hazards:
        _print_hazard(hazard)
    if not shown.hazards:
        print("none")


def _print_model(shown: ShownModel) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in shown.opsets.items())
    print(f"{shown.file}: IR version {shown.ir_version}, opsets {opsets}")
    if shown.producer:
        print(f"  made by {shown.producer}")
    constant = shown.file_nodes - shown.nodes
    nodes, functions = count_text(shown.file_nodes, "node"), count_text(shown.functions, "function")
    print(f"  {nodes}, {constant} of them constant; {functions}")
    print(f"  {size_text(shown.weight_bytes)} of weights")
    for file in shown.external_files:
        print(f"  external data {file}")
    for word, values in (("input", shown.inputs), ("output", shown.outputs)):
        for value in values:
            default = " (has a default)" if value.has_default else ""
            print(f"  {word} {value.name}: {value}{default}")


def _segment_row(shown: ShownSegment) -> tuple[str, ...]:
    segment, score = shown.segment, shown.score
    operators = [f"{name}×{often}" for name, often in segment.operators[:_SHOWN]]
    more = ["…"] if len(segment.operators) > _SHOWN else []
    return (
        str(segment.index),
        run_text(segment.start, segment.stop),
        human(segment.operations),
        size_text(segment.activation_bytes),
        size_text(segment.weight_bytes),
        f"{score.operations_per_byte:.3g}",
        f"{score.parallel_fraction:.0%}",
        human(score.score),
        " ".join(operators + more),
    )


def _print_hazard(hazard: Hazard) -> None:
    print(f"{hazard.kind}: {len(hazard.where)}")
    for place in hazard.where[:_SHOWN]:
        print(f"  {place}")
    if len(hazard.where) > _SHOWN:
        print(f"  and {len(hazard.where) - _SHOWN} more")
    print(f"  → {hazard.handling}")
