"""External data of a model that a user named: what is read, and what is refused."""

import os
from pathlib import Path

import pytest

from edge_agent.errors import ModelRefused
from edge_agent.store.foreign import SourceFolder
from tests.store.swapping import outcomes_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model file with external data in the same folder and below it."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "m.onnx").write_bytes(b"graph")
    (folder / "w.bin").write_bytes(b"weights")
    (folder / "sub" / "w.bin").write_bytes(b"other weights")
    return folder / "m.onnx"


def read(source: Path, location: str, offset_bytes: int = 0, length_bytes: int = 1) -> bytes:
    with SourceFolder(source) as folder:
        return b"".join(folder.chunks(location, offset_bytes, length_bytes))


def refusal(source: Path, location: str) -> str:
    with pytest.raises(ModelRefused) as told:
        read(source, location)
    message = str(told.value)
    prefix = f'{source}: external data "{location}": '
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


def test_parts_of_files_are_read_in_any_order(source: Path) -> None:
    with SourceFolder(source) as folder:
        for location, offset, length, want in (
            ("w.bin", 0, 7, b"weights"),
            ("w.bin", 2, 3, b"igh"),
            ("sub/w.bin", 6, 7, b"weights"),
            ("./sub//w.bin", 0, 5, b"other"),
            ("w.bin", 7, 0, b""),
        ):
            assert b"".join(folder.chunks(location, offset, length)) == want


def test_a_file_that_ends_too_early_is_refused(source: Path) -> None:
    with pytest.raises(ModelRefused, match=r'"w\.bin": cannot be read: got 7 bytes, want 8'):
        read(source, "w.bin", 5, 3)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("/etc/passwd", "is an absolute path, want a path inside the model's folder"),
        ("../w.bin", 'contains "..", want a path inside the model\'s folder'),
        ("sub/../w.bin", 'contains "..", want a path inside the model\'s folder'),
        ("", "names no file, want a path inside the model's folder"),
        ("./.", "names no file, want a path inside the model's folder"),
        ("a\0b", "cannot be read: embedded null byte"),
        ("x" * 300, "cannot be read: File name too long"),
        ("sub", '"sub" is a folder, want a regular file'),
        ("w.bin/x", '"w.bin" is a regular file, want a folder'),
        ("fifo", '"fifo" is a FIFO, want a regular file'),
    ],
)
def test_external_data_that_is_not_a_file_inside_is_refused(
    source: Path, location: str, reason: str
) -> None:
    os.mkfifo(source.parent / "fifo")
    assert refusal(source, location) == reason


@pytest.mark.parametrize("location", ["gone.bin", "sub/gone.bin", "gone/w.bin"])
def test_external_data_that_is_missing_is_told_with_where_and_the_cure(
    source: Path, location: str
) -> None:
    assert refusal(source, location) == (
        f"there is no {location} in {source.parent.resolve()}, beside the model; copy it there, or "
        "export the model again"
    )


def test_external_data_behind_links_of_any_kind_is_refused(source: Path) -> None:
    folder = source.parent
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "linked").symlink_to("sub")
    os.link(folder / "w.bin", folder / "hard.bin")
    copy = "replace it by a copy of what it points to"
    link = "is a symbolic link, want a regular file"
    assert refusal(source, "link.bin") == f'"link.bin" {link}; {copy}'
    assert refusal(source, "dangling") == f'"dangling" {link}; {copy}'
    assert refusal(source, "linked/w.bin") == (
        f'"linked" is a symbolic link, want a folder; {copy}'
    )
    assert refusal(source, "hard.bin") == (
        "has 2 names (hard links), want a regular file with one; replace it by a copy"
    )


def test_a_file_that_becomes_a_fifo_between_look_and_use_is_read_or_refused(source: Path) -> None:
    def attempt() -> str:
        return read(source, "w.bin", 0, 7).decode()

    assert outcomes_of(attempt, source.parent / "w.bin") == {"weights", "refused"}
