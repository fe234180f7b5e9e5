import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_agent.errors import AlreadyRunning, StorageError
from edge_agent.store.lock import FolderLock

HOLDER = """
import sys
from pathlib import Path
from edge_agent.store.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_process_holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child


def test_a_folder_locked_by_another_process_is_refused_naming_it(tmp_path: Path) -> None:
    with (
        other_process_holding(tmp_path) as child,
        pytest.raises(AlreadyRunning, match=rf"{tmp_path}: .* process id {child.pid}; stop"),
    ):
        FolderLock(tmp_path).acquire()


def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    with other_process_holding(tmp_path) as child:
        child.send_signal(signal.SIGKILL)
    assert (tmp_path / "lock").read_text() == f"{child.pid}\n"
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_released_lock_can_be_taken_again_and_by_others(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()
    with other_process_holding(tmp_path):
        pass
    with lock:
        pass


def test_a_lock_of_the_same_process_counts_too(tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(AlreadyRunning):
        FolderLock(tmp_path).acquire()


def test_a_lock_does_not_pass_to_children(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with (
        lock,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child,
    ):
        lock.release()
        with FolderLock(tmp_path):
            assert child.poll() is None


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="lock: cannot open"):
        FolderLock(tmp_path / "folder").acquire()
    assert (tmp_path / "precious").read_text() == "kept"
