"""The option `--shape` of several commands."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from edge_agent.errors import UsageError
from edge_agent.tensors import Shape

_OPTION: Final = "--shape"
_MORE: Final = re.compile(r"[^-].*=[^=/.]*", re.DOTALL)
"""What follows a shape and is another one; a path ends in no such way."""


def add_shape_option(command: argparse.ArgumentParser, what: str) -> None:
    """Give `command` the option `--shape`, for `parse_shapes`; it takes several shapes too, see
    `spread_shapes`."""
    command.add_argument(
        _OPTION,
        action="append",
        default=[],
        metavar="INPUT=1x3x224x224",
        help=f"{what}; several may follow each other",
    )


def spread_shapes(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with `--shape A=1 B=2` as `--shape A=1 --shape B=2`.

    An option of argparse that takes several would take a MODEL that stands behind it, too.
    """
    rest = iter(arguments)
    is_after_shape = False
    for text in rest:
        if text == "--":
            yield text
            yield from rest
        elif text == _OPTION:
            yield text
            yield from itertools.islice(rest, 1)
            is_after_shape = True
        elif is_after_shape and _MORE.fullmatch(text):
            yield from (_OPTION, text)
        else:
            yield text
            is_after_shape = text.startswith(f"{_OPTION}=")


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
