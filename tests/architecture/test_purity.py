"""Planning and simulation do nothing that import contracts cannot see: they open no file, ask and
tell nobody, and draw no random numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.parsed import tree_of

ROOT = Path(__file__).resolve().parents[2] / "edge_agent"
PURE = sorted(m for part in ("planning", "simulation") for m in (ROOT / part).rglob("*.py"))
BUILT_IN = {"open", "input", "print", "breakpoint", "exec", "eval", "__import__"}
OF_NUMPY = {
    *("random", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "DataSource"),
    *("save", "savez", "savez_compressed", "savetxt", "tofile", "dump"),
}


def impure(tree: ast.AST) -> Iterator[str]:
    """What of it has an effect or chance in it, by line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in BUILT_IN:
                yield f"{node.lineno}: {name}"
            case ast.Attribute(attr=name) if name in OF_NUMPY:
                yield f"{node.lineno}: .{name}"
            case ast.Import(names=found):
                of_numpy = (one.name for one in found if one.name.startswith("numpy."))
                yield from (
                    f"{node.lineno}: {name}" for name in of_numpy if OF_NUMPY & {*name.split(".")}
                )
            case ast.ImportFrom(module=str(module), names=found) if module.startswith("numpy"):
                names = {*module.split("."), *(one.name for one in found)}
                yield from (f"{node.lineno}: {name}" for name in sorted(names & OF_NUMPY))


def test_planning_and_simulation_read_and_write_nothing_and_leave_nothing_to_chance() -> None:
    found = [
        f"{module.relative_to(ROOT)}:{text}" for module in PURE for text in impure(tree_of(module))
    ]
    assert PURE
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "say = print",
        "np.random.default_rng(0)",
        "numpy.random.random()",
        "import numpy.random as r",
        "from numpy.random import default_rng",
        "from numpy import random",
        "np.load('x')",
        "a.tofile('x')",
    ],
)
def test_what_is_impure_is_seen(text: str) -> None:
    assert list(impure(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    ["self._open(1)", "import numpy as np", "np.array(loads)", "import numpy.typing as npt"],
)
def test_what_is_pure_is_not(text: str) -> None:
    assert not list(impure(ast.parse(text)))
