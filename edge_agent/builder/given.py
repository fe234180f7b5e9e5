"""Real inputs that a user gives with a model: how they are read and checked, and which of them fit
the shapes in use."""

from __future__ import annotations

import logging
import math
import os
import re
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from edge_agent.config import Limits
from edge_agent.engine.cancel import cancelled_after
from edge_agent.engine.memory import bounded_memory, enough_for
from edge_agent.engine.session import Session
from edge_agent.errors import (
    EdgeAgentError,
    InputMismatch,
    ModelRefused,
    StorageError,
    UsageError,
)
from edge_agent.samples import complete_shapes
from edge_agent.store.samples import SampleStore
from edge_agent.subgraphs import SampleSetId
from edge_agent.tensors import (
    Array,
    Arrays,
    ElementType,
    Shape,
    TensorName,
    TensorSpec,
    element_type_of,
    required,
    size_bytes,
)
from edge_agent.wire.packed import pack_sample, unpack_sample

log = logging.getLogger(__name__)

MAX_SAMPLES = 64
_BESIDE_BYTES = 1 << 20
"""Room in a file for what describes its arrays."""
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that numpy writes; of others, zipfile would unpack any amount at once."""
_TEST_SET = re.compile(r"test_data_set_(\d+)")
_TEST_INPUT = re.compile(r"input_(\d+)\.pb")
_UNREADABLE = (
    *(OSError, EOFError, ValueError, RuntimeError, TypeError, struct.error, zlib.error),
    *(zipfile.BadZipFile, tokenize.TokenError),
)
"""What zipfile and numpy raise over damaged files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSample:
    """One set of real inputs."""

    name: str
    """Of its file or folder, for people."""
    arrays: Arrays


def encode_sample(sample: GivenSample) -> bytes:
    """The sample in one piece."""
    return pack_sample(sample.name, sample.arrays)


def decode_sample(content: bytes) -> GivenSample:
    """What `encode_sample` wrote.

    Raises: StorageError: it was written by another version.
    """
    name, arrays = unpack_sample(content)
    return GivenSample(name=name, arrays=arrays)


# ---- reading what the user has


def read_samples(
    folder: Path, inputs: Sequence[TensorSpec], limits: Limits
) -> tuple[GivenSample, ...]:
    """The samples in `folder`: `*.npz`, then `test_data_set_*`, each in the order of their names.

    Raises:
        UsageError: one is not what `inputs` declare, or too large, or there is none; the message
            names file and array.
    """
    for spec in inputs:
        if spec.container and not spec.has_default:
            raise UsageError(
                f'samples {folder}: input "{spec.name}" is a {spec.container}, which samples '
                "cannot hold; load the model without --samples"
            )
    paths = _paths(folder)
    left_bytes = limits.max_bytes_in_flight
    samples = []
    for path in paths:
        with _refusing(f"samples {path}"):
            most_bytes = min(limits.max_request_bytes, left_bytes)
            reading = _Reading(inputs, most_bytes)
            with bounded_memory(enough_for(limits.max_bytes_in_flight)):
                arrays = reading.folder(path) if path.is_dir() else reading.archive(path)
        left_bytes -= reading.read_bytes
        # What is no Unicode in a name could not be stored.
        name = path.name.encode(errors="replace").decode()
        samples.append(GivenSample(name=name, arrays=arrays))
    return tuple(samples)


def _paths(folder: Path) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the name.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"samples {folder}: cannot be read: {reason}; want a folder") from error
    archives = [path for path in found if path.suffix == ".npz"]
    numbered = [(int(m[1]), p) for p in found if (m := _TEST_SET.fullmatch(p.name))]
    paths = [*archives, *(path for _, path in sorted(numbered))]
    if not paths:
        raise UsageError(
            f"samples {folder}: there are none; want *.npz files as numpy.savez writes them, "
            "or folders test_data_set_* with input_0.pb"
        )
    if len(paths) > MAX_SAMPLES:
        raise UsageError(f"samples {folder}: got {len(paths)}, want at most {MAX_SAMPLES}")
    return paths


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, InputMismatch) as error:
        raise UsageError(f"{place}: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise UsageError(f"{place}: takes more memory to read than it should") from error
    except _UNREADABLE as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"{place}: cannot be read: {reason}") from error


