"""The README names only paths, commands and options that exist, and every command and option."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.agent.planners import MOST_WAITING
from edge_agent.cli.main import main
from edge_agent.client import Client

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = frozenset(
    {"serve", "load", "unload", "models", "status", "devices", "replan", "plan", "infer"}
    | {"split", "inspect", "doctor", "invite", "peers"}
    | {"key", "peer"}
)
ACTIONS = (
    *(("key", action) for action in ("show", "rotate")),
    *(("peer", action) for action in ("join", "add", "remove", "rename")),
)
TOP_FOLDERS = ("edge_agent/", "tools/", "tests/", "device_profiles/", ".ci/")
FOREIGN = re.compile(r"^\s*\$?\s*(python3? -m |pip |git |docker |sudo |ssh |pytest)", re.MULTILINE)


def named_paths(text: str) -> set[str]:
    """Paths of this repository that `text` names in code or as link targets."""
    candidates = re.findall(r"[`(\s]((?:\.?[\w-]+/)+[\w.*-]*)", text)
    return {path.rstrip(".") for path in candidates if path.startswith(TOP_FOLDERS)}


def named_options(text: str) -> set[str]:
    """Options such as `--json` in `text`, but for lines that call other programs."""
    own = [line for line in text.splitlines() if not FOREIGN.match(line)]
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", "\n".join(own)))


def _help(*command: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        main([*command, "--help"])
    return said.getvalue()


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def command_help() -> dict[str, str]:
    helps = {command: _help(command) for command in COMMANDS}
    return helps | {" ".join(action): _help(*action) for action in ACTIONS}


def _tool_options() -> set[str]:
    sources = [p for p in (ROOT / "tools").rglob("*") if p.is_file() and p.suffix in ("", ".py")]
    return set().union(*(re.findall(r"--[a-z][a-z0-9-]*", p.read_text()) for p in sources))


def test_paths_and_options_are_found_in_text() -> None:
    text = "See `tools/zoo` and [plans](edge_agent/plans.py).\nRun `edge-agent load m.onnx --wait`."
    assert named_paths(text) == {"tools/zoo", "edge_agent/plans.py"}
    assert named_options(f"{text}\npip install --upgrade x") == {"--wait"}


def test_every_path_that_the_readme_names_exists(readme: str) -> None:
    assert {p for p in named_paths(readme) if not list(ROOT.glob(p.rstrip("/")))} == set()


def test_the_command_line_has_exactly_the_known_commands() -> None:
    program = Path(sys.executable).with_name("edge-agent")
    run = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    assert set(re.findall(r"^    ([a-z]+) ", run.stdout, re.MULTILINE)) == COMMANDS


@pytest.mark.parametrize("command", sorted({command for command, _ in ACTIONS}))
def test_a_command_has_exactly_the_known_actions(command: str) -> None:
    actions = {name for owner, name in ACTIONS if owner == command}
    assert set(re.findall(r"^    ([a-z]+) ", _help(command), re.MULTILINE)) == actions


def test_every_option_that_the_readme_names_exists(
    readme: str, command_help: dict[str, str]
) -> None:
    exist = _tool_options() | named_options("\n".join([_help(), *command_help.values()]))
    assert named_options(readme) - exist == set()


def test_the_readme_names_every_command_and_option(
    readme: str, command_help: dict[str, str]
) -> None:
    assert {c for c in command_help if f"edge-agent {c}" not in readme} == set()
    options = named_options("\n".join(command_help.values())) - {"--help"}
    assert options - named_options(readme) == set()


def _api_table(readme: str) -> dict[str, tuple[ast.Call, str]]:
    """Of the table of the Python API: by method, how it is written there, and its whole row."""
    section = readme.split("## Python\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    found = {}
    for row in rows:
        for written in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
            call = ast.parse(written, mode="eval").body
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Name)
            found[call.func.id] = call, row
    return found


def test_the_readme_tells_of_every_method_of_the_client_as_it_is(readme: str) -> None:
    methods = {
        name: method
        for name, method in inspect.getmembers(Client, inspect.isfunction)
        if not name.startswith("_")
    } | {"Client": Client.__init__}
    table = _api_table(readme)
    assert set(table) == set(methods)
    for name, method in methods.items():
        call, row = table[name]
        exist = dict(inspect.signature(method).parameters)
        del exist["self"]
        given = [arg.id for arg in call.args if isinstance(arg, ast.Name)]
        required = [p.name for p in exist.values() if p.default is inspect.Parameter.empty]
        assert given == required, name
        for keyword in call.keywords:
            assert keyword.arg is not None
            parameter = exist[keyword.arg]
            assert ast.literal_eval(keyword.value) == parameter.default, (name, keyword.arg)
        written = {*given, *(keyword.arg for keyword in call.keywords)}
        told = written | {p for p in exist if f"`{p}=`" in row}
        assert set(exist) - told == set(), name


def test_the_readme_says_which_commands_end_with_sigterm_as_with_ctrl_c(readme: str) -> None:
    modules = {
        path.stem
        for path in (ROOT / "edge_agent" / "cli").glob("*.py")
        if "with ending_on_sigterm()" in path.read_text()
    }
    assert modules == {"plan_flow", "split", "inspect"}
    (row,) = re.findall(r"^\| 130 .*", readme, re.MULTILINE)
    assert "`plan --devices`, `split` and `inspect` with SIGTERM" in row


def test_the_readme_says_how_many_requests_may_wait_for_the_planner(readme: str) -> None:
    assert f"{MOST_WAITING} requests to the planner wait already" in readme
    assert f"as many wait for that as may: {MOST_WAITING}" in (Client.distributions.__doc__ or "")
