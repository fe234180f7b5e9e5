"""The import contracts hold, statically and in running processes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.parsed import nodes_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "edge_agent").rglob("*.py"))
TOUCHES_THE_ENVIRONMENT = ("config.py", "client.py", "cli/", "engine/", "agent/processes.py")
"""config.py is given the environment by what a user starts, children get a cleaned copy, and
changes that must come before onnxruntime is imported are in engine/."""


def test_every_import_contract_of_pyproject_holds() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [lint, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "import edge_agent; edge_agent.Client",
        "import edge_agent.cli.main",
        "import edge_agent.agent.daemon",
        "import edge_agent.planning.partition",
    ],
)
def test_the_light_parts_load_neither_onnx_nor_the_runtime(statement: str) -> None:
    assert _loaded(statement, {"onnx", "onnxruntime"}) == ""


def test_the_client_loads_what_planning_needs_only_when_it_asks_for_a_plan() -> None:
    names = ("problems", "distributions", "summaries", "wire.routes", "wire.planning", "planning")
    found = _loaded("import edge_agent; edge_agent.Client", {f"edge_agent.{n}" for n in names})
    assert found == ""


def _loaded(statement: str, modules: set[str]) -> str:
    """Those of the modules that a statement imports."""
    ask = f"{statement}; import sys; print(*sorted({modules!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_importing_every_module_starts_no_thread_and_prints_nothing() -> None:
    names = [".".join(m.relative_to(ROOT).with_suffix("").parts) for m in MODULES]
    names = [n.removesuffix(".__init__") for n in names if not n.endswith("__main__")]
    ask = (
        "import importlib, sys, threading\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", ask, *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_only_the_engine_imports_by_name() -> None:
    found = {
        f"{_relative(module)}:{node.lineno}"
        for module in MODULES
        if not _relative(module).startswith("engine/")
        for node in nodes_of(module)
        if (isinstance(node, ast.Attribute) and node.attr == "import_module")
        or (isinstance(node, ast.Name) and node.id == "__import__")
    }
    assert found == set()


def _relative(module: Path) -> str:
    return str(module.relative_to(ROOT / "edge_agent"))


def test_only_a_few_places_touch_the_environment() -> None:
    found = {
        f"{_relative(module)}:{node.lineno}"
        for module in MODULES
        if not _relative(module).startswith(TOUCHES_THE_ENVIRONMENT)
        for node in nodes_of(module)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv")
    }
    assert found == set()


def test_nothing_loads_libraries_of_operators() -> None:
    """Such a library is native code, and a model that needs one is refused."""
    found = [
        path.name
        for path in (ROOT / "edge_agent").rglob("*.py")
        if re.search(r"register_custom_ops|custom_op_library|\bCDLL\((?!None)", path.read_text())
    ]
    assert found == []
