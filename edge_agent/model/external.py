"""Where tensors kept outside of the model file lie, and which such places are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import onnx

from edge_agent.errors import ModelRefused
from edge_agent.model.values import tensor_bytes

_KEYS = frozenset({"location", "offset", "length", "checksum"})
_MAX_DIGITS = 19
"""Below 2**63, which is what files and runtimes count with."""
_CHUNK_BYTES = 4 << 20
_DRIVE = re.compile(r"[A-Za-z]:")
_PIECE_BYTES = 1 << 20
"""Copied at once: larger pieces took up to twice as long on ext4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalPlace:
    """The bytes of one tensor: [offset_bytes, offset_bytes + length_bytes) of a file."""

    location: str
    """Relative to the folder of the model file, `/` between the parts."""
    offset_bytes: int
    length_bytes: int


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the values of `tensor` lie in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def external_place(tensor: onnx.TensorProto, file_name: str) -> ExternalPlace:
    """Where the values of an external `tensor` lie; `file_name` is for the message.

    Raises:
        ModelRefused: the place is not a relative path below the model's folder, or offset or
            length are not the numbers that the shape asks for.
    """
    where = f'{file_name}: tensor "{tensor.name}"'
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            raise ModelRefused(
                f'{where}: external data key "{entry.key}" is given twice; export the model again'
            )
        if entry.key not in _KEYS:
            raise ModelRefused(
                f'{where}: got external data key "{entry.key}", want one of '
                f"{', '.join(sorted(_KEYS))}; export the model again"
            )
        entries[entry.key] = entry.value
    want_bytes = tensor_bytes(tensor)
    length_bytes = _number(entries, "length", want_bytes, where)
    if length_bytes != want_bytes:
        raise ModelRefused(
            f"{where}: got external data of {length_bytes} bytes, want {want_bytes} bytes for "
            f"shape {list(tensor.dims)}; export the model again"
        )
    return ExternalPlace(
        location=_contained(entries.get("location", ""), where),
        offset_bytes=_number(entries, "offset", 0, where),
        length_bytes=length_bytes,
    )


def _number(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS):
        raise ModelRefused(
            f'{where}: got external data {key} "{text[:40]}", want a whole number of bytes, '
            "0 or more; export the model again"
        )
    return int(text)


def _contained(location: str, where: str) -> str:
    path = PurePosixPath(location)
    parts = location.split("/")
    # ONNX Runtime reads "*/_ORT_MEM_ADDR_/*" as: the offset is an address in its own memory.
    if (
        not location
        or "\0" in location
        or "\\" in location
        or "*" in location
        or _DRIVE.match(location)
        or path.is_absolute()
        or ".." in parts
        or "" in parts
        or not path.parts
    ):
        raise ModelRefused(
            f"{where}: got external data location {location[:120]!r}, want a relative path below "
            "the folder of the model; export the model again with its data beside it"
        )
    return str(path)


def read_external(tensor: onnx.TensorProto, folder: Path, file_name: str) -> bytes:
    """The bytes of an external tensor.

    Raises:
        ModelRefused: the place is refused, or the file is missing or too short.
    """
    place = external_place(tensor, file_name)
    try:
        with open(folder / place.location, "rb") as file:
            file.seek(place.offset_bytes)
            found = file.read(place.length_bytes)
    except OSError as error:
        raise ModelRefused(missing(tensor, place, file_name, error.strerror or "")) from error
    if len(found) != place.length_bytes:
        raise ModelRefused(too_short(tensor, place, file_name, place.offset_bytes + len(found)))
    return found


def copy_external(tensor: onnx.TensorProto, folder: Path, file_name: str, into: BinaryIO) -> None:
    """Append the bytes of an external tensor to the file `into`; they are never all in memory.

    Raises:
        ModelRefused: as `read_external`.
        OSError: `into` cannot be written.
    """
    place = external_place(tensor, file_name)
    try:
        source_fd = os.open(folder / place.location, os.O_RDONLY)
    except OSError as error:
        raise ModelRefused(missing(tensor, place, file_name, error.strerror or "")) from error
    try:
        into.flush()
        at, stop = place.offset_bytes, place.offset_bytes + place.length_bytes
        while copied_bytes := _copy_in_kernel(source_fd, into, at, min(_PIECE_BYTES, stop - at)):
            at += copied_bytes
        # What is left where the kernel cannot copy between the two files.
        while at < stop:
            try:
                piece = os.pread(source_fd, min(_PIECE_BYTES, stop - at), at)
            except OSError as error:
                reason = error.strerror or ""
                raise ModelRefused(missing(tensor, place, file_name, reason)) from error
            if not piece:
                found_bytes = os.fstat(source_fd).st_size
                raise ModelRefused(too_short(tensor, place, file_name, found_bytes))
            into.write(piece)
            at += len(piece)
    finally:
        os.close(source_fd)


def _copy_in_kernel(source_fd: int, into: BinaryIO, at: int, count: int) -> int:
    """Bytes copied; 0 where the kernel cannot."""
    try:
        return os.copy_file_range(source_fd, into.fileno(), count, offset_src=at)
    except OSError:
        return 0


class StoredChunks:
    """The bytes at a place below a folder of ours, in pieces that are valid until the next one;
    they can be gone through more than once.

    Going through them raises: ModelRefused if the file is missing or too short.
    """

    def __init__(self, place: ExternalPlace, folder: Path) -> None:
        self.place = place
        self._folder = folder

    def __iter__(self) -> Iterator[memoryview]:
        place = self.place
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, place.length_bytes)))
        stop_bytes = place.offset_bytes + place.length_bytes
        reached_bytes = place.offset_bytes
        try:
            with open(self._folder / place.location, "rb", buffering=0) as file:
                file.seek(place.offset_bytes)
                while reached_bytes < stop_bytes:
                    count = file.readinto(buffer[: stop_bytes - reached_bytes]) or 0
                    if not count:
                        raise ModelRefused(
                            f"{place.location}: got {reached_bytes} bytes, want {stop_bytes} or "
                            "more; copy the file again"
                        )
                    reached_bytes += count
                    yield buffer[:count]
        except OSError as error:
            raise ModelRefused(f"{place.location}: cannot be read: {error.strerror}") from error


def missing(tensor: onnx.TensorProto, place: ExternalPlace, file_name: str, reason: str) -> str:
    """The message for a data file that cannot be opened."""
    return (
        f'{file_name}: tensor "{tensor.name}": external data file "{place.location}" cannot be '
        f"read ({reason}); put it beside the model"
    )


def too_short(tensor: onnx.TensorProto, place: ExternalPlace, file_name: str, got: int) -> str:
    """The message for a data file that ends before the tensor does."""
    return (
        f'{file_name}: tensor "{tensor.name}": external data file "{place.location}" has '
        f"{got} bytes, want {place.offset_bytes + place.length_bytes} or more; copy the file again"
    )


def size_of(folder: Path, location: str) -> int | None:
    """Bytes of a data file; None if there is no such regular file."""
    try:
        status = os.stat(folder / location)
    except OSError:
        return None
    return status.st_size if os.path.isfile(folder / location) else None
