"""`edge-agent load`, `unload`, `models`, `status` and `replan`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from edge_agent.cli.awaiting import await_plan
from edge_agent.cli.output import (
    client_of,
    count_text,
    print_json,
    print_table,
    size_text,
)
from edge_agent.cli.shape_plans import print_specialised
from edge_agent.cli.shapes import add_shape_option, parse_shapes
from edge_agent.client import Client
from edge_agent.errors import EdgeAgentError, UsageError
from edge_agent.plans import SERVED_TARGETS
from edge_agent.tensors import TensorSpec
from edge_agent.wire.arguments import HALF_BOUND
from edge_agent.wire.messages import (
    MAX_SUBGRAPHS,
    MAX_THREADS,
)
from edge_agent.wire.parts import (
    ModelState,
)


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the commands about models, and about the agent."""
    load = commands.add_parser(
        "load",
        parents=[shared],
        help="load a model and make its plan",
        description="Copy a model into the store and serve it at once on plain ONNX Runtime, "
        "while its plan is made in the background.",
    )
    load.add_argument("model", metavar="MODEL.onnx")
    load.add_argument("--name", help="how requests call it (default: the file's name)")
    load.add_argument("--target", choices=[t.value for t in SERVED_TARGETS], default="latency")
    load.add_argument("--threads", type=int, metavar="T", help="most threads of the plan")
    add_shape_option(load, "shape to plan for, where the model leaves dimensions open")
    load.add_argument(
        "--subgraphs",
        type=int,
        metavar="N",
        help="divide the model into N, whether it pays or not (default: as it pays)",
    )
    load.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="PATTERN=UNIT",
        help="run the nodes of these names (* ? […]) on a unit, whether it pays or not; may be "
        "given several times",
    )
    load.add_argument(
        "--samples",
        metavar="DIR",
        help="real inputs to compare and time with: *.npz files with arrays by input name, or ONNX "
        "test data",
    )
    load.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="fp16[=BOUND]",
        help="let units compute in float16 where the outputs stay within this share of their range "
        f"(default {HALF_BOUND:g})",
    )
    where = load.add_mutually_exclusive_group()
    where.add_argument(
        "--over",
        nargs="+",
        metavar="PEER",
        help="divide the model over this device and these peers, whether it pays or not (default: "
        "over all peers, as it pays)",
    )
    where.add_argument("--alone", action="store_true", help="run the model on this device alone")
    load.add_argument(
        "--wire",
        metavar="fp16|int8[=BOUND]",
        help="let float32 tensors cross to other devices in fewer bits where that pays and the "
        f"outputs stay within this share of their range (default {HALF_BOUND:g})",
    )
    load.add_argument("--wait", action="store_true", help="wait until the plan serves")
    load.set_defaults(run=run_load)

    def simple(name: str, run: Any, text: str) -> Any:
        made = commands.add_parser(name, parents=[shared], help=text, description=text + ".")
        made.set_defaults(run=run)
        return made

    simple("unload", run_unload, "stop serving a model and remove it").add_argument("model")
    simple("models", run_models, "list the loaded models")
    simple("status", run_status, "show the state of the agent and its counters")
    replan = simple("replan", run_replan, "measure and plan a model again while it serves")
    replan.add_argument("model")
    replan.add_argument("--wait", action="store_true", help="wait until the plan serves")


def parse_pins(texts: Sequence[str]) -> dict[str, str]:
    """`PATTERN=UNIT` options as units by pattern.

    Raises:
        UsageError: it is written differently, or one pattern has two units.
    """
    pins: dict[str, str] = {}
    for text in texts:
        pattern, _, unit = text.rpartition("=")
        if not pattern or not unit:
            raise UsageError(f"--pin {text}: want PATTERN=UNIT, e.g. '/layer4/*=npu'")
        if pins.setdefault(pattern, unit) != unit:
            raise UsageError(f"--pin {text}: {pattern} is pinned to {pins[pattern]} too")
    return pins


