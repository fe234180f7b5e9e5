"""`edge-agent plan`."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from edge_agent.cli import plan_devices, plan_loaded
from edge_agent.cli.awaiting import awaited_plan
from edge_agent.cli.divided import divided_lines
from edge_agent.cli.output import ProgressLine, client_of, print_json
from edge_agent.cli.shape_plans import print_specialised, shapes_text
from edge_agent.cli.shapes import add_shape_option, parse_shapes
from edge_agent.client import Client
from edge_agent.planning.explain import render
from edge_agent.planning.flips import flips, render_flips
from edge_agent.plans import ExecutionPlan
from edge_agent.tensors import Shape


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `plan`."""
    text = "show the plan of a loaded model, or plan a model file over devices"
    plan = commands.add_parser("plan", parents=[shared], help=text, description=text + ".")
    plan.set_defaults(run=run_plan)
    plan.add_argument(
        "model", metavar="MODEL", help="name of a loaded model; with --devices, a model file"
    )
    plan.add_argument(
        "--explain", action="store_true", help="every subgraph and every rejected candidate"
    )
    add_shape_option(
        plan,
        "the plan for these input shapes alone, made now if there is none, and where it "
        "differs. With --devices, what open dimensions are",
    )
    plan_devices.add_options(plan)


def run_plan(options: argparse.Namespace) -> int:
    """Show a plan."""
    if options.devices is not None:
        return plan_devices.run(options)
    plan_devices.check_without_devices(options)
    if plan_loaded.is_asked(options):
        return plan_loaded.run(options)
    shapes = parse_shapes(options.shape)
    with client_of(options) as client:
        plan = awaited_plan(client, options.model)
        if shapes:
            return _show_plan_for(client, shapes, plan, options)
        state = client.model(options.model)
        divided = client.divided(options.model)
    if options.json:
        # Beside the plan of this device alone, which it is compared with.
        print_json(msgspec.to_builtins(plan) | {"divided": divided})
        return 0
    if options.explain:
        print(render(plan))
    else:
        alone = str(plan) if state.divided else state.plan
        print(f'model "{state.name}": {alone}\n{plan.reason}')
    for line in divided_lines(divided, state):
        print(line)
    print_specialised(state)
    return 0


def _show_plan_for(
    client: Client, shapes: dict[str, Shape], general: ExecutionPlan, options: argparse.Namespace
) -> int:
    line = ProgressLine()
    try:
        plan = client.plan(options.model, shapes, on_progress=line.show)
    finally:
        line.end()
    if options.json:
        print_json({"plan": plan, "general": general, "flips": flips(general, plan)})
    elif options.explain:
        print(render(plan))
        print(render_flips(general, plan))
    else:
        print(f'model "{options.model}" for {shapes_text(plan.shapes)}: {plan}')
        print(plan.reason)
    return 0
