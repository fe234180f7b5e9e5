import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.errors import StorageError
from edge_agent.store.sealed import read_or_set_aside, read_sealed, write_sealed


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in (b"", b'{"a":1}', bytes(range(256))):
        write_sealed(path, content)
        assert read_sealed(path) == content


def test_no_file_reads_as_none(tmp_path: Path) -> None:
    assert read_sealed(tmp_path / "x.json") is None
    assert read_or_set_aside(tmp_path / "x.json", "nothing is lost") is None


def test_a_sealed_json_file_is_two_lines_of_json(tmp_path: Path) -> None:
    write_sealed(tmp_path / "x.json", b'{"a":1}')
    seal, content = map(json.loads, (tmp_path / "x.json").read_text().split("\n"))
    assert seal["bytes"] == 7
    assert content == {"a": 1}


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_sealed(path, b"content")
    stored = path.read_bytes()
    for bit in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match=r"x\.json: "):
            read_sealed(path)


def test_a_file_cut_short_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_sealed(path, b"content")
    stored = path.read_bytes()
    for length in range(len(stored)):
        path.write_bytes(stored[:length])
        with pytest.raises(StorageError, match="is damaged"):
            read_sealed(path)


@settings(database=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_never_content(
    tmp_path_factory: pytest.TempPathFactory, stored: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(stored)
    with pytest.raises(StorageError):
        read_sealed(path)


def test_a_newer_form_is_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_sealed(path, b"content")
    path.write_bytes(path.read_bytes().replace(b'"sealed":1', b'"sealed":2'))
    with pytest.raises(StorageError, match="got form 2, want 1: written by another version"):
        read_sealed(path)


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read: Is a directory"):
        read_sealed(tmp_path)


def test_a_damaged_file_is_set_aside_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"damaged")
    assert read_or_set_aside(path, "it will be made again") is None
    assert (tmp_path / "x.json.damaged-1").read_bytes() == b"damaged"
    assert not path.exists()
    assert "kept as x.json.damaged-1; it will be made again" in caplog.text


def test_a_write_is_whole_for_readers_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    contents = [bytes([n]) * 50_000 for n in range(20)]
    write_sealed(path, contents[0])
    # A second name keeps the old content readable: the file is replaced, never rewritten.
    os.link(path, tmp_path / "before")
    for content in contents[1:]:
        write_sealed(path, content)
    assert read_sealed(tmp_path / "before") == contents[0]
    assert read_sealed(path) == contents[-1]
