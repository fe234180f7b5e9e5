"""The option `--shape` of several commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from edge_agent.errors import UsageError
from edge_agent.tensors import Shape


def add_shape_option(command: argparse.ArgumentParser, what: str) -> None:
    """Give `command` the option `--shape`, for `parse_shapes`."""
    command.add_argument(
        "--shape", action="append", default=[], metavar="INPUT=1x3x224x224", help=what
    )


def parse_shapes(texts: Sequence[str]) -> dict[str, Shape]:
    """`INPUT=1x3x224x224` options as shapes by input; `INPUT=` is a scalar.

    Raises:
        UsageError: it is written differently, or an input has two.
    """
    shapes: dict[str, Shape] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        try:
            shape = tuple(int(size) for size in sizes.split("x")) if sizes else ()
        except ValueError:
            shape = (-1,)
        if not equals or not name or any(size < 0 for size in shape):
            raise UsageError(f"--shape {text}: want INPUT=SIZExSIZE…, e.g. images=1x3x224x224")
        if name in shapes:
            raise UsageError(f"--shape {text}: {name} has a shape already; leave one out")
        shapes[name] = shape
    return shapes
