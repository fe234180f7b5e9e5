"""Real inputs of users: what is read, what is refused and how that is told."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.given import (
    MAX_SAMPLES,
    GivenSample,
    decode_sample,
    encode_sample,
    fitting,
    read_samples,
)
from edge_agent.config import Limits
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused, StorageError, UsageError
from edge_agent.tensors import Arrays, ElementType, TensorName, TensorSpec
from tests.system.made_models import adding, pairing

LIMITS = Limits(max_request_bytes=1 << 16, max_bytes_in_flight=1 << 18)


def spec(
    name: str,
    *dims: int | str | None,
    kind: ElementType = ElementType.FLOAT32,
    has_default: bool = False,
    container: str = "",
) -> TensorSpec:
    return TensorSpec(
        name=TensorName(name),
        element_type=kind,
        dims=None if container else dims,
        has_default=has_default,
        container=container,
    )


X = spec("x", "N", 3)
PAIR = (X, spec("k", "N", kind=ElementType.INT64))
ONES = np.ones((2, 3), np.float32)


def npz(folder: Path, name: str = "a.npz", **arrays: Any) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / name, **arrays)
    return folder


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def zipped(folder: Path, *members: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "a.npz", "w", how) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return folder


def tensors_in(folder: Path, *tensors: TensorProto, number: int = 0) -> Path:
    inside = folder / f"test_data_set_{number}"
    inside.mkdir(parents=True)
    for at, tensor in enumerate(tensors):
        (inside / f"input_{at}.pb").write_bytes(tensor.SerializeToString())
    (inside / "output_0.pb").write_bytes(b"is not read")
    return folder


def only(folder: Path, *inputs: TensorSpec, limits: Limits = LIMITS) -> Arrays:
    (sample,) = read_samples(folder, inputs, limits)
    return sample.arrays


# ---- what is read


def test_archives_and_test_data_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, value in (("b.npz", 1), ("a.npz", 0)):
        npz(tmp_path, name, x=np.full((1, 3), value, np.float32))
    for number, value in ((10, 3), (9, 2)):
        tensors_in(
            tmp_path, numpy_helper.from_array(np.full((1, 3), value, np.float32)), number=number
        )
    (tmp_path / "README").write_text("is not read")
    samples = read_samples(tmp_path, [X], LIMITS)
    names = ["a.npz", "b.npz", "test_data_set_9", "test_data_set_10"]
    assert [s.name for s in samples] == names
    assert [float(s.arrays["x"][0, 0]) for s in samples] == [0.0, 1.0, 2.0, 3.0]


def test_arrays_keep_their_values_in_every_order_and_compression(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name, array in (
        ("c", values),
        ("f", np.asfortranarray(values)),
        ("big", values.astype(">f4")),
    ):
        got = only(npz(tmp_path / name, x=array), X)["x"]
        assert got.dtype == np.dtype(np.float32)
        assert got.tolist() == values.tolist()
    (tmp_path / "z").mkdir()
    np.savez_compressed(tmp_path / "z" / "a.npz", x=values)
    assert only(tmp_path / "z", X)["x"].tolist() == values.tolist()


def test_text_scalars_empty_arrays_and_types_that_numpy_lacks_are_read(tmp_path: Path) -> None:
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    folder = npz(
        tmp_path, t=np.array(["a", "é"]), s=np.float32(2), e=np.zeros((0, 3), "f4"), h=half
    )
    got = only(
        folder,
        spec("t", "N", kind=ElementType.STRING),
        spec("s"),
        spec("e", "M", 3),
        spec("h", 2, kind=ElementType.BFLOAT16),
    )
    assert got["t"].tolist() == ["a", "é"]
    assert got["t"].dtype == np.dtype(object)
    assert got["s"].shape == ()
    assert got["e"].shape == (0, 3)
    assert got["h"].dtype == half.dtype
    assert got["h"].tolist() == half.tolist()


def test_test_data_go_to_the_inputs_in_their_order_whatever_their_names(tmp_path: Path) -> None:
    folder = tensors_in(
        tmp_path,
        helper.make_tensor("other", TensorProto.FLOAT16, [2], [1.5, -2.0]),
        numpy_helper.from_array(np.array([["a", "b"]], object), "text"),
        helper.make_tensor("ints", TensorProto.INT64, [], [7]),
    )
    got = only(
        folder,
        spec("h", 2, kind=ElementType.FLOAT16),
        spec("t", 1, 2, kind=ElementType.STRING),
        spec("k", kind=ElementType.INT64),
        spec("w", 3, has_default=True),
    )
    assert list(got) == ["h", "t", "k"]
    assert got["h"].dtype == np.dtype(np.float16)
    assert got["h"].tolist() == [1.5, -2.0]
    assert got["t"].tolist() == [["a", "b"]]
    assert got["k"].item() == 7


def test_inputs_with_a_default_may_be_given_or_left_out(tmp_path: Path) -> None:
    free = spec("w", 3, has_default=True)
    assert list(only(npz(tmp_path / "a", x=ONES), X, free)) == ["x"]
    assert set(only(npz(tmp_path / "b", x=ONES, w=ONES[0]), X, free)) == {"x", "w"}


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"x": ONES, "t": np.array(["a", "ü"], object), "h": np.ones(3, ml_dtypes.int4)},
        {"s": np.array(True), "e": np.zeros((0, 2), np.int8)},
    ],
)
def test_a_sample_comes_back_from_its_stored_form(arrays: Arrays) -> None:
    found = decode_sample(encode_sample(GivenSample(name="a.npz", arrays=arrays)))
    assert found.name == "a.npz"
    assert set(found.arrays) == set(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tolist() == array.tolist()


@pytest.mark.parametrize("content", [b"", b"EAG\x01", bytes(100)])
def test_a_stored_form_of_another_version_is_told(content: bytes) -> None:
    with pytest.raises(StorageError, match="of another version"):
        decode_sample(content)


# ---- what is refused


def _bomb(folder: Path) -> Path:
    return zipped(folder, ("x.npy", npy(np.zeros((1 << 20, 3), "f4"))), how=zipfile.ZIP_DEFLATED)


def _claiming(folder: Path) -> Path:
    content = npy(np.zeros((10, 3), "f4"))
    return zipped(folder, ("x.npy", content.replace(b"(10, 3)", b"(99, 3)")))


def _surplus(folder: Path) -> Path:
    return zipped(folder, ("x.npy", npy(ONES) + b"more"))


def _twice(folder: Path) -> Path:
    with pytest.warns(UserWarning, match="Duplicate"):
        return zipped(folder, ("x.npy", npy(ONES)), ("x.npy", npy(ONES)))


def _squeezed(folder: Path) -> Path:
    return zipped(folder, ("x.npy", npy(ONES)), how=zipfile.ZIP_LZMA)


def _damaged(folder: Path) -> Path:
    path = npz(folder, x=ONES) / "a.npz"
    content = bytearray(path.read_bytes())
    at = content.index(ONES.tobytes())
    content[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    return folder


def _cut(folder: Path) -> Path:
    os.truncate(npz(folder, x=ONES) / "a.npz", 100)
    return folder


def _no_file(folder: Path) -> Path:
    os.mkfifo(npz(folder, x=ONES) / "b.npz")
    return folder


def _broken_link(folder: Path) -> Path:
    (npz(folder, x=ONES) / "b.npz").symlink_to("nowhere")
    return folder


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda f: npz(f, x=ONES.astype("f8")), r'a\.npz: array "x": got float64\[2,3\], want flo'),
        (lambda f: npz(f, x=ONES[:, :2]), r'"x": got float32\[2,2\], want float32\[N,3\]'),
        (lambda f: npz(f, x=ONES[0]), r'"x": got float32\[3\], want float32\[N,3\]'),
        (lambda f: npz(f, y=ONES), r'array "y": the model has no such input, want "x"'),
        (lambda f: npz(f), r'a\.npz: input "x" is missing, want float32\[N,3\]'),
        (lambda f: npz(f, x=np.array([[1, 2, None]], object)), "holds Python objects"),
        (lambda f: npz(f, x=np.zeros((2, 3), "M8[s]")), r"got datetime64\[s\]\[2,3\], want float"),
        (lambda f: npz(f, x=np.zeros((2, 3), "V4")), r"got \|V4\[2,3\], want float32"),
        (lambda f: npz(f, x=np.zeros((1 << 13, 3), "f4")), "got 98304 bytes, want at most 65536"),
        (lambda f: zipped(f, ("x.npy", b"no array")), 'array "x": cannot be read: .*magic'),
        (lambda f: zipped(f, ("x.npy", b"\x93NUMPY\x01\x00\x04\x00{(1,")), "cannot be read"),
        (lambda f: zipped(f, ("x.npy", b"\x93NUMPY\x03\x00\x04\x00{}  ")), r"version \(3, 0\)"),
        (_bomb, "got 12582912 bytes, want at most 65536"),
        (_claiming, "got 120 bytes of values, want 1188"),
        (_surplus, "got more bytes of values, want 24"),
        (_twice, 'array "x": is there twice'),
        (_squeezed, "is compressed in a way that numpy does not write"),
        (_damaged, "cannot be read: Bad CRC-32"),
        (_cut, "cannot be read: File is not a zip file"),
        (_no_file, r"b\.npz: is no regular file"),
        (_broken_link, r"b\.npz: cannot be read: No such file"),
    ],
)
def test_an_archive_that_is_wrong_is_told_with_file_array_got_and_want(
    tmp_path: Path, make: Callable[[Path], Path], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        read_samples(make(tmp_path / "s"), [X], LIMITS)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ([numpy_helper.from_array(ONES[0])], r"input_0\.pb: got float32\[3\], want float32\[N,3\]"),
        ([numpy_helper.from_array(ONES)] * 2, r"input_1\.pb: is input 1, want 1 inputs from 0"),
        ([], r'test_data_set_0: input "x" is missing'),
        ([TensorProto(data_type=1, dims=[2, 3], raw_data=b"short")], "holds 5 entries, want 24"),
        ([TensorProto(data_type=1, dims=[2, 3], float_data=[1])], "holds 1 entries, want 6"),
        ([TensorProto(data_type=1, dims=[-2, -3], float_data=[1] * 6)], r"got .*type 1\[-2,-3\]"),
        ([TensorProto(data_type=99, dims=[2, 3])], r"got a tensor of type 99\[2,3\]"),
        ([TensorProto(data_type=1, dims=[1 << 40, 3], raw_data=b"")], "holds 0 entries, want"),
        (
            [TensorProto(data_type=1, dims=[0, 3], data_location=TensorProto.EXTERNAL)],
            "refers to another file",
        ),
        ([numpy_helper.from_array(np.zeros((1 << 13, 3), "f4"))], "got 98304 bytes, want at most"),
    ],
)
def test_test_data_that_are_wrong_are_told_with_their_file(
    tmp_path: Path, tensors: list[TensorProto], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        read_samples(tensors_in(tmp_path, *tensors), [X], LIMITS)


def test_what_is_no_tensor_at_all_is_told(tmp_path: Path) -> None:
    folder = tensors_in(tmp_path, numpy_helper.from_array(ONES))
    (folder / "test_data_set_0" / "input_0.pb").write_bytes(b"\xff" * 40)
    with pytest.raises(UsageError, match=r"input_0\.pb: is no TensorProto"):
        read_samples(folder, [X], LIMITS)


def test_text_that_is_none_is_told(tmp_path: Path) -> None:
    tensor = TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    with pytest.raises(UsageError, match=r"input_0\.pb: cannot be read: .*utf-8"):
        read_samples(tensors_in(tmp_path, tensor), [spec("t", 1, kind=ElementType.STRING)], LIMITS)


def test_sizes_of_one_name_must_agree_within_a_sample(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'a\.npz: shape of input "k": got \[3\], want .*N = 2'):
        read_samples(npz(tmp_path, x=ONES, k=np.zeros(3, np.int64)), PAIR, LIMITS)


def test_the_same_sizes_may_differ_between_samples(tmp_path: Path) -> None:
    npz(tmp_path, "a.npz", x=ONES, k=np.zeros(2, np.int64))
    npz(tmp_path, "b.npz", x=ONES[:1], k=np.zeros(1, np.int64))
    assert [s.arrays["k"].shape for s in read_samples(tmp_path, PAIR, LIMITS)] == [(2,), (1,)]


def test_a_model_with_sequences_has_no_samples(tmp_path: Path) -> None:
    listed = spec("s", container="seq(tensor(float))")
    with pytest.raises(UsageError, match=r'"s" is a seq\(tensor\(float\)\), which samples cannot'):
        read_samples(npz(tmp_path, x=ONES), [X, listed], LIMITS)


def test_names_that_are_no_unicode_or_no_names_at_all_are_dealt_with(tmp_path: Path) -> None:
    npz(tmp_path, os.fsdecode(b"caf\xe9.npz"), x=ONES)
    (sample,) = read_samples(tmp_path, [X], LIMITS)
    assert decode_sample(encode_sample(sample)).name == "caf?.npz"
    with pytest.raises(UsageError, match="cannot be read: embedded null byte; want a folder"):
        read_samples(Path("/tmp/a\0b"), [X], LIMITS)


@pytest.mark.parametrize("what", ["missing", "a file", "empty"])
def test_a_folder_without_samples_is_told(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "s"
    if what == "a file":
        folder.write_text("x")
    elif what == "empty":
        folder.mkdir()
    with pytest.raises(UsageError, match=r"s: (there are none|cannot be read: .*want a folder)"):
        read_samples(folder, [X], LIMITS)


def test_too_many_samples_are_refused_before_any_is_read(tmp_path: Path) -> None:
    for number in range(MAX_SAMPLES + 1):
        (tmp_path / f"{number}.npz").write_bytes(b"")
    with pytest.raises(UsageError, match="got 65, want at most 64"):
        read_samples(tmp_path, [X], LIMITS)


def test_all_samples_together_are_bounded_too(tmp_path: Path) -> None:
    large = np.zeros((5000, 3), np.float32)
    for number in range(5):
        npz(tmp_path, f"{number}.npz", x=large)
    with pytest.raises(UsageError, match=r"4\.npz: .*got 60000 bytes, want at most 22144"):
        read_samples(tmp_path, [X], LIMITS)


# ---- what is used


@pytest.fixture
def session(tmp_path: Path) -> Session:
    path = pairing(tmp_path / "m.onnx")
    return Session.open(path, threads=1, level=OptimisationLevel.ALL)


def given(rows: int, name: str = "") -> GivenSample:
    rng = np.random.default_rng(rows)
    arrays: Arrays = {n: rng.standard_normal((rows, 3)).astype(np.float32) for n in ("a", "b")}
    return GivenSample(name=name or f"{rows}.npz", arrays={**arrays, "k": np.ones(2)})


def names(*pairs: tuple[str, tuple[int, ...]]) -> dict[TensorName, tuple[int, ...]]:
    return {TensorName(name): shape for name, shape in pairs}


def test_without_shapes_those_of_the_first_are_in_use_and_others_are_left_out(
    session: Session,
) -> None:
    first, other, alike = given(2), given(5), given(2, "z.npz")
    chosen, shapes = fitting(session, [first, other, alike], {}, 10.0)
    assert chosen == (first.arrays, alike.arrays)
    asked: list[None] = []
    fitting(session, [first, other, alike], {}, 10.0, lambda: asked.append(None))
    assert len(asked) == 2  # before each that is run
    assert shapes == names(("a", (2, 3)), ("b", (2, 3)), ("k", (2,)))


def test_shapes_that_are_given_choose_among_the_samples(session: Session) -> None:
    first, other = given(2), given(5)
    chosen, shapes = fitting(session, [first, other], names(("b", (5, 3))), 10.0)
    assert chosen == (other.arrays,)
    assert shapes == names(("a", (5, 3)), ("b", (5, 3)), ("k", (2,)))


def test_where_none_fits_the_shapes_are_as_given(session: Session) -> None:
    wanted = names(("a", (7, 3)))
    assert fitting(session, [given(2)], wanted, 10.0) == ((), wanted)
    assert fitting(session, [], {}, 10.0) == ((), {})


def test_a_sample_that_does_not_run_is_named(tmp_path: Path) -> None:
    path = adding(tmp_path / "m.onnx")
    made = onnx.load(path)
    made.graph.node[0].op_type = "Gather"
    made.graph.node[0].input[:] = ["w", "x"]
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(made, path)
    session = Session.open(path, threads=1, level=OptimisationLevel.ALL)
    right = GivenSample(name="right.npz", arrays={"x": np.array([[0, 1, 2]])})
    wrong = GivenSample(name="wrong.npz", arrays={"x": np.array([[0, 1, 3]])})
    assert fitting(session, [right], {}, 10.0)[0] == (right.arrays,)
    with pytest.raises(ModelRefused, match=r"does not run on the sample wrong\.npz: "):
        fitting(session, [right, wrong], {}, 10.0)
