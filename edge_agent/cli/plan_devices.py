"""`edge-agent plan MODEL.onnx --devices …`: planning over devices that need not be there."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.cli.output import (
    PatientProgress,
    ending_on_sigterm,
    print_json,
    settings_of,
)
from edge_agent.cli.plan_options import (
    ALL,
    NamedProfile,
    Place,
    parse_bounds,
    parse_device_pins,
    parse_devices,
    parse_links,
    parse_places,
)
from edge_agent.cli.shapes import parse_shapes
from edge_agent.cli.statistics_file import load_statistics
from edge_agent.devices import DeviceId, UnitId
from edge_agent.distributions import Distribution, Infeasible
from edge_agent.errors import EdgeAgentError, UsageError
from edge_agent.planning.accounts import Account, account
from edge_agent.planning.alternatives import alone, left_out, runner_up
from edge_agent.planning.estimate import planned_device
from edge_agent.planning.front import Alone, draw_front
from edge_agent.planning.pareto import pareto
from edge_agent.planning.planner import plan
from edge_agent.planning.report import (
    front_table,
    infeasible_lines,
    notes,
    render,
    target_table,
)
from edge_agent.planning.timeline import timeline
from edge_agent.planning.timeline_files import draw_timelines, trace_events
from edge_agent.plans import Target
from edge_agent.problems import PlannedDevice, Problem, SegmentPin
from edge_agent.profile_files.fields import close_to
from edge_agent.profile_files.reading import load
from edge_agent.profile_files.shipped import shipped
from edge_agent.store.output import write_whole

if TYPE_CHECKING:
    from edge_agent.builder.summarising import SummarisedModel
    from edge_agent.hardware import DeviceProfile

EFFORT_S = 2.0
_MOST_EFFORT_S = 3600.0
_FRONT_TARGETS = (Target.LATENCY, Target.THROUGHPUT, Target.ENERGY)
_ONLY_HERE = (
    *("link", "target", "bound", "pin", "ban", "pareto", "stats", "owner", "routes", "effort"),
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
        f"{', '.join(_FRONT_TARGETS)})",
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
    if options.timeline is not None and Path(options.timeline).suffix not in (".svg", ".json"):
        raise UsageError(f"--timeline {options.timeline}: want a file that ends in .svg or .json")
    if options.routes is not None and options.routes < 1:
        raise UsageError(f"--routes: got {options.routes}, want at least 1")
    effort_s = EFFORT_S if options.effort is None else options.effort
    if not (math.isfinite(effort_s) and 0 < effort_s <= _MOST_EFFORT_S):
        raise UsageError(
            f"--effort: got {effort_s:g}, want seconds above 0, at most {_MOST_EFFORT_S:g}"
        )
    for option, name in (("--svg", options.svg), ("--timeline", options.timeline)):
        if name is not None and not Path(name).absolute().parent.is_dir():
            raise UsageError(f"{option} {name}: there is no such folder; make it first")


def _targets(options: argparse.Namespace) -> tuple[Target, ...]:
    named = tuple(dict.fromkeys(Target(name) for name in options.target or ()))
    if not options.pareto:
        return named or tuple(Target)
    targets = named or _FRONT_TARGETS
    if len(targets) < 2:
        raise UsageError(f"--pareto: got the target {targets[0]} alone, want two or more --target")
    return targets


def run(options: argparse.Namespace) -> int:
    """Plan over devices."""
    _check(options)
    targets = _targets(options)
    with ending_on_sigterm(), PatientProgress() as progress:
        progress.say("reading the model")
        posed = _pose(options, targets)
        for note in posed.notes:
            print(note, file=sys.stderr)
        if options.pareto:
            return _front(posed, targets, options, progress)
        return _plans(posed, targets, options, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posed:
    """A problem, and what the user should hear of how it was put."""

    problem: Problem
    notes: tuple[str, ...]


def _pose(options: argparse.Namespace, targets: Sequence[Target]) -> _Posed:
    profiles = _profiles(parse_devices(options.devices, shipped()))
    units = {DeviceId(p.id): [unit.id for unit in p.units] for p in profiles}
    ids = list(units)
    links = parse_links(options.link or (), ids)
    owner = DeviceId(options.owner) if options.owner is not None else ids[0]
    if owner not in ids:
        raise UsageError(
            f"--owner {owner}: is none of the devices: there are {', '.join(ids)}"
            f"{close_to(owner, ids)}"
        )
    bounds = parse_bounds(options.bound or ())
    pins = parse_device_pins(options.pin or (), units)
    bans = parse_places("--ban", options.ban or (), units)
    statistics = () if options.stats is None else load_statistics(Path(options.stats), units)
    model = _model(options, pins)
    is_rate = Target.THROUGHPUT in {*targets, *(bound.target for bound in bounds)}
    devices = (planned_device(p, model.summary, is_for_throughput=is_rate) for p in profiles)
    where = {str(place): (pattern, place) for pattern, place in pins}
    try:
        problem = Problem(
            summary=model.summary,
            devices=tuple(_banned(device, bans) for device in devices),
            owner=owner,
            links=links,
            statistics=statistics,
            pins=_segment_pins(model, where),
            bounds=bounds,
            input_bytes=model.input_bytes,
            output_bytes=model.output_bytes,
            most_routes=options.routes,
        )
    except ValueError as error:
        raise UsageError(f"--devices: {error}") from error
    return _Posed(problem=problem, notes=tuple(_remarks(model, problem)))


def _remarks(model: SummarisedModel, problem: Problem) -> list[str]:
    remarks = [] if model.note is None else [model.note]
    if model.summary.undivided_because is not None:
        remarks.append(f"the model is not divided: {model.summary.undivided_because}")
    if len(problem.devices) > 1 and not problem.links:
        remarks.append(
            f"there is no --link, so {problem.owner} alone can do anything; "
            f"--link {ALL}=1Gbit,0.3ms joins all devices"
        )
    return remarks


def _profiles(named: Sequence[NamedProfile]) -> tuple[DeviceProfile, ...]:
    found: dict[str, DeviceProfile] = {}
    for one in named:
        profile = load(one.path)
        profile = profile if one.id is None else replace(profile, id=one.id)
        if profile.id in found:
            raise UsageError(
                f"--devices {one.text}: there is a {profile.id} already; give it an id of its own, "
                f"as in {profile.id}-2={one.text.rpartition('=')[2]}"
            )
        found[profile.id] = profile
    return tuple(found.values())


def _model(options: argparse.Namespace, pins: Sequence[tuple[str, Place]]) -> SummarisedModel:
    # Only here, because onnx takes as long to import as all of the rest.
    from edge_agent.builder.summarising import summarise_file

    return summarise_file(
        Path(options.model),
        settings_of(options).limits,
        parse_shapes(options.shape),
        [(pattern, str(place)) for pattern, place in pins],
    )


def _segment_pins(
    model: SummarisedModel, where: Mapping[str, tuple[str, Place]]
) -> tuple[SegmentPin, ...]:
    pins = []
    for segment, wanted in enumerate(model.pinned):
        if wanted is not None:
            pattern, place = where[wanted]
            pins.append(
                SegmentPin(segment=segment, device=place.device, unit=place.unit, pattern=pattern)
            )
    return tuple(pins)


def _banned(device: PlannedDevice, bans: Sequence[Place]) -> PlannedDevice:
    here = [place for place in bans if place.device == device.id]

    def reason(unit: UnitId) -> str:
        found = next((place for place in here if place.unit in (None, unit)), None)
        return "" if found is None else f"banned by --ban {found}"

    units = tuple(
        replace(unit, banned_because=reason(unit.id) or unit.banned_because)
        for unit in device.units
    )
    return replace(device, units=units)


def _plans(
    posed: _Posed,
    targets: Sequence[Target],
    options: argparse.Namespace,
    progress: PatientProgress,
) -> int:
    problem, effort = posed.problem, _effort(options)
    answers: list[Distribution | Infeasible] = []
    for number, target in enumerate(targets):
        progress.say(f"planning for {target}", number / len(targets))
        answers.append(plan(problem, target, effort))
    found = [one for one in answers if isinstance(one, Distribution)]
    refused = [one for one in answers if isinstance(one, Infeasible)]
    accounts = _accounts(problem, found, options, progress)
    if options.timeline is not None:
        _write_timeline(Path(options.timeline), problem, found, options)
    progress.end()
    if options.json:
        print_json(_as_json(problem, accounts, refused))
    else:
        _print(problem, target_table(found), accounts, refused, options)
    return 0 if found else EdgeAgentError.exit_code


def _effort(options: argparse.Namespace) -> float:
    """In about microseconds of a desktop processor."""
    return 1e6 * (EFFORT_S if options.effort is None else float(options.effort))


def _accounts(
    problem: Problem,
    found: Sequence[Distribution],
    options: argparse.Namespace,
    progress: PatientProgress,
) -> list[Account]:
    if not (options.explain or options.json):
        return [account(problem, one) for one in found]
    told = []
    for number, one in enumerate(found):
        progress.say(f"comparing the plan for {one.target} with others", number / len(found))
        told.append(
            account(
                problem,
                one,
                left_out=left_out(problem, one),
                runner_up=runner_up(problem, one),
                alone=alone(problem, one.target),
            )
        )
    return told


def _print(
    problem: Problem,
    lines: Sequence[str],
    accounts: Sequence[Account],
    refused: Sequence[Infeasible],
    options: argparse.Namespace,
) -> None:
    if accounts:
        print("\n".join(lines))
    for line in (*infeasible_lines(refused), *notes(problem, accounts)):
        print(line)
    if options.explain:
        for told in accounts:
            print(f"\n{render(problem, told)}", end="")


def _front(
    posed: _Posed,
    targets: Sequence[Target],
    options: argparse.Namespace,
    progress: PatientProgress,
) -> int:
    problem = posed.problem
    progress.say(f"planning for {', '.join(targets)}")
    front = pareto(problem, targets, _effort(options))
    accounts = _accounts(problem, front.distributions, options, progress)
    if options.svg is not None and front.distributions:
        progress.say("comparing with single devices")
        singles = _singles(problem, targets[:2])
        title = f"{Path(options.model).name} over {', '.join(d.id for d in problem.devices)}"
        drawn = draw_front(title, front.distributions, targets, singles)
        write_whole(Path(options.svg), drawn)
    progress.end()
    if options.json:
        print_json(_as_json(problem, accounts, front.infeasible) | {"targets": targets})
    else:
        _print(problem, front_table(front.distributions), accounts, front.infeasible, options)
    return 0 if front.distributions else EdgeAgentError.exit_code


def _singles(problem: Problem, targets: Sequence[Target]) -> list[Alone]:
    """The best single device for each of the targets; one that is best for two is told once."""
    found: list[Alone] = []
    for target in targets:
        best = alone(problem, target)
        if best is None or any(one.metrics == best.metrics for one in found):
            continue
        (device,) = {step.device for step in best.routes[0].steps if hasattr(step, "device")}
        found.append(Alone(device=device, best_of=target, metrics=best.metrics))
    return found


def _write_timeline(
    path: Path, problem: Problem, found: Sequence[Distribution], options: argparse.Namespace
) -> None:
    if not found:
        return
    lines = [timeline(problem, one) for one in found]
    if path.suffix == ".json":
        write_whole(path, json.dumps(trace_events(lines), indent=1) + "\n")
    else:
        title = f"{Path(options.model).name} over {', '.join(d.id for d in problem.devices)}"
        write_whole(path, draw_timelines(title, lines))


def _as_json(
    problem: Problem, accounts: Sequence[Account], refused: Sequence[Infeasible]
) -> dict[str, object]:
    return {
        "model": problem.summary.model,
        "shapes": dict(problem.summary.shapes),
        "segments": len(problem.summary.segments),
        "owner": problem.owner,
        "devices": [
            {"id": device.id, "is_estimated": device.is_estimated} for device in problem.devices
        ],
        "links": problem.links,
        "is_energy_modelled": True,
        "plans": accounts,
        "infeasible": refused,
    }
