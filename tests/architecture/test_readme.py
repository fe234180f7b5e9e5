"""The README names only paths, commands and options that exist, and every command and option."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = frozenset(
    {"serve", "load", "unload", "models", "status", "devices", "replan", "plan", "infer"}
    | {"split", "inspect", "doctor"}
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
    program = Path(sys.executable).with_name("edge-agent")
    run = subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True)
    return run.stdout


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def command_help() -> dict[str, str]:
    return {command: _help(command) for command in COMMANDS}


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
    assert set(re.findall(r"^    ([a-z]+) ", _help(), re.MULTILINE)) == COMMANDS


def test_every_option_that_the_readme_names_exists(
    readme: str, command_help: dict[str, str]
) -> None:
    exist = _tool_options() | named_options("\n".join([_help(), *command_help.values()]))
    assert named_options(readme) - exist == set()


def test_the_readme_names_every_command_and_option(
    readme: str, command_help: dict[str, str]
) -> None:
    assert {c for c in COMMANDS if f"edge-agent {c}" not in readme} == set()
    options = named_options("\n".join(command_help.values())) - {"--help"}
    assert options - named_options(readme) == set()
