"""What a user asked for is there whole or not at all, and replaces only what is ours."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edge_agent.errors import StorageError, UsageError
from edge_agent.store.output import (
    check_file,
    check_target,
    digest,
    is_passed_on,
    stamp,
    write_whole,
    written_file,
    written_folder,
)
from tests.devices_made import device


def fill(target: Path, text: str = "{}", *, is_replaced: bool = False) -> None:
    with written_folder(target, is_replaced=is_replaced) as folder:
        (folder / "manifest.json").write_text(text)
        (folder / "part-1.onnx").write_text("part")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_gets_its_name_when_all_is_written(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with written_folder(target, is_replaced=True) as folder:
        assert not target.exists()
        (folder / "manifest.json").write_text("{}")
    assert names(tmp_path) == ["out"]
    assert names(target) == ["manifest.json"]
    assert target.stat().st_mode & 0o777 == 0o777 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def fail() -> None:
        with written_folder(target, is_replaced=True) as folder:
            (folder / "part-1.onnx").write_text("half")
            raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        fail()
    assert names(tmp_path) == []


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    fill(target)
    (target / "part-2.onnx").write_text("old")
    fill(target, "new", is_replaced=True)
    assert names(tmp_path) == ["out"]
    assert names(target) == ["manifest.json", "part-1.onnx"]
    assert (target / "manifest.json").read_text() == "new"


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "out"
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from edge_agent.store.output import written_folder\n"
        "with written_folder(Path(sys.argv[1]), is_replaced=False) as folder:\n"
        "    (folder / 'part-1.onnx').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    with written_folder(target, is_replaced=True) as folder:
        # One that is being written by a process that lives stays.
        fill(target)
        assert folder.exists()
        assert len(names(tmp_path)) == 2
    assert names(tmp_path) == ["out"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written: Not a directory"):
        fill(tmp_path / "file" / "out")


def test_a_new_name_in_a_folder_that_exists_is_fine(tmp_path: Path) -> None:
    check_target(tmp_path / "out", tmp_path / "m.onnx", is_replaced=False)


def test_a_missing_parent_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*gone; make it first"):
        check_target(tmp_path / "gone" / "out", tmp_path / "m.onnx", is_replaced=True)


def test_only_what_split_wrote_may_be_replaced_and_only_with_force(tmp_path: Path) -> None:
    target, source = tmp_path / "out", tmp_path / "m.onnx"
    fill(target)
    with pytest.raises(UsageError, match=r"exists already.*--force"):
        check_target(target, source, is_replaced=False)
    check_target(target, source, is_replaced=True)
    (target / "thesis.doc").write_text("")
    with pytest.raises(UsageError, match=r'it has "thesis.doc" in it; remove it yourself'):
        check_target(target, source, is_replaced=True)


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    check_target(target, tmp_path / "m.onnx", is_replaced=False)
    fill(target)
    assert names(target) == ["manifest.json", "part-1.onnx"]


def test_what_came_to_be_there_meanwhile_is_not_replaced_unasked(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def write() -> None:
        with written_folder(target, is_replaced=False) as folder:
            (folder / "manifest.json").write_text("late")
            fill(target, "first")

    with pytest.raises(UsageError, match="exists already"):
        write()
    assert (target / "manifest.json").read_text() == "first"
    assert names(tmp_path) == ["out"]


def test_a_file_and_a_link_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fill(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, says in {
        "file": "is no folder",
        "link": "is no folder",
        "dangling": "is no folder",
    }.items():
        with pytest.raises(UsageError, match=says):
            check_target(tmp_path / name, tmp_path / "m.onnx", is_replaced=True)


def test_the_folder_of_the_model_itself_is_not_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "out")
    with pytest.raises(UsageError, match="the model lies in it"):
        check_target(tmp_path / "out", tmp_path / "out" / "part-1.onnx", is_replaced=True)


def test_a_file_is_hashed_and_changes_show(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    found = digest(path, "called")
    assert (found.file, found.bytes) == ("called", 3)
    assert found.sha256 == hashlib.sha256(b"abc").hexdigest()
    before = stamp(path)
    assert stamp(path) == before
    path.write_bytes(b"abcd")
    assert stamp(path) != before
    with pytest.raises(StorageError, match="No such file"):
        digest(tmp_path / "gone", "gone")


def test_a_file_is_written_in_place_of_the_one_before(tmp_path: Path) -> None:
    target = tmp_path / "front.svg"
    write_whole(target, "first")
    write_whole(target, "second")
    assert (target.read_text(), names(tmp_path)) == ("second", ["front.svg"])


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "front.svg").mkdir()
    with pytest.raises(StorageError, match=r"front\.svg: cannot be written: .*; name another file"):
        write_whole(tmp_path / "front.svg", "text")
    assert names(tmp_path) == ["front.svg"]


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real = tmp_path / "there" / "real.svg"
    (tmp_path / "first").symlink_to("there/real.svg")
    (tmp_path / "second").symlink_to(tmp_path / "first")
    for text in ("new", "newer"):  # a link that leads nowhere makes its file
        write_whole(tmp_path / "second", text)
        assert (real.read_text(), real.is_symlink()) == (text, False)
    assert (tmp_path / "second").is_symlink()
    assert (tmp_path / "first").readlink() == Path("there/real.svg")
    assert names(tmp_path / "there") == ["real.svg"]


def test_a_file_that_is_replaced_keeps_who_may_read_it(tmp_path: Path) -> None:
    target = tmp_path / "front.svg"
    target.write_text("old")
    target.chmod(0o600)
    write_whole(target, "new")
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o600)


def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "front.svg"
    target.write_text("old")

    def fail() -> None:
        with written_file(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (target.read_text(), names(tmp_path)) == ("old", ["front.svg"])


def test_a_fifo_gets_all_of_it_and_stays(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to("fifo")
    for path in (fifo, tmp_path / "link"):
        got: list[str] = []
        reader = threading.Thread(target=lambda got=got: got.append(fifo.read_text()))
        reader.start()
        write_whole(path, "x" * 100_000)
        reader.join()
        assert got == ["x" * 100_000]
        assert (fifo.is_fifo(), is_passed_on(path)) == (True, True)
    assert names(tmp_path) == ["fifo", "link"]


def test_a_device_is_written_to_and_a_full_one_is_told(tmp_path: Path) -> None:
    null, full = device(tmp_path / "null", 3), device(tmp_path / "full", 7)
    write_whole(null, "text")
    with pytest.raises(
        StorageError, match=r"full: cannot be written: No space left .*; free some space, or name"
    ):
        write_whole(full, "text")
    assert null.is_char_device()
    assert full.is_char_device()
    assert names(tmp_path) == ["full", "null"]


def test_an_open_descriptor_is_written_on_from_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    script = (
        "import sys; from pathlib import Path\n"
        "from edge_agent.store.output import write_whole\n"
        "print('before', flush=True)\n"
        "write_whole(Path(sys.argv[1]), 'drawing\\n')\n"
        "print('after', flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "stdout")]
    with (tmp_path / "out").open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "before\ndrawing\nafter\n"
    piped = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert piped.stdout == b"before\ndrawing\nafter\n"
    assert names(tmp_path) == ["out", "stdout"]
    assert is_passed_on(tmp_path / "stdout")
    assert not is_passed_on(tmp_path / "out")


def test_a_socket_is_not_written(tmp_path: Path) -> None:
    where = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(where))
        with pytest.raises(UsageError, match=r"--svg .*socket: is a socket, want a file"):
            check_file("--svg", str(where))
        with pytest.raises(StorageError, match="cannot be written"):
            write_whole(where, "text")
        assert where.is_socket()


def test_what_cannot_become_a_file_is_refused_before(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "lost").symlink_to("gone/x.svg")
    (tmp_path / "plain").write_text("")
    for name, says in {
        ".": "names a folder, want a file",
        "new/": "names a folder, want a file",
        "gone/x.svg": "there is no such folder; make it first",
        "plain/x.svg": "there is no such folder; make it first",
        "lost": "there is no such folder; make it first",
        "round": "cannot be written: Too many levels of symbolic links; name another file",
    }.items():
        with pytest.raises(UsageError, match=rf"^--svg .*: {says}"):
            check_file("--svg", f"{tmp_path}/{name}")
    assert check_file("--svg", f"{tmp_path}/x.svg") == tmp_path / "x.svg"
    assert (tmp_path / "round").is_symlink()
