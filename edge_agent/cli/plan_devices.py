"""`edge-agent plan MODEL.onnx --devices …`: its options, and which of them go together."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from edge_agent.cli.plan_options import ALL, asked_targets
from edge_agent.errors import UsageError
from edge_agent.plans import Target
from edge_agent.store.output import check_file, is_passed_on, is_standard_output

EFFORT_S = 2.0
_MOST_EFFORT_S = 3600.0
FRONT_TARGETS = (Target.LATENCY, Target.THROUGHPUT, Target.ENERGY)
_ONLY_HERE = (
    *("link", "pin", "ban", "stats", "owner", "routes", "effort"),
    *("svg", "timeline"),
)
"""Options that mean nothing without --devices."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Give `plan` the options of planning over devices."""
    group = command.add_argument_group(
        "planning over devices",
        "With --devices, MODEL is a model file, no agent is asked, and the devices need not be "
        "there: what their profiles say is enough.",
    )
    group.add_argument(
        "--devices",
        nargs="+",
        action="extend",
        metavar="[ID=]PROFILE",
        help="profile files (.toml), or names of profiles that come along, as "
        "raspberry-pi-5-8gb; with an id of its own one may be named several times",
    )
    group.add_argument(
        "--link",
        nargs="+",
        action="extend",
        metavar="A-B=100Mbit,2ms",
        help="a link both ways, with its goodput (what is left for data, not the line rate) and "
        "latency; 'A>B=…' or ,one-way: in one direction; ,medium=wifi: links that take turns; "
        f",joules=5nJ/B: its energy; {ALL}=…: between all devices, where nothing else is said",
    )
    group.add_argument("--owner", metavar="ID", help="where requests arrive (default: the first)")
    group.add_argument(
        "--target",
        nargs="+",
        action="extend",
        choices=[t.value for t in Target],
        metavar="TARGET",
        help=f"what to plan for: {', '.join(Target)} (default: each of them)",
    )
    group.add_argument(
        "--bound",
        nargs="+",
        action="extend",
        metavar="TARGET=LIMIT",
        help="what plans must keep to: latency=80ms, throughput=20/s, energy=2.5J, memory=512MiB, "
        "bytes=1MB",
    )
    group.add_argument(
        "--pin",
        nargs="+",
        action="extend",
        metavar="PATTERN=DEVICE[/UNIT]",
        help="where the nodes of these names (* ? […]) run, whether it pays or not",
    )
    group.add_argument(
        "--ban", nargs="+", action="extend", metavar="DEVICE[/UNIT]", help="what must not be used"
    )
    group.add_argument(
        "--stats", metavar="FILE", help="what devices are like at present (TOML or JSON)"
    )
    group.add_argument("--routes", type=int, metavar="N", help="most routes of a plan")
    group.add_argument(
        "--effort",
        type=float,
        metavar="SECONDS",
        help="about how long searches may take that cannot be ended exactly, for each target "
        f"(default {EFFORT_S:g})",
    )
    group.add_argument(
        "--pareto",
        action="store_true",
        help="plans of which none is better for all targets (default of --target: "
        f"{', '.join(FRONT_TARGETS)})",
    )
    group.add_argument(
        "--svg", metavar="FILE", help="with --pareto: draw it, over the first two targets"
    )
    group.add_argument(
        "--timeline",
        metavar="FILE",
        help="write who does what when, as a drawing (.svg) or for trace viewers (.json)",
    )


def check_without_devices(options: argparse.Namespace) -> None:
    """Refuse options of planning over devices for a loaded model. Raises: UsageError."""
    for name in _ONLY_HERE:
        if getattr(options, name) not in (None, False):
            raise UsageError(
                f"--{name}: goes with --devices; `edge-agent plan MODEL` alone shows the plan of a "
                "loaded model"
            )


def _check(options: argparse.Namespace) -> None:
    if options.socket is not None:
        raise UsageError("--socket: no agent is asked, so it does not go with --devices")
    if options.svg is not None and not options.pareto:
        raise UsageError("--svg: draws a Pareto set, so it goes with --pareto")
    if options.pareto and options.timeline is not None:
        raise UsageError("--timeline: draws plans for targets, so --pareto does not go with it")
    if options.routes is not None and options.routes < 1:
        raise UsageError(f"--routes: got {options.routes}, want at least 1")
    effort_s = EFFORT_S if options.effort is None else options.effort
    if not (math.isfinite(effort_s) and 0 < effort_s <= _MOST_EFFORT_S):
        raise UsageError(
            f"--effort: got {effort_s:g}, want seconds above 0, at most {_MOST_EFFORT_S:g}"
        )
    if options.svg is not None:
        _check_drawing("--svg", options.svg, (), is_json=options.json)
    if options.timeline is not None:
        _check_drawing("--timeline", options.timeline, (".svg", ".json"), is_json=options.json)


def _check_drawing(option: str, name: str, endings: Sequence[str], *, is_json: bool) -> None:
    path = check_file(option, name)
    # Standard output, a device or a FIFO gets a drawing, whatever it is called.
    if is_passed_on(path):
        if is_json and is_standard_output(path):
            raise UsageError(
                f"{option} {name}: with --json, standard output is one JSON document; name a file"
            )
        return
    if endings and path.suffix not in endings:
        raise UsageError(f"{option} {name}: want a file that ends in {' or '.join(endings)}")


def run(options: argparse.Namespace) -> int:
    """Plan over devices."""
    _check(options)
    targets = asked_targets(options)
    # Only here, because what plans takes longer to import than all that the other commands need.
    from edge_agent.cli.plan_flow import answer

    return answer(options, targets)
