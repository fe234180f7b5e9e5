"""Temporary files of a builder lie where they are swept, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edge_agent.builder.__main__ import temporary_in_staging
from edge_agent.config import Settings, encode_settings
from edge_agent.store.pool import POOL_FOLDER, Pool

KILLED = """
import os, sys, tempfile
from edge_agent.builder.__main__ import temporary_in_staging
from edge_agent.config import decode_settings
with temporary_in_staging(decode_settings(sys.argv[1])), tempfile.TemporaryDirectory() as folder:
    open(os.path.join(folder, "a"), "w").close()
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(socket=tmp_path / "s", state=tmp_path / "state", cache=tmp_path / "cache")


def test_temporary_files_lie_in_a_workspace_and_go_with_it(settings: Settings) -> None:
    before = tempfile.gettempdir()
    with temporary_in_staging(settings):
        inside = Path(tempfile.mkdtemp())
        assert (settings.state / POOL_FOLDER) in inside.parents
    assert not inside.exists()
    assert tempfile.gettempdir() == before


def test_those_of_a_builder_that_was_killed_are_swept(settings: Settings) -> None:
    command = [sys.executable, "-c", KILLED, encode_settings(settings)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.strip())
    assert (left / "a").exists()
    Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes).sweep()
    assert not left.parent.exists()


def test_without_room_for_them_they_lie_where_the_system_has_them(settings: Settings) -> None:
    settings.state.touch()
    before = tempfile.gettempdir()
    with temporary_in_staging(settings):
        assert tempfile.gettempdir() == before
