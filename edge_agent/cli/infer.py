"""`edge-agent infer`."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent import clock
from edge_agent.cli.output import client_of, count_text, print_json
from edge_agent.cli.shapes import add_shape_option, parse_shapes
from edge_agent.client import DEFAULT_DEADLINE_S, Client
from edge_agent.errors import UsageError
from edge_agent.samples import random_arrays
from edge_agent.store.output import check_file, written_file
from edge_agent.tensors import Array, Arrays, Shape, TensorName
from edge_agent.wire.messages import MAX_DEADLINE_S

_SHOWN = 8
"""Values of an output that are printed."""


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `infer`."""
    infer = commands.add_parser(
        "infer",
        parents=[shared],
        help="run a model once or several times",
        description="Run a loaded model on arrays from files, or on random ones.",
    )
    infer.add_argument("model")
    infer.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input of the model; once for each, or for each element of a sequence",
    )
    infer.add_argument("--random", action="store_true", help="random values for all other inputs")
    infer.add_argument("--seed", type=int, default=0, help="seed of the random values")
    add_shape_option(infer, "shape of a random input, where the model leaves dimensions open")
    infer.add_argument("--repeat", type=int, default=1, metavar="N", help="how often to run it")
    infer.add_argument(
        "--outputs", metavar="NAME,NAME", help="which outputs to compute (default: all)"
    )
    infer.add_argument("--output", metavar="FILE.npz", help="where to write the outputs")
    infer.add_argument(
        "--deadline",
        type=float,
        default=DEFAULT_DEADLINE_S,
        metavar="SECONDS",
        help="give up on a run after this long",
    )
    infer.set_defaults(run=run)


def _read_array(text: str) -> tuple[str, Array]:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise UsageError(f"--input {text}: want NAME=FILE.npy")
    try:
        with Path(path).open("rb") as file:
            return name, np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"--input {text}: cannot read {path}: {error.strerror}") from error
    except (ValueError, MemoryError) as error:
        raise UsageError(
            f"--input {text}: {path} is no array in .npy format ({error}): write it with numpy.save"
        ) from error


def _inputs(client: Client, options: argparse.Namespace) -> Arrays:
    read: dict[str, list[Array]] = {}
    for name, array in map(_read_array, options.input):
        read.setdefault(name, []).append(array)
    state = client.model(options.model)
    lists = {spec.name for spec in state.inputs if spec.container}
    for name, found in read.items():
        if len(found) > 1 and name not in lists:
            raise UsageError(f"--input {name}: was given {len(found)} times and is no sequence")
    arrays: dict[str, Any] = {n: found if n in lists else found[0] for n, found in read.items()}
    if not options.random:
        return arrays
    shapes: dict[TensorName, Shape] = dict(state.shapes)
    known = [spec.name for spec in state.inputs]
    for name, shape in parse_shapes(options.shape).items():
        if name not in known:
            raise UsageError(f"--shape {name}: no such input, want one of {', '.join(known)}")
        shapes[TensorName(name)] = shape
    missing = [spec for spec in state.inputs if spec.name not in arrays]
    return arrays | random_arrays(missing, shapes, np.random.default_rng(options.seed))


def _summary(value: Any) -> object:
    if isinstance(value, list):
        return [_summary(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    array = _in_numpys_own(value)
    flat = array.reshape(-1)[:_SHOWN].tolist()
    if array.dtype.kind == "c":
        flat = [str(number) for number in flat]  # JSON has no complex numbers
    return {"dtype": str(value.dtype), "shape": list(value.shape), "first": flat}


def _in_numpys_own(array: Array) -> Array:
    """The same values in a type that numpy itself has, and without Python objects."""
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.isbuiltin == 1:
        return array
    return array.astype(np.int8 if "int" in array.dtype.name else np.float32)


def _write(path: Path, outputs: Arrays) -> None:
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            raise UsageError(
                f'--output {path}: output "{name}" is a {type(value).__name__}, which .npz files '
                "cannot hold; use --json, or --outputs with others"
            )
    storable = {name: _in_numpys_own(array) for name, array in outputs.items()}
    with written_file(path) as file:
        np.savez(file, **storable)  # type: ignore[arg-type]


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        text = np.array2string(value, threshold=_SHOWN, edgeitems=3, precision=5)
        return f"{value.dtype}{list(value.shape)}\n{text}"
    if not isinstance(value, list):
        return str(value)
    lines = [f"  {_text(item)}" for item in value[:_SHOWN]]
    more = [f"  and {len(value) - _SHOWN} more"] if len(value) > _SHOWN else []
    return "\n".join((f"{count_text(len(value), 'element')}", *lines, *more))


def run(options: argparse.Namespace) -> int:
    """Run a model."""
    if options.repeat < 1:
        raise UsageError(f"--repeat: got {options.repeat}, want at least 1")
    if options.seed < 0:
        raise UsageError(f"--seed: got {options.seed}, want at least 0")
    if not 0 <= options.deadline <= MAX_DEADLINE_S:
        raise UsageError(f"--deadline: got {options.deadline:g}, want 0 to {MAX_DEADLINE_S:g}")
    wanted = None if options.outputs is None else options.outputs.split(",")
    if wanted is not None and not all(wanted):
        raise UsageError(f'--outputs: got "{options.outputs}", want NAME,NAME')
    path = None if options.output is None else check_file("--output", options.output)
    times_s = []
    with client_of(options) as client:
        inputs = _inputs(client, options)
        for _ in range(options.repeat):
            started_s = clock.precise_s()
            outputs = client.infer(options.model, inputs, wanted, deadline_s=options.deadline)
            times_s.append(clock.precise_s() - started_s)
    if path is not None:
        _write(path, outputs)
    median_s = statistics.median(times_s)
    if options.json:
        summary = {name: _summary(array) for name, array in outputs.items()}
        print_json({"outputs": summary, "runs": len(times_s), "median_s": median_s})
        return 0
    for name, value in outputs.items():
        print(f"{name}: {_text(value)}")
    print(f"{count_text(len(times_s), 'run')}, median {median_s * 1e3:.2f} ms", file=sys.stderr)
    return 0
