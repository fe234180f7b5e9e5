"""Names say what a thing is, and nothing is left half done."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.parsed import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path
    for folder in ("edge_agent", "tools/models", "tools/bench", "tools/lab")
    for path in (ROOT / folder).rglob("*.py")
)
EMPTY_WORDS = re.compile(r"(Manager|Handler|Helper|Info|Data|Utils?)$")
EMPTY_MODULES = {"utils", "util", "helpers", "common", "misc", "base"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplemented(?:Error)?)\b")
LONGEST_FILE = 600


def _classes(module: Path) -> Iterator[ast.ClassDef]:
    return (node for node in nodes_of(module) if isinstance(node, ast.ClassDef))


def test_no_class_has_a_name_that_says_nothing() -> None:
    assert [c.name for m in MODULES for c in _classes(m) if EMPTY_WORDS.search(c.name)] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [m for m in MODULES if m.stem in EMPTY_MODULES] == []


def test_nothing_is_marked_as_unfinished() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for folder in ("edge_agent", "tools", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in ("", ".py", ".sh") and path != Path(__file__)
        for match in UNFINISHED.finditer(path.read_text())
    ]
    assert found == []


def test_every_module_says_what_it_knows() -> None:
    found = {m: ast.get_docstring(tree_of(m)) for m in MODULES if m.stat().st_size > 1}
    assert [m for m, text in found.items() if not text] == []


def test_no_file_is_too_long_to_be_held_in_the_head() -> None:
    lengths = {str(m.relative_to(ROOT)): len(m.read_text().splitlines()) for m in MODULES}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}
