"""`edge-agent split`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
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
from edge_agent.errors import EdgeAgentError, UsageError
from edge_agent.planning.short import run_text

if TYPE_CHECKING:
    from edge_agent.builder.comparing import Comparison
    from edge_agent.builder.dividing import ListedCut
    from edge_agent.builder.parts import Manifest

ROUNDS = 3
MAX_PARTS = 4096
_SHOWN = 3
"""Crossing values that a line of --list names."""


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `split`."""
    split = commands.add_parser(
        "split",
        parents=[shared],
        help="divide a model file into several, without an agent",
        description="Write a model as several model files that compute the same one after the "
        "other, or list where that can be done.",
    )
    split.add_argument("model", metavar="MODEL.onnx")
    what = split.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--at",
        action="append",
        metavar="CUT",
        help="divide here: a number that --list shows, or the name of the value or node to divide "
        "behind; several times for more than two parts",
    )
    what.add_argument("--parts", type=int, metavar="N", help="divide into N of about equal work")
    what.add_argument("--list", action="store_true", help="list the cut points worth planning with")
    split.add_argument("--all", action="store_true", help="with --list: every place, legal or not")
    add_shape_option(
        split,
        "shape for which bytes and work are counted, where the model leaves dimensions open",
    )
    split.add_argument("--out", metavar="DIR", help="where to write (default: MODEL-parts)")
    split.add_argument("--force", action="store_true", help="replace what split wrote there before")
    split.add_argument(
        "--check", action="store_true", help="compare the parts with the whole on random inputs"
    )
    split.add_argument("--seed", type=int, default=0, help="seed of the random inputs")
    split.set_defaults(run=run)


def _check(options: argparse.Namespace) -> None:
    if options.parts is not None and not 1 < options.parts <= MAX_PARTS:
        raise UsageError(f"--parts: got {options.parts}, want 2 to {MAX_PARTS}")
    if options.seed < 0:
        raise UsageError(f"--seed: got {options.seed}, want at least 0")
    if options.all and not options.list:
        raise UsageError("--all: goes with --list")
    if options.list and (options.out or options.force or options.check):
        raise UsageError("--list: writes nothing, so --out, --force and --check do not go with it")


def run(options: argparse.Namespace) -> int:
    """Divide a model, or list where it can be divided."""
    _check(options)
    with ending_on_sigterm():
        return _list(options) if options.list else _split(options)


def _list(options: argparse.Namespace) -> int:
    # Only here, because onnx takes as long to import as all of the rest.
    from edge_agent.builder.dividing import list_cuts, planned_cuts
    from edge_agent.builder.source import read_in_place, sized

    graph = read_in_place(Path(options.model), settings_of(options).limits)
    sizes = sized(graph, parse_shapes(options.shape))
    planned, reason = planned_cuts(graph, sizes)
    cuts = list_cuts(graph, sizes.specs, planned, is_all=options.all)
    _note(sizes.note)
    if options.json:
        print_json({"shapes": sizes.shapes, "cuts": cuts, "undivided_because": reason})
        return 0
    if not cuts:
        print(f"no cut point is worth planning with: {reason}")
        return 0
    print_cuts(cuts)
    return 0


def print_cuts(cuts: Sequence[ListedCut]) -> None:
    """The cuts as a table, and below it those where the model cannot be divided."""
    print_table(
        ("cut", "behind", "before", "bytes", "work before", "worth it", "crossing"),
        [
            (
                str(cut.position),
                cut.before,
                cut.behind,
                size_text(cut.crossing_bytes),
                f"{cut.work_before_fraction:.1%}",
                "yes" if cut.is_planned else "no" if cut.obstacle is None else "impossible",
                _crossing_text(cut),
            )
            for cut in cuts
        ],
    )
    for cut in cuts:
        if cut.obstacle is not None:
            print(f"cannot be divided at {cut.position}: {cut.obstacle}")


def _crossing_text(cut: ListedCut) -> str:
    shown = ", ".join(f"{value.name} {value.type}" for value in cut.crossing[:_SHOWN])
    left = len(cut.crossing) - _SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


def _split(options: argparse.Namespace) -> int:
    from edge_agent.builder.dividing import even_cuts, named_cuts, planned_cuts
    from edge_agent.builder.parts import write_parts
    from edge_agent.builder.source import general, read_in_place, sized
    from edge_agent.store.output import check_target

    path = Path(options.model)
    shapes = parse_shapes(options.shape)
    graph = read_in_place(path, settings_of(options).limits)
    target = _target(path, options.out)
    check_target(target, path, is_replaced=options.force)
    everywhere = general(graph)
    specs = everywhere
    if options.parts is not None or shapes:
        sizes = sized(graph, shapes)
        specs = sizes.specs
        _note(sizes.note)
    if options.parts is not None:
        planned, _ = planned_cuts(graph, sizes)
        cuts, note = even_cuts(graph, specs, planned, options.parts)
        _note(note)
    else:
        cuts = named_cuts(graph, everywhere, options.at)
    whole = None
    if options.check:
        from edge_agent.builder.comparing import WholeModel

        whole = WholeModel(graph, shapes, rounds=ROUNDS, seed=options.seed)
    manifest = write_parts(graph, cuts, everywhere, specs, target, is_replaced=options.force)
    if manifest.rankless:
        _note(
            f"the number of dimensions of {', '.join(manifest.rankless)} is not known before a "
            "run: runtimes open these parts, but onnx.checker refuses them"
        )
    comparisons: Sequence[Comparison] = ()
    if whole is not None:
        comparisons = whole.compare([target / part.file for part in manifest.parts])
    if options.json:
        print_json({"folder": str(target), "manifest": manifest, "comparisons": comparisons})
    else:
        _print_parts(target, manifest)
        _print_comparisons(comparisons)
    return 0 if all(c.is_right for c in comparisons) else EdgeAgentError.exit_code


def _target(path: Path, out: str | None) -> Path:
    if out is None:
        return path.with_name(f"{path.name.removesuffix('.onnx')}-parts")
    return Path(out)


def _note(text: str | None) -> None:
    if text is not None:
        print(text, file=sys.stderr)


def _print_parts(target: Path, manifest: Manifest) -> None:
    rows = []
    for number, part in enumerate(manifest.parts):
        weight_bytes = part.weights.bytes if part.weights else 0
        cut = manifest.cuts[number - 1] if number else None
        rows.append(
            (
                part.file,
                run_text(*part.nodes),
                size_text(part.bytes + weight_bytes),
                str(len(part.inputs)),
                str(len(part.outputs)),
                size_text(cut.bytes) if cut else "",
            )
        )
    print_table(("part", "nodes", "size", "inputs", "outputs", "crossing before"), rows)
    print(f"{count_text(len(rows), 'part')} and manifest.json in {target}")


def _print_comparisons(comparisons: Sequence[Comparison]) -> None:
    for compared in comparisons:
        print(
            f"parts against the whole, optimisation {compared.level.value}, "
            f"{count_text(compared.rounds, 'round')} of random inputs: "
            f"{'right' if compared.is_right else 'WRONG'}"
        )
        print_table(
            ("output", "type", "largest difference", "relative", ""),
            [
                (
                    output.name,
                    output.type,
                    f"{output.largest_difference:.3g}",
                    f"{output.largest_relative_difference:.3g}",
                    output.wrong or "",
                )
                for output in compared.outputs
            ],
        )
