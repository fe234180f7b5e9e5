"""A real agent as a child process of a test, on folders of its own, and always ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edge_agent import clock
from edge_agent.client import Client

KNOWS_SLICES = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)
"""Whether the kernel takes notice of slices."""
READY_S = 20.0
END_S = 10.0
BUDGETS = "[planning]\nprofile_s = 0.1\nverify_s = 0.1\n"
QUICK_PLANS = f"{BUDGETS}[specialising]\nmost_shapes = 0\n"
"""Nothing is measured for long, and nothing on the agent's own initiative."""


def wait_until(is_so: Callable[[], Any], what: str, timeout_s: float = 20.0) -> Any:
    """The first true value of `is_so`; fails the test when there is none in time."""
    until_s = clock.monotonic_s() + timeout_s
    while not (found := is_so()):
        assert clock.monotonic_s() < until_s, f"not in {timeout_s} s: {what}"
        clock.sleep_s(0.01)
    return found


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; its new parent may take its time to notice."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an agent keeps its things."""

    folder: Path
    state: Path
    socket: Path

    @property
    def log(self) -> Path:
        """What its agents wrote to standard error, all of them."""
        return self.folder / "log"

    @property
    def environment(self) -> dict[str, str]:
        """Without anything that the person who runs the tests has set for edge-agent."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("EDGE_AGENT_", "XDG_"))
        }
        return kept | {"HOME": str(self.folder)}

    def log_text(self) -> str:
        """What its agents wrote so far."""
        return self.log.read_text() if self.log.exists() else ""

    def stored(self) -> list[str]:
        """What lies in the state folder of models, relative to it, but for what was measured:
        that stays for a model that is loaded again."""
        parts = ("models", "staging", "registry", "plans", "pool", "cache/staging")
        always = {"pool/lock", "pool/blobs", "pool/made", "pool/staging"}
        # `os.walk`, unlike `rglob`, does not mind what disappears meanwhile.
        found = [
            Path(folder) / name
            for part in parts
            for folder, folders, files in os.walk(self.state / part)
            for name in (*folders, *files)
        ]
        return sorted({str(path.relative_to(self.state)) for path in found} - always)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, as the one JSON document that it must be."""
        return json.loads(self.out)


def run_command(place: Place, *arguments: str, timeout_s: float = 60.0) -> Outcome:
    """Run `edge-agent` with these arguments and the socket of `place`, and wait for its end."""
    ended = subprocess.run(
        [sys.executable, "-m", "edge_agent.cli", *arguments, "--socket", str(place.socket)],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Outcome(code=ended.returncode, out=ended.stdout, err=ended.stderr)


class RunningAgent:
    """`edge-agent serve`, ready."""

    def __init__(
        self, place: Place, options: tuple[str, ...], config: str, prefix: tuple[str, ...] = ()
    ) -> None:
        """`prefix` is what runs it, as in a network namespace."""
        self.place = place
        config_file = place.folder / "config.toml"
        config_file.write_text(config)
        started_s = clock.monotonic_s()
        with place.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(*prefix, sys.executable, "-m", "edge_agent.cli", "serve", "--json"),
                    *("--socket", str(place.socket), "--state", str(place.state)),
                    *("--config", str(config_file), *options),
                ],
                env=place.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            self.ready = self._read_ready()
        except BaseException:
            self.end()
            raise
        self.ready_s = clock.monotonic_s() - started_s

    def _read_ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_S)
        line = self.process.stdout.readline() if readable else b""
        assert line, f"no ready line in {READY_S} s:\n{self.place.log_text()}"
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def client(self) -> Client:
        """A new client of it."""
        return Client(self.place.socket)

    def command(self, *arguments: str) -> Outcome:
        """See `run_command`."""
        return run_command(self.place, *arguments)

    def children(self, module: str = "edge_agent.") -> list[psutil.Process]:
        """Its living child processes that run a module whose name begins so."""
        found = []
        for child in psutil.Process(self.pid).children(recursive=True):
            try:
                is_one = any(part.startswith(module) for part in child.cmdline())
                if is_one and not has_ended(child):
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Tell it to stop and wait for its end; seconds that it took. It must end with 0."""
        started_s = clock.monotonic_s()
        self.process.send_signal(number)
        code = self.process.wait(END_S)
        took_s = clock.monotonic_s() - started_s
        assert code == 0, f"got exit code {code}:\n{self.place.log_text()}"
        self.end()
        return took_s

    def kill(self) -> None:
        """End it as a power cut would; its children must end by themselves."""
        children = psutil.Process(self.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        _resume(children)
        wait_until(lambda: all(map(has_ended, children)), f"they outlive their agent: {children}")
        self.end()

    def end(self) -> None:
        """End it and everything of it, whatever state it is in. May be called again."""
        children = []
        if self.process.poll() is None:
            children = psutil.Process(self.pid).children(recursive=True)
            _resume(children)
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        wait_until(lambda: all(map(has_ended, children)), f"the end of {children}", END_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            if process.status() == psutil.STATUS_STOPPED:
                process.resume()
        except psutil.NoSuchProcess:
            continue


@contextmanager
def stopped(pid: int) -> Iterator[psutil.Process]:
    """Keep a process from running: what is sent to it stays in flight."""
    process = psutil.Process(pid)
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"process {pid} is stopped")
    try:
        yield process
    finally:
        _resume([process] if process.is_running() else [])


def worker_pid(client: Client, model: str) -> int:
    """The process that serves a model, as soon as there is one that does."""

    def serving() -> int | None:
        state = client.model(model)
        return state.worker_pid if state.state == "serving" else None

    found: int = wait_until(serving, f"{model} is served")
    return found
