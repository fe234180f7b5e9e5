"""`edge-agent plan NAME --target T`: the best distributions of a loaded model over this device and
its peers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace

from edge_agent.cli.awaiting import awaited_plan
from edge_agent.cli.output import PatientProgress, client_of, print_json, print_table, size_text
from edge_agent.cli.plan_options import asked_targets, parse_bounds
from edge_agent.devices import DeviceId
from edge_agent.distributions import (
    Distribution,
    Infeasible,
    PlacedFork,
    PlacedSubgraph,
    Planned,
    Route,
    Step,
)
from edge_agent.errors import EdgeAgentError, UsageError
from edge_agent.planning.explain import disturbed_lines
from edge_agent.planning.short import (
    JOULES_TITLE,
    gap_text,
    number_text,
    rate_text,
    share_texts,
)
from edge_agent.plans import Target

_TITLES = (
    "best for",
    "ms",
    "per s",
    JOULES_TITLE,
    "memory",
    "on the wire",
    "gap",
    "distribution",
)


def is_asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for distributions."""
    return bool(options.target or options.bound or options.pareto)


def run(options: argparse.Namespace) -> int:
    """Show the distributions, once the model is planned."""
    if options.explain or options.shape:
        raise UsageError(
            "--explain and --shape tell of the plan that serves; leave them out, or --target, "
            "--bound and --pareto"
        )
    targets = asked_targets(options)
    bounds: dict[Target | str, float] = {
        bound.target: bound.limit for bound in parse_bounds(options.bound or ())
    }
    with client_of(options) as client:
        awaited_plan(client, options.model)
        with PatientProgress() as progress:
            progress.say("asking the planner of the agent")
            planned = client.distributions(
                options.model,
                targets,
                is_pareto=options.pareto,
                bounds=bounds,
                on_progress=lambda fraction, what: progress.say(what, fraction),
            )
    if options.json:
        print_json(
            {
                "best": planned.best,
                "front": planned.front,
                "is_energy_modelled": True,
                "knows_energy": planned.knows_energy,
                "disturbed_fraction": planned.disturbed_fraction,
                "appraisals": planned.appraisals,
                "notes": planned.notes,
                "names": planned.names,
                "narrowed": planned.narrowed,
                "division": planned.division,
            }
        )
    else:
        _print(planned)
    is_found = any(isinstance(answer, Distribution) for answer in planned.best)
    return 0 if is_found else EdgeAgentError.exit_code


def _print(planned: Planned) -> None:
    names = dict(planned.names)
    titled = [(str(answer.target), answer) for answer in planned.best]
    titled += [("between", answer) for answer in _others(planned)]
    print_table(_TITLES, [_row(title, one, names, planned.knows_energy) for title, one in titled])
    if not planned.knows_energy:
        whose = "all of these devices draw" if planned.names else "this device draws"
        print(f"energy: not known, because nobody measured what {whose}")
    for note in planned.notes:
        print(note)
    for line in disturbed_lines(planned.disturbed_fraction):
        print(line)


def _others(planned: Planned) -> Iterator[Distribution]:
    shown = [found.routes for found in planned.best if isinstance(found, Distribution)]
    return (found for found in planned.front if found.routes not in shown)


def _row(
    title: str,
    answer: Distribution | Infeasible,
    names: Mapping[DeviceId, str],
    knows_energy: bool,
) -> tuple[str, ...]:
    if isinstance(answer, Infeasible):
        return (title, *("-",) * 6, f"none: {answer.reason}")
    metrics = answer.metrics
    shares = share_texts([route.share for route in answer.routes])
    return (
        title,
        number_text(metrics.latency_s * 1e3),
        rate_text(metrics.throughput_per_s),
        number_text(metrics.energy_joules, 3) if knows_energy else "not known",
        size_text(round(metrics.peak_memory_bytes)),
        size_text(round(metrics.wire_bytes)),
        gap_text(answer.gap),
        " or ".join(
            f"{route} ({share})" if len(shares) > 1 else str(route)
            for route, share in zip((_called(r, names) for r in answer.routes), shares, strict=True)
        ),
    )


def _called(route: Route, names: Mapping[DeviceId, str]) -> Route:
    """The route for people, over devices that are called by their names."""
    return replace(route, steps=tuple(_called_step(step, names) for step in route.steps))


def _called_step(step: Step, names: Mapping[DeviceId, str]) -> Step:
    def name(device: DeviceId) -> DeviceId:
        return DeviceId(names.get(device, device))

    match step:
        case PlacedSubgraph():
            return replace(step, device=name(step.device))
        case PlacedFork():
            arms = tuple(replace(arm, device=name(arm.device)) for arm in step.arms)
            return replace(step, home=name(step.home), arms=arms)
