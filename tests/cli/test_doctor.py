"""`edge-agent doctor`, with and without an agent, in environments that lack or break something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from edge_agent.config import load_settings, settings_key
from tests.cli.test_output import Agent
from tests.engine.made_library import Loading, make_library
from tests.engine.made_packages import make_package, plugin_source
from tests.fake_agent import FakeAgent

ROOT = Path(__file__).resolve().parents[2]
LONG = pytest.mark.long


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the command said."""

    code: int
    out: str
    err: str

    def check(self, what: str) -> dict[str, Any]:
        """The line about `what`, from JSON."""
        (found,) = (c for c in json.loads(self.out)["checks"] if c["what"] == what)
        return found


class Home:
    """A user's folders, and packages that only this user's Python finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "packages"
        self.config = folder / ".config/edge-agent/config.toml"

    def configure(self, text: str) -> None:
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)

    def doctor(self, *arguments: str) -> Told:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("EDGE_AGENT_", "XDG_"))}
        path = os.pathsep.join([str(ROOT), str(self.packages)])
        ended = subprocess.run(
            [sys.executable, "-m", "edge_agent.cli", "doctor", *arguments],
            env=kept | {"HOME": str(self.folder), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Told(code=ended.returncode, out=ended.stdout, err=ended.stderr)


@pytest.fixture
def home() -> Iterator[Home]:
    """In a folder with a short name: a socket's path may not be long."""
    with TemporaryDirectory(prefix="home-") as folder:
        yield Home(Path(folder))


def test_a_healthy_device_is_told_line_by_line(home: Home) -> None:
    told = home.doctor()
    assert told.code == 0
    lines = told.out.splitlines()
    assert lines[-1] == "everything that is needed works"
    for start in ("Python", "ONNX Runtime", "agent", "processor", "cores", "memory"):
        assert any(line.startswith(f"ok       {start} ") for line in lines)
    assert f"none runs at {home.folder}/.local/state/edge-agent/run/agent.sock" in told.out
    assert "config file" in told.out
    assert any(line.startswith("ok       unit cpu ") and "blocked" in line for line in lines)
    assert not home.folder.joinpath(".local").exists()


def test_what_the_agent_found_is_told_when_one_runs(home: Home) -> None:
    with FakeAgent(Agent()) as agent:
        told = home.doctor("--json", "--socket", str(agent.path))
    # The socket of the fake agent does not lie in a folder of its own.
    agent_line = told.check("agent")
    assert agent_line["text"] == f"version 0.1.0, pid 4711, socket {agent.path}"
    assert told.check("unit cpu")["text"] == (
        "CPU, CPUExecutionProvider 1.32.0; 2 cores; at most 1.0 GiB; NCHW, blocked"
    )
    refused = told.check("provider CUDA")
    assert (refused["verdict"], refused["text"], refused["remedy"]) == (
        "refused",
        "no driver",
        "install one",
    )
    assert json.loads(told.out)["device"]["hostname"] == "board"


@pytest.mark.long
def test_what_is_configured_and_does_not_work_is_a_problem(home: Home) -> None:
    library = make_library(home.folder / "broken.so", Loading.ILLEGAL)
    home.configure(
        "[units.mine]\nprovider = 'Mine'\nkind = 'NPU'\n"
        f"library = '{library}'\n[units.webgpu]\noff = true\n"
    )
    told = home.doctor("--json")
    assert told.code == 1
    assert json.loads(told.out)["healthy"] is False
    mine = told.check("unit mine")
    assert (mine["verdict"], mine["text"]) == ("problem", "Mine: its probe was ended by SIGILL")
    assert f"set [units.mine] off in {home.config} to true" in mine["remedy"]
    assert told.check("unit webgpu")["verdict"] == "refused"
    assert told.check("unit cpu")["verdict"] == "ok"
    assert told.check("config file")["text"] == str(home.config)


@pytest.mark.long
def test_a_wrong_config_file_is_a_problem_among_others(home: Home) -> None:
    home.configure("[units.cpu]\noff = true\n")
    told = home.doctor()
    assert told.code == 1
    (line,) = (li for li in told.out.splitlines() if li.startswith("problem"))
    assert f"{home.config}: key units.cpu.off: the processor cannot be switched off" in line
    assert told.out.endswith("\n1 problem\n")


