import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.errors import StorageError
from edge_agent.store.folder import (
    StagingFolder,
    make_folder,
    move_folder,
    remove_tree,
    require_free_bytes,
    set_aside,
    storage_errors,
    sweep_staging,
    sweep_temporaries,
    write_file,
)
from edge_agent.store.models import ModelStore, Staged
from tests.store.conftest import DISK_BYTES


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def test_a_written_file_replaces_the_old_one_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_file(path, b"old")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert files_below(tmp_path) == ["x.json"]


def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one(small_disk: Path) -> None:
    path = small_disk / "x.json"
    write_file(path, b"old")
    with pytest.raises(StorageError, match=r"x\.json: cannot write: No space left .* free some"):
        write_file(path, bytes(2 * DISK_BYTES))
    assert path.read_bytes() == b"old"
    assert files_below(small_disk) == ["x.json"]


def test_a_model_that_does_not_fit_is_told_before_it_is_copied(
    small_disk: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(bytes(2 * DISK_BYTES))
    store = ModelStore(small_disk)
    with pytest.raises(StorageError, match=f"bytes free, want {2 * DISK_BYTES}; free some space"):
        store.stage(model, max_bytes=1 << 30)
    assert files_below(small_disk) == []


def test_a_disk_that_fills_up_during_the_copy_is_left_without_parts(small_disk: Path) -> None:
    staged = Staged(source=Path("m"), models=small_disk, staging=small_disk / "staging")
    # A pipe tells no size, so that the check beforehand passes.
    growing = ["head", "-c", str(2 * DISK_BYTES), "/dev/zero"]
    with staged, subprocess.Popen(growing, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        with pytest.raises(StorageError, match=r"model\.onnx: cannot write: No space left"):
            staged.copy_model(child.stdout.fileno(), 1 << 30)
    assert files_below(small_disk) == []


def test_a_full_disk_can_still_be_freed(small_disk: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(bytes(64 << 10))
    store = ModelStore(small_disk)
    with store.stage(model, 1 << 30) as staged:
        model_id, _ = staged.commit()
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(bytes(DISK_BYTES))
    store.remove(model_id)
    assert store.ids() == ()
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize >= 64 << 10


def test_a_read_only_disk_is_named_with_its_cure(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StorageError, match=r"disk/a: cannot create .*read-only.*--state"):
        make_folder(small_disk / "a")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_every_failure_of_the_disk_names_path_reason_and_cure(code: int) -> None:
    with pytest.raises(StorageError) as told, storage_errors(Path("/s/x"), "write"):
        raise OSError(code, os.strerror(code))
    assert str(told.value).startswith(f"/s/x: cannot write: {os.strerror(code)}; ")
    assert str(told.value).endswith("choose another folder with --state")


def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot create the folder: Not a directory; move"):
        make_folder(tmp_path / "a" / "b")


def test_new_folders_are_for_this_user_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert [p.stat().st_mode & 0o777 for p in (tmp_path / "a", tmp_path / "a" / "b")] == [
        0o700,
        0o700,
    ]


def test_too_little_free_space_is_refused_with_both_sizes(tmp_path: Path) -> None:
    require_free_bytes(tmp_path, 1)
    with pytest.raises(StorageError, match=rf"bytes free, want {1 << 60}"):
        require_free_bytes(tmp_path, 1 << 60)


def test_damaged_files_are_numbered(tmp_path: Path) -> None:
    names = []
    for content in (b"a", b"b"):
        (tmp_path / "x.json").write_bytes(content)
        names.append(set_aside(tmp_path / "x.json").name)
    assert names == ["x.json.damaged-1", "x.json.damaged-2"]
    assert (tmp_path / "x.json.damaged-2").read_bytes() == b"b"


def test_a_folder_is_not_moved_over_one_that_is_there(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    assert not move_folder(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "x").read_text() == "b"
    assert move_folder(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c" / "x").read_text() == "a"


def test_removing_a_folder_that_is_gone_does_nothing(tmp_path: Path) -> None:
    remove_tree(tmp_path / "gone", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_not_swept_and_one_that_was_left_is(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    with StagingFolder(tmp_path) as staging:
        assert sweep_staging(tmp_path) == (tmp_path / "left",)
        assert list(tmp_path.iterdir()) == [staging.path]
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_removes_links_in_leftovers_and_not_what_they_point_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "x").write_bytes(b"x")
    staging = tmp_path / "staging"
    (staging / "left").mkdir(parents=True)
    (staging / "left" / "link").symlink_to(tmp_path / "kept")
    (staging / "link").symlink_to(tmp_path / "kept")
    sweep_staging(staging)
    assert not (staging / "left").exists()
    assert (tmp_path / "kept" / "x").read_bytes() == b"x"


def test_the_temporary_file_of_a_killed_writer_is_swept_and_no_sooner(tmp_path: Path) -> None:
    writer = """
import os, sys
from pathlib import Path
from edge_agent.store import folder
def stop(*_):
    print("writing", flush=True)
    sys.stdin.read()
folder.write_all = stop
folder.write_file(Path(sys.argv[1]) / "x.json", b"new")
"""
    write_file(tmp_path / "x.json", b"old")
    with subprocess.Popen(
        [sys.executable, "-c", writer, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        assert sweep_temporaries(tmp_path) == ()
        child.send_signal(signal.SIGKILL)
    assert len(files_below(tmp_path)) == 2
    assert len(sweep_temporaries(tmp_path)) == 1
    assert files_below(tmp_path) == ["x.json"]
    assert (tmp_path / "x.json").read_bytes() == b"old"
