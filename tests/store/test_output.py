"""What a user asked for is there whole or not at all, and replaces only what is ours."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.errors import StorageError, UsageError
from edge_agent.store.output import check_target, digest, stamp, write_whole, written_folder


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