def test_an_agent_that_runs_is_asked_though_the_config_file_is_wrong_by_now(home: Home) -> None:
    home.configure("[units.cpu]\noff = true\n")
    with FakeAgent(Agent()) as agent:
        told = home.doctor("--json", "--socket", str(agent.path))
    assert told.check("agent")["text"] == f"version 0.1.0, pid 4711, socket {agent.path}"
    assert told.check("config file")["verdict"] == "problem"
    assert json.loads(told.out)["device"]["hostname"] == "board"


@pytest.mark.parametrize(
    ("agents", "users", "verdict"),
    [
        pytest.param("", "", "ok", marks=LONG),
        ("[units.webgpu]\noff = true\n", "[units.webgpu]\noff = true\n", "ok"),
        ("", "[units.webgpu]\noff = true\n", "problem"),
        pytest.param(
            "[planning]\nverify_s = 1\n", "[units.webgpu]\noff = true\n", "problem", marks=LONG
        ),
        pytest.param("[planning]\nverify_s = 1\n", "", "ok", marks=LONG),
    ],
)
def test_an_agent_with_other_settings_than_those_of_the_config_file_is_told(
    home: Home, agents: str, users: str, verdict: str
) -> None:
    other = home.folder / "other.toml"
    other.write_text(agents)
    agent = Agent()
    agent.settings_key = settings_key(load_settings({"HOME": "/h"}, config_file=other))
    if users:
        home.configure(users)
    with FakeAgent(agent) as running:
        told = home.doctor("--json", "--socket", str(running.path))
    config = told.check("config file")
    assert config["verdict"] == verdict
    assert ("runs with other settings" in config["text"]) is (agents != users)


@LONG
def test_two_builds_of_the_runtime_are_a_problem(home: Home) -> None:
    make_package(home.packages, "onnxruntime-gpu", "1.26.0")
    told = home.doctor("--json")
    assert told.code == 1
    runtime = told.check("ONNX Runtime")
    assert runtime["verdict"] == "problem"
    assert "onnxruntime-gpu are installed together, but they own the same files" in runtime["text"]
    assert runtime["remedy"].startswith("uninstall all of them")


@LONG
def test_a_state_folder_that_cannot_be_made_is_a_problem(home: Home) -> None:
    (home.folder / "file").touch()
    home.configure(f"state = '{home.folder}/file/state'\n")
    state = home.doctor("--json").check("state folder")
    assert (state["verdict"], state["text"]) == ("problem", f"{home.folder}/file is no folder")


@pytest.mark.long
def test_plugin_packages_are_listed_with_what_they_bring(home: Home) -> None:
    library = make_library(home.folder / "new.so", Loading.RETURNS)
    source = plugin_source(library, "NewExecutionProvider")
    make_package(home.packages, "onnxruntime-new", "3.1", source)
    make_package(home.packages, "onnxruntime-odd", "2.0", "raise OSError('no libodd.so')")
    make_package(home.packages, "onnxruntime-tools", "1.0", "")
    told = home.doctor("--json")
    assert told.code == 0
    assert told.check("package onnxruntime-new")["text"] == "3.1, brings NewExecutionProvider"
    odd = told.check("package onnxruntime-odd")
    assert odd["verdict"] == "refused"
    assert odd["text"] == "onnxruntime-odd 2.0 cannot be asked what it brings: no libodd.so"
    assert "onnxruntime-tools" not in told.out
    unknown = told.check("provider NewExecutionProvider")
    assert unknown["text"] == "edge-agent does not know this provider"


@pytest.mark.parametrize(
    ("does", "probe_s", "text"),
    [
        pytest.param(
            "import os; os.abort()",
            60,
            "asking it what it brings was ended by SIGABRT",
            marks=LONG,
        ),
        pytest.param(
            "import signal; signal.pause()",
            6,  # in which, on a busy machine, ONNX Runtime must have been loaded
            "asking it what it brings did not end within 6 s",
            marks=LONG,
        ),
    ],
)
def test_a_plugin_package_that_breaks_python_is_refused_and_the_processor_works(
    home: Home, does: str, probe_s: int, text: str
) -> None:
    make_package(home.packages, "onnxruntime-odd", "2.0", does)
    home.configure(f"[planning]\nprobe_s = {probe_s}\n")
    told = home.doctor("--json")
    assert told.code == 0
    odd = told.check("package onnxruntime-odd")
    assert (odd["verdict"], odd["text"]) == ("refused", text)
    assert told.check("unit cpu")["verdict"] == "ok"
    assert told.check("provider onnxruntime-odd")["verdict"] == "refused"