class _Reading:
    """One sample on its way in: what was found of it, and how many bytes it may still take."""

    def __init__(self, inputs: Sequence[TensorSpec], most_bytes: int) -> None:
        self._inputs = {spec.name: spec for spec in inputs}
        self._most_bytes = most_bytes
        self._arrays: Arrays = {}
        self.read_bytes = 0

    def archive(self, path: Path) -> Arrays:
        """The arrays of an npz file."""
        with self._opened(path) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                with _refusing(f'array "{name}"'):
                    spec = self._wanted(name)
                    if member.compress_type not in _COMPRESSIONS:
                        raise UsageError("is compressed in a way that numpy does not write")
                    with archive.open(member) as entry:
                        self._arrays[spec.name] = self._npy(entry, spec)
        return self._complete()

    def folder(self, path: Path) -> Arrays:
        """The arrays of ONNX test data, which are in the order of the inputs."""
        # Imports onnx, which archives do not need.
        from edge_agent.model.test_data import parse_tensor, tensor_array, tensor_spec

        order = [spec for spec in self._inputs.values() if not spec.has_default]
        for file in sorted(path.iterdir()):
            found = _TEST_INPUT.fullmatch(file.name)
            if not found:
                continue
            with _refusing(file.name), self._opened(file) as opened:
                number = int(found[1])
                if number >= len(order):
                    raise UsageError(f"is input {number}, want {len(order)} inputs from 0")
                spec = self._wanted(order[number].name)
                content = opened.read(self._most_bytes + _BESIDE_BYTES)
                tensor = parse_tensor(content)
                got = tensor_spec(tensor)
                _check(spec, got)
                is_text = got.element_type is ElementType.STRING
                self._take(len(content) if is_text else size_bytes(got.element_type, _sizes(got)))
                self._arrays[spec.name] = tensor_array(tensor)
        return self._complete()

    def _npy(self, file: IO[bytes], want: TensorSpec) -> Array:
        shape, is_fortran, dtype = _header(file)
        if dtype.hasobject:
            raise UsageError("holds Python objects, which are not read; want numbers or text")
        kind = _element_type(dtype, want)
        if kind is None:
            raise UsageError(f"got {dtype}[{','.join(map(str, shape))}], want {want}")
        _check(want, TensorSpec(name=want.name, element_type=kind, dims=shape))
        # As Python's numbers: those of numpy would overflow.
        want_bytes = math.prod(shape) * dtype.itemsize
        self._take(want_bytes)
        content = file.read(want_bytes + 1)
        if len(content) != want_bytes:
            found = "more" if len(content) > want_bytes else str(len(content))
            raise UsageError(f"got {found} bytes of values, want {want_bytes}")
        array: Array = np.frombuffer(content, dtype) if content else np.empty(0, dtype)
        array = array.reshape(shape, order="F" if is_fortran else "C")
        own = want.element_type.numpy_dtype
        if own is None:
            return array.astype(str).astype(object)
        if dtype.kind == "V":
            return np.asarray(array, order="C").view(own)
        return np.asarray(array, own, order="C")

    @contextmanager
    def _opened(self, path: Path) -> Iterator[IO[bytes]]:
        # Without waiting for somebody to write, where it is a FIFO.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UsageError("is no regular file")
            if found.st_size > self._most_bytes + _BESIDE_BYTES:
                self._refuse(found.st_size)
            yield file

    def _wanted(self, name: str) -> TensorSpec:
        spec = self._inputs.get(TensorName(name))
        if spec is None:
            names = ", ".join(f'"{n}"' for n in self._inputs) or "none"
            raise UsageError(f"the model has no such input, want {names}")
        if spec.name in self._arrays:
            raise UsageError("is there twice")
        return spec

    def _take(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes
        if self.read_bytes > self._most_bytes:
            self._refuse(self.read_bytes)

    def _refuse(self, size_bytes: int) -> None:
        raise UsageError(
            f"got {size_bytes} bytes, want at most {self._most_bytes}; give smaller or fewer "
            "samples, or raise max_request_bytes and max_bytes_in_flight in the settings"
        )

    def _complete(self) -> Arrays:
        for name in required(list(self._inputs.values())):
            if name not in self._arrays:
                raise UsageError(f'input "{name}" is missing, want {self._inputs[name]}')
        tensors = [s for s in self._inputs.values() if s.name in self._arrays]
        complete_shapes(tensors, {s.name: self._arrays[s.name].shape for s in tensors}, {})
        return self._arrays


def _check(want: TensorSpec, got: TensorSpec) -> None:
    fits = got.element_type is want.element_type and not want.container
    if fits and want.dims is not None:
        assert got.dims is not None
        fits = len(got.dims) == len(want.dims) and all(
            not isinstance(wanted, int) or size == wanted
            for size, wanted in zip(got.dims, want.dims, strict=True)
        )
    if not fits:
        raise UsageError(f"got {got}, want {want}")


def _sizes(spec: TensorSpec) -> Shape:
    return tuple(size for size in spec.dims or () if isinstance(size, int))


def _header(file: IO[bytes]) -> tuple[Shape, bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise UsageError(f"got version {version} of the .npy format, want 1.0 or 2.0")


def _element_type(dtype: np.dtype[Any], want: TensorSpec) -> ElementType | None:
    own = want.element_type.numpy_dtype
    if dtype.kind == "V":
        # numpy does not write down what types it lacks are called.
        if own is None or want.element_type.is_native or own.itemsize != dtype.itemsize:
            return None
        return want.element_type
    return element_type_of(dtype.newbyteorder("="))


# ---- using what was kept


def stored_samples(store: SampleStore, sample_set: SampleSetId) -> tuple[GivenSample, ...]:
    """The samples of a set; none if they are damaged, which is logged."""
    try:
        return tuple(map(decode_sample, store.get(sample_set)))
    except StorageError as damage:
        log.warning("%s; the plan is made without the samples: load the model again", damage)
        return ()


def fitting(
    session: Session,
    given: Sequence[GivenSample],
    shapes: Mapping[TensorName, Shape],
    run_s: float,
    grant: Callable[[], None] = lambda: None,
) -> tuple[tuple[Arrays, ...], dict[TensorName, Shape]]:
    """The samples that have the `shapes` in use, and all shapes that are in use then: where some or
    all are left open, they are those of the first sample that fits.

    Each is run once, after `grant`, which may block until that is welcome.
    Raises: ModelRefused: the model does not run on one of them within `run_s` seconds.
    """
    fits = [s for s in given if shapes.items() <= _shapes(session, s).items()]
    if not fits:
        return (), dict(shapes)
    in_use = _shapes(session, fits[0])
    chosen = [sample for sample in fits if _shapes(session, sample) == in_use]
    for sample in chosen:
        grant()
        try:
            with cancelled_after(run_s) as cancel:
                session.run(sample.arrays, session.output_names, cancel)
        except EdgeAgentError as error:
            raise ModelRefused(f"it does not run on the sample {sample.name}: {error}") from error
    return tuple(sample.arrays for sample in chosen), in_use


def _shapes(session: Session, sample: GivenSample) -> dict[TensorName, Shape]:
    return {s.name: sample.arrays[s.name].shape for s in session.inputs if s.name in sample.arrays}
