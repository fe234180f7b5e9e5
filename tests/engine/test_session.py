from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from edge_agent import clock
from edge_agent.engine.background import NICENESS, run_in_thread
from edge_agent.engine.session import OptimisationLevel, Session, plain_options
from edge_agent.errors import InputMismatch, ModelRefused, RunFailed
from edge_agent.tensors import ElementType, TensorName, TensorSpec
from tests.engine.graphs import OpenModel, WriteModel, constant

FLOAT = TensorProto.FLOAT
X = np.float32([[-1, 2], [3, -4]])


def niceness_of_threads() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            found[int(name)] = os.getpriority(os.PRIO_PROCESS, int(name))
    return found


def spec(name: str, element_type: ElementType, dims: tuple[int | str | None, ...] | None):
    return TensorSpec(name=TensorName(name), element_type=element_type, dims=dims)


def test_a_session_computes(relu: Path, open_model: OpenModel) -> None:
    session = open_model(relu)
    assert session.inputs == (spec("x", ElementType.FLOAT32, (2, "n")),)
    assert session.outputs == (spec("y", ElementType.FLOAT32, (2, "n")),)
    (y,) = session.run({"x": X}, ["y"]).values()
    assert y.tolist() == [[0, 2], [3, 0]]
    assert y.dtype == np.float32


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_a_plain_session_computes_the_same(threads: int | None, convnet: Path) -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32), dtype=np.float32)
    plain = Session.open(convnet, threads=threads, level=OptimisationLevel.ALL, plain=True)
    ours = Session.open(convnet, threads=threads or 2, level=OptimisationLevel.ALL)
    assert np.array_equal(plain.run({"x": x}, ["y"])["y"], ours.run({"x": x}, ["y"])["y"])


def test_pool_threads_and_caller_are_pinned_to_the_given_cores(relu: Path) -> None:
    cores = sorted(os.sched_getaffinity(os.getpid()))
    pinned = (cores[0], cores[-1])
    before = set(niceness_of_threads())
    session = Session.open(relu, threads=2, level=OptimisationLevel.ALL, pinned_cores=pinned)
    (pool_thread,) = set(niceness_of_threads()) - before
    # A pool thread pins itself when it starts.
    until_s = clock.monotonic_s() + 5
    while os.sched_getaffinity(pool_thread) != {pinned[1]}:
        assert clock.monotonic_s() < until_s

    def pinned_caller() -> set[int]:
        session.pin_caller()
        return os.sched_getaffinity(threading.get_native_id())

    assert run_in_thread(pinned_caller) == {pinned[0]}
    assert os.sched_getaffinity(0) == set(cores)


def test_pinned_cores_must_be_one_per_thread(relu: Path) -> None:
    with pytest.raises(ValueError, match="got 1 pinned cores for 2 threads"):
        Session.open(relu, threads=2, level=OptimisationLevel.ALL, pinned_cores=(0,))


def test_a_session_opened_idle_has_threads_of_normal_priority(convnet: Path) -> None:
    before = niceness_of_threads()
    session = Session.open_idle(convnet, threads=2, level=OptimisationLevel.ALL)
    normal = before[threading.get_native_id()]
    # The thread that loaded may take a moment to be gone.
    until_s = clock.monotonic_s() + 5
    while added := [nice for t, nice in niceness_of_threads().items() if t not in before]:
        if added == [normal] or clock.monotonic_s() > until_s:
            break
    assert added == [normal]
    assert niceness_of_threads()[threading.get_native_id()] == normal
    x = np.zeros((1, 3, 32, 32), np.float32)
    assert session.run({"x": x}, ["y"])["y"].shape == (1, 10)


def test_the_work_on_the_graph_of_a_session_opened_idle_gives_way(
    relu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda *arguments: lowered.append(arguments[2]))
    Session.open_idle(relu, threads=1, level=OptimisationLevel.ALL)
    assert lowered == [NICENESS]


def test_a_missing_file_is_refused_without_its_folder(tmp_path: Path, open_model: OpenModel):
    with pytest.raises(ModelRefused) as caught:
        open_model(tmp_path / "absent.onnx")
    assert str(caught.value) == "ONNX Runtime refuses it: File doesn't exist"


def test_rubbish_is_refused(tmp_path: Path, open_model: OpenModel) -> None:
    (tmp_path / "rubbish.onnx").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelRefused, match=r"^ONNX Runtime refuses it: [Pp]rotobuf"):
        open_model(tmp_path / "rubbish.onnx")


