"""The source of modules as trees, each parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(module: Path) -> ast.Module:
    """The syntax tree of a module; it is shared, so nobody changes it."""
    return ast.parse(module.read_text())


@cache
def nodes_of(module: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree."""
    return tuple(ast.walk(tree_of(module)))