def _tell(client: Client, state: ModelState, options: argparse.Namespace) -> int:
    if options.wait:
        state = await_plan(client, state.name)
    if options.json:
        print_json(state)
    else:
        print(f'model "{state.name}" {state.state}: {state.plan}')
        if state.planning == "failed":
            print(f"it has no plan: {state.progress}")
        if state.dividing == "failed":
            print(f"it is not divided over devices: {state.dividing_progress}")
    is_undivided = state.is_over_asked and state.dividing == "failed"
    has_failed = state.planning == "failed" or is_undivided
    return EdgeAgentError.exit_code if options.wait and has_failed else 0


def run_load(options: argparse.Namespace) -> int:
    """Load a model."""
    if options.threads is not None and not 1 <= options.threads <= MAX_THREADS:
        raise UsageError(f"--threads: got {options.threads}, want 1 to {MAX_THREADS}")
    if options.subgraphs is not None and not 1 <= options.subgraphs <= MAX_SUBGRAPHS:
        raise UsageError(f"--subgraphs: got {options.subgraphs}, want 1 to {MAX_SUBGRAPHS}")
    if options.alone and options.wire:
        raise UsageError("--wire: is for models over several devices; leave out --alone, or it")
    with client_of(options) as client:
        state = client.load(
            options.model,
            options.name,
            target=options.target,
            threads=options.threads,
            shapes=parse_shapes(options.shape),
            subgraphs=options.subgraphs,
            pins=parse_pins(options.pin),
            samples=options.samples,
            allow=options.allow,
            over=() if options.alone else options.over,
            wire=options.wire,
        )
        return _tell(client, state, options)


def run_replan(options: argparse.Namespace) -> int:
    """Plan a model again."""
    with client_of(options) as client:
        return _tell(client, client.replan(options.model), options)


def run_unload(options: argparse.Namespace) -> int:
    """Unload a model."""
    with client_of(options) as client:
        client.unload(options.model)
    if options.json:
        print_json({"unloaded": options.model})
    else:
        print(f'model "{options.model}" is unloaded')
    return 0


def _print_models(states: Sequence[ModelState]) -> None:
    rows = [
        (
            s.name,
            s.state,
            s.planning if s.planning != "working" else f"{s.planning} {s.progress_fraction:.0%}",
            s.target.value,
            str(s.answered),
            str(s.failed),
            str(s.in_flight),
            str(s.restarts),
            size_text(s.memory_bytes),
            s.plan,
        )
        for s in states
    ]
    print_table(
        (
            "model",
            "state",
            "planning",
            "target",
            "answered",
            "failed",
            "in flight",
            "restarts",
            "memory",
            "plan",
        ),
        rows,
    )


def run_models(options: argparse.Namespace) -> int:
    """List the models."""
    with client_of(options) as client:
        states = client.models()
    if options.json:
        print_json(states)
    elif states:
        _print_models(states)
        for state in states:
            print(f"\n{state.name}: from {state.source}")
            if state.planning == "failed":
                print(f"  {state.progress}")
            if state.dividing == "failed":
                print(f"  not divided over devices: {state.dividing_progress}")
            _print_interface("input", state.inputs)
            _print_interface("output", state.outputs)
            print_specialised(state)
    else:
        print("no model is loaded: load one with `edge-agent load MODEL.onnx`")
    return 0


def _print_interface(word: str, specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        print(f"  {word} {spec.name}: {spec}{', may be left out' if spec.has_default else ''}")


def run_status(options: argparse.Namespace) -> int:
    """Show the agent's state."""
    with client_of(options) as client:
        status = client.status()
    if options.json:
        print_json(status)
        return 0
    print(f"edge-agent {status.version}, pid {status.pid}, up {status.uptime_s:.0f} s")
    print(f"socket {status.socket}, state in {status.state_folder}, start {status.incarnation}")
    print(
        f"{count_text(status.in_flight, 'request')} in flight "
        f"({size_text(status.in_flight_bytes)}), "
        f"{count_text(status.connections, 'connection')} ({status.lent} lent to workers), "
        f"{size_text(status.memory_bytes)} of memory"
    )
    print(
        f"on disk: {size_text(status.model_disk_bytes)} of models, "
        f"{size_text(status.compiled_disk_bytes)} of compiled subgraphs "
        f"(at most {size_text(status.max_compiled_disk_bytes)})"
    )
    for name, count in sorted(status.counters.items()):
        print(f"{name}: {count}")
    if status.models:
        _print_models(status.models)
    return 0