def test_an_unknown_operator_is_refused_by_name(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    node = helper.make_node("Unheard", ["x"], ["y"], name="/model/unheard")
    path = write_model("bad", [node], [("x", FLOAT, [2])], [("y", FLOAT, [2])])
    with pytest.raises(ModelRefused, match=r"/model/unheard.*No Op registered for Unheard"):
        open_model(path)


def test_a_refusal_shows_no_sources_and_prints_no_banner(
    write_model: WriteModel, open_model: OpenModel, capfd: pytest.CaptureFixture[str]
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    declaration = [("x", FLOAT, [2])], [("y", FLOAT, [2])]
    path = write_model("future", [node], *declaration, opset=900)
    with pytest.raises(ModelRefused) as caught:
        open_model(path)
    assert "onnxruntime_src" not in str(caught.value)
    assert "ValidateOpsetForDomain" not in str(caught.value)
    assert "opset" in str(caught.value)
    assert "Falling back" not in capfd.readouterr().out


def test_names_that_differ_are_told(relu: Path, open_model: OpenModel) -> None:
    session = open_model(relu)
    with pytest.raises(InputMismatch, match='input "x" is missing; the model wants "x"'):
        session.run({}, ["y"])
    with pytest.raises(InputMismatch, match='input "z" is unknown; the model takes "x"'):
        session.run({"x": X, "z": X}, ["y"])
    with pytest.raises(InputMismatch, match='output "z" is unknown; the model gives "y"'):
        session.run({"x": X}, ["z"])


def test_a_failing_node_fails_the_run(write_model: WriteModel, open_model: OpenModel) -> None:
    path = write_model(
        "gather",
        [helper.make_node("Gather", ["x", "i"], ["y"], name="/pick")],
        [("x", FLOAT, [2]), ("i", TensorProto.INT64, [1])],
        [("y", FLOAT, [1])],
    )
    session = open_model(path)
    x = np.float32([5, 6])
    with pytest.raises(RunFailed, match=r"^(?!.*gather\.onnx).*/pick.*out of data bounds"):
        session.run({"x": x, "i": np.int64([9])}, ["y"])
    assert session.run({"x": x, "i": np.int64([1])}, ["y"])["y"].tolist() == [6]


def test_bfloat16_is_that_of_ml_dtypes(write_model: WriteModel, open_model: OpenModel) -> None:
    to_short = write_model(
        "short",
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)],
        [("x", FLOAT, [2])],
        [("y", TensorProto.BFLOAT16, [2])],
    )
    to_long = write_model(
        "long",
        [helper.make_node("Cast", ["y"], ["z"], to=FLOAT)],
        [("y", TensorProto.BFLOAT16, [2])],
        [("z", FLOAT, [2])],
    )
    short = open_model(to_short)
    assert short.outputs == (spec("y", ElementType.BFLOAT16, (2,)),)
    y = short.run({"x": np.float32([1.5, -2])}, ["y"])["y"]
    assert y.dtype == ElementType.BFLOAT16.numpy_dtype
    assert y.view(np.uint16).tolist() == [0x3FC0, 0xC000]
    assert open_model(to_long).run({"y": y}, ["z"])["z"].tolist() == [1.5, -2]


def test_strings_pass(write_model: WriteModel, open_model: OpenModel) -> None:
    text = TensorProto.STRING
    path = write_model(
        "text", [helper.make_node("Identity", ["x"], ["y"])], [("x", text, [2])], [("y", text, [2])]
    )
    x = np.array(["a", "é"], dtype=object)
    assert open_model(path).run({"x": x}, ["y"])["y"].tolist() == ["a", "é"]


def test_a_sequence_comes_as_a_list(write_model: WriteModel, open_model: OpenModel) -> None:
    path = write_model(
        "sequence",
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        [("x", FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("y", FLOAT, None)],
    )
    session = open_model(path)
    assert [(str(s), s.container) for s in session.outputs] == [("seq(tensor(float))",) * 2]
    (element,) = session.run({"x": np.float32([1, 2])}, ["y"])["y"]
    assert element.tolist() == [1, 2]


def test_scalars_and_empty_and_strided_arrays_pass(
    write_model: WriteModel, open_model: OpenModel, relu: Path
) -> None:
    session = open_model(relu)
    assert session.run({"x": np.zeros((2, 0), np.float32)}, ["y"])["y"].shape == (2, 0)
    strided = np.float32([[-1, 9, 2], [3, 9, -4]])[:, ::2]
    assert session.run({"x": strided}, ["y"])["y"].tolist() == [[0, 2], [3, 0]]
    path = write_model(
        "scalar", [helper.make_node("Relu", ["x"], ["y"])], [("x", FLOAT, [])], [("y", FLOAT, [])]
    )
    y = open_model(path).run({"x": np.array(3, np.float32)}, ["y"])["y"]
    assert y.shape == ()
    assert y == 3


def test_an_overridable_initializer_may_be_fed_or_left_out(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    path = write_model(
        "overridable",
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [("x", FLOAT, [2]), ("b", FLOAT, [2])],
        [("y", FLOAT, [2])],
        [constant("b", np.float32([10, 20]))],
    )
    session = open_model(path)
    assert [s.name for s in session.inputs] == ["x"]
    assert [s.name for s in session.overridable] == ["b"]
    x = np.float32([1, 2])
    assert session.run({"x": x}, ["y"])["y"].tolist() == [11, 22]
    assert session.run({"x": x, "b": x}, ["y"])["y"].tolist() == [2, 4]


def test_an_output_outlives_its_session_and_later_runs(relu: Path, open_model: OpenModel) -> None:
    session = open_model(relu)
    first = session.run({"x": X}, ["y"])["y"]
    for factor in range(10):
        session.run({"x": X * factor}, ["y"])
    del session
    assert first.tolist() == [[0, 2], [3, 0]]


def test_an_output_never_shares_memory_with_an_input(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Flatten", ["x"], ["z"]),
    ]
    outputs = [("y", FLOAT, [2, 2]), ("z", FLOAT, [2, 2])]
    path = write_model("same", nodes, [("x", FLOAT, [2, 2])], outputs)
    results = open_model(path).run({"x": X}, ["y", "z"])
    assert not any(np.shares_memory(X, array) for array in results.values())


def test_plain_sessions_have_no_more_threads_than_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for usable, there, want in (({0}, 2, 1), ({0, 3}, 4, 2), ({0, 1}, 2, 0), ({0}, None, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, cores=usable: cores)
        monkeypatch.setattr(os, "cpu_count", lambda count=there: count)
        # 0 is ONNX Runtime's own choice.
        assert plain_options(None).intra_op_num_threads == want
        assert plain_options(3).intra_op_num_threads == 3
