"""`plan --devices`: what is planned, and what is printed and written of it."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_agent.cli.output import PatientProgress, ending_on_sigterm, print_json
from edge_agent.cli.plan_devices import EFFORT_S, FRONT_TARGETS
from edge_agent.cli.posing import Posed, pose
from edge_agent.distributions import Distribution, Infeasible
from edge_agent.errors import EdgeAgentError
from edge_agent.planner.answering import check_targets, known_targets, knows_energy
from edge_agent.planning.accounts import Account, account
from edge_agent.planning.alternatives import alone, compare, devices_of
from edge_agent.planning.front import Alone, draw_front
from edge_agent.planning.pareto import pareto
from edge_agent.planning.planner import exchanged, plan
from edge_agent.planning.present import spared_text
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
from edge_agent.problems import Problem
from edge_agent.store.output import write_whole


def answer(options: argparse.Namespace, targets: Sequence[Target]) -> int:
    """Plan over devices for `targets`, or the usual ones, and tell what was found; the exit
    code."""
    with ending_on_sigterm(), PatientProgress() as progress:
        progress.say("reading the model")
        posed = pose(options, targets)
        for note in posed.notes:
            print(note, file=sys.stderr)
        targets = _known(posed.problem, targets, options)
        if options.pareto:
            return _front(posed, targets, options, progress)
        return _plans(posed, targets, options, progress)


def _known(
    problem: Problem, targets: Sequence[Target], options: argparse.Namespace
) -> tuple[Target, ...]:
    """What is planned for. Raises: BadRequest if energy is asked for and not known."""
    check_targets(problem, targets)
    if targets:
        return tuple(targets)
    known = known_targets(problem)
    if Target.ENERGY not in known:
        print(
            "energy is left out: not all profiles say what the device draws, with the keys "
            "power.idle and units.NAME.busy",
            file=sys.stderr,
        )
    return tuple(t for t in known if not options.pareto or t in FRONT_TARGETS)


def _plans(
    posed: Posed,
    targets: Sequence[Target],
    options: argparse.Namespace,
    progress: PatientProgress,
) -> int:
    problem, effort = posed.problem, _effort(options)
    answers: list[Distribution | Infeasible] = []
    for number, target in enumerate(targets):
        progress.say(f"planning for {target}", number / len(targets))
        answers.append(plan(problem, target, effort))
    answers = list(exchanged(problem, answers))
    found = [one for one in answers if isinstance(one, Distribution)]
    refused = [one for one in answers if isinstance(one, Infeasible)]
    accounts = _accounts(problem, found, effort * len(targets), options, progress)
    if options.timeline is not None:
        _write_timeline(Path(options.timeline), problem, found, options)
    progress.end()
    if options.json:
        print_json(_as_json(problem, accounts, refused))
    else:
        table = target_table(found, knows_energy=knows_energy(problem))
        _print(problem, table, accounts, refused, options)
    return 0 if found else EdgeAgentError.exit_code


def _effort(options: argparse.Namespace) -> float:
    """In about microseconds of a desktop processor."""
    return 1e6 * (EFFORT_S if options.effort is None else float(options.effort))


def _accounts(
    problem: Problem,
    found: Sequence[Distribution],
    effort: float,
    options: argparse.Namespace,
    progress: PatientProgress,
) -> list[Account]:
    """`effort` is for comparing all of them."""
    if not (options.explain or options.json):
        return [account(problem, one) for one in found]
    told = []
    for number, one in enumerate(found):
        step = f"comparing plan {number + 1} of {len(found)}, for {one.target}, with others"
        steps = step_by_step(progress, step, number / len(found), (number + 1) / len(found))
        compared = compare(problem, one, effort / len(found), steps)
        told.append(
            account(
                problem,
                one,
                left_out=compared.left_out,
                runner_up=compared.runner_up,
                alone=compared.alone,
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
    is_known = knows_energy(problem)
    for line in (*infeasible_lines(refused), *notes(problem, accounts, knows_energy=is_known)):
        print(line)
    if options.explain:
        for told in accounts:
            print(f"\n{render(problem, told, knows_energy=is_known)}", end="")


def _front(
    posed: Posed,
    targets: Sequence[Target],
    options: argparse.Namespace,
    progress: PatientProgress,
) -> int:
    problem = posed.problem
    what = f"planning for {', '.join(targets)}"
    effort = _effort(options)
    front = pareto(problem, targets, effort, step_by_step(progress, what))
    found = front.distributions
    accounts = _accounts(problem, found, effort * len(targets), options, progress)
    if options.svg is not None and front.distributions:
        progress.say("comparing with single devices")
        singles = _singles(problem, targets[:2], effort)
        title = f"{Path(options.model).name} over {', '.join(d.id for d in problem.devices)}"
        is_known = knows_energy(problem)
        drawn = draw_front(title, front.distributions, targets, singles, knows_energy=is_known)
        write_whole(Path(options.svg), drawn)
    progress.end()
    if options.json:
        print_json(_as_json(problem, accounts, front.infeasible) | {"targets": targets})
    else:
        table = front_table(front.distributions, knows_energy=knows_energy(problem))
        _print(problem, table, accounts, front.infeasible, options)
    return 0 if front.distributions else EdgeAgentError.exit_code


def step_by_step(
    progress: PatientProgress, what: str, start: float = 0.0, stop: float = 1.0
) -> Callable[[float], None]:
    """Tells of `what`, which begins, and of each step of it that ends; takes how much is done,
    0 to 1, which is that part of the way from `start` to `stop` of everything."""
    progress.say(what, start)
    steps = itertools.count(2)

    def report(fraction: float) -> None:
        if fraction < 1.0:
            # Where no terminal rewrites its line, only other words are a new one.
            progress.say(f"{what}, step {next(steps)}", start + fraction * (stop - start))

    return report


def _singles(problem: Problem, targets: Sequence[Target], effort: float) -> list[Alone]:
    """The best single device for each of the targets, `effort` for each; one that is best for two
    is told once."""
    found: list[Alone] = []
    for target in targets:
        best = alone(problem, target, effort)
        if best is None or any(one.metrics == best.metrics for one in found):
            continue
        (device,) = devices_of(best)
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
            {
                "id": device.id,
                "is_estimated": device.is_estimated,
                "spared_because": spared_text(problem, device.id) or None,
            }
            for device in problem.devices
        ],
        "links": problem.links,
        "is_energy_modelled": True,
        "knows_energy": knows_energy(problem),
        "plans": accounts,
        "infeasible": refused,
    }
