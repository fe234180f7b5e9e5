"""A worker as a process: it opens, serves, refuses, and ends when its stream does."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import TensorProto, helper, numpy_helper

from edge_agent import clock
from edge_agent.agent.processes import Child
from edge_agent.devices import ProviderUse
from edge_agent.engine.runtime import CPU
from edge_agent.errors import StorageError
from edge_agent.plans import Epoch
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import ElementType, Shape, TensorName, TensorSpec
from edge_agent.transport.local import ConnectionLost, FrameStream
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.messages import (
    Codec,
    Counted,
    Deployment,
    Message,
    Ran,
    Ready,
    Run,
    RunError,
    Switch,
    WorkerMessage,
    decode,
)
from edge_agent.wire.opening import OpenAhead, OpenedAhead
from edge_agent.wire.parts import (
    ShapeCount,
    Specialised,
    SubgraphFile,
)
from edge_agent.worker.epochs import Beside, Opened
from edge_agent.worker.opening import ChainRunner, open_ahead, open_deployment

WAIT_S = 30.0
CODEC = Codec()
EPOCH = Epoch(owner="local", incarnation=1, model=ModelId("m"), number=1)
X = np.array([[-1.0, 2.0]], np.float32)


def write(path: Path, *operators: str) -> Path:
    """A chain of operators from float32[N,2] to float32[N,2]; values are named v0, v1, …"""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"]) for i, op in enumerate(operators)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2])
        for name in ("v0", f"v{len(operators)}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


def file(path: Path, **changes: str | None) -> SubgraphFile:
    compiled_for = changes.get("compiled_for")
    return SubgraphFile(
        path=str(path), level="all", threads=1, is_plain=True, compiled_for=compiled_for
    )


def deployment(
    *files: SubgraphFile, warm_shapes: tuple[tuple[TensorName, Shape], ...] = ()
) -> Deployment:
    return Deployment(
        epoch=EPOCH,
        subgraphs=files,
        instances=1,
        pinned_cores=(),
        inputs=None,
        outputs=None,
        warm_shapes=warm_shapes,
    )


class Started:
    """A worker process and the agent's end of its stream."""

    def __init__(self) -> None:
        self.child = Child("edge_agent.worker")
        self.stream = FrameStream(self.child.stream)

    def send(self, message: Message, tensors: list[memoryview] | None = None) -> None:
        self.stream.send(CODEC.encode(message), tensors or [])

    def receive(self) -> tuple[WorkerMessage, memoryview]:
        raw, payload = self.stream.receive(clock.monotonic_s() + WAIT_S)
        message: WorkerMessage = decode(CODEC.from_worker, raw)
        return message, payload


@contextmanager
def started() -> Iterator[Started]:
    worker = Started()
    try:
        yield worker
    finally:
        worker.child.end()


def test_a_worker_opens_serves_and_ends_when_its_stream_is_closed(tmp_path: Path) -> None:
    with started() as worker:
        worker.send(deployment(file(write(tmp_path / "m.onnx", "Relu", "Neg"))))
        ready, _ = worker.receive()
        assert isinstance(ready, Ready)
        floats = ElementType.FLOAT32
        assert ready.inputs == (
            TensorSpec(name=TensorName("v0"), element_type=floats, dims=("N", 2)),
        )
        assert [spec.name for spec in ready.outputs] == ["v2"]
        heads, tensors = pack_arrays({"v0": X})
        worker.send(Run(EPOCH, 5, heads, ("v2",)), tensors)
        ran, payload = worker.receive()
        assert isinstance(ran, Ran)
        np.testing.assert_array_equal(unpack_arrays(ran.tensors, payload)["v2"], [[0.0, -2.0]])
    assert worker.child.how_it_ended() == "exit code 0"


def test_a_worker_says_why_it_cannot_open_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"this is no model")
    with started() as worker:
        worker.send(deployment(file(path)))
        refused, _ = worker.receive()
        assert isinstance(refused, RunError)
        assert (refused.sequence, refused.code) == (-1, "model-refused")
        assert refused.message


def test_a_worker_that_is_killed_ends_its_stream_and_tells_how() -> None:
    with started() as worker:
        worker.child.process.send_signal(signal.SIGKILL)
        with pytest.raises(ConnectionLost):
            worker.receive()
        assert worker.child.how_it_ended() == "signal 9"


def test_a_worker_that_hears_nothing_ends_with_its_stream() -> None:
    with started() as worker:
        pass
    assert worker.child.how_it_ended() == "exit code 0"


@pytest.mark.parametrize("content", [None, b"this is no model"])
def test_a_worker_opens_ahead_a_file_that_is_moved_before_its_deployment(
    tmp_path: Path, content: bytes | None
) -> None:
    staged = write(tmp_path / "staged.onnx", "Relu")
    if content is not None:
        staged.write_bytes(content)
    stored = tmp_path / "stored.onnx"
    with started() as worker:
        worker.send(OpenAhead(file=file(staged)))
        raw, _ = worker.stream.receive(clock.monotonic_s() + WAIT_S)
        assert decode(CODEC.from_new_worker, raw) == OpenedAhead()
        staged.rename(stored)
        worker.send(deployment(file(stored)))
        answer, _ = worker.receive()
        if content is not None:
            assert isinstance(answer, RunError)
            assert "ONNX Runtime refuses it" in answer.message
            return
        assert isinstance(answer, Ready)
        heads, tensors = pack_arrays({"v0": X})
        worker.send(Run(EPOCH, 1, heads, ("v1",)), tensors)
        ran, payload = worker.receive()
        assert isinstance(ran, Ran)
        np.testing.assert_array_equal(unpack_arrays(ran.tensors, payload)["v1"], [[0.0, 2.0]])


def test_what_was_opened_ahead_is_not_opened_again_and_has_its_new_name(tmp_path: Path) -> None:
    ahead = open_ahead(file(write(tmp_path / "staged.onnx", "Relu")), is_background=False)
    assert ahead is not None
    elsewhere = deployment(file(tmp_path / "stored.onnx"))
    opened = open_deployment(elsewhere, is_background=False, ahead=ahead)
    assert ahead.path == tmp_path / "stored.onnx"
    np.testing.assert_array_equal(opened.runner.run({"v0": X}, ["v1"])["v1"], [[0.0, 2.0]])


def test_several_subgraphs_are_one_chain(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx", "Relu")
    second = write(tmp_path / "b.onnx", "Neg")
    renamed = onnx.load(second)
    for names in (renamed.graph.node[0].input, renamed.graph.node[0].output):
        names[0] = {"v0": "v1", "v1": "v2"}[names[0]]
    renamed.graph.input[0].name, renamed.graph.output[0].name = "v1", "v2"
    onnx.save(renamed, second)
    opened = open_deployment(deployment(file(first), file(second)), is_background=False)
    assert [spec.name for spec in (*opened.inputs, *opened.outputs)] == ["v0", "v2"]
    got = opened.runner.run({"v0": X}, ["v2"])
    np.testing.assert_array_equal(got["v2"], [[0.0, -2.0]])


def test_a_file_compiled_for_another_processor_is_not_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "Relu")
    with pytest.raises(StorageError, match=r"was compiled for 1\.0 on mars"):
        open_deployment(deployment(file(path, compiled_for="1.0 on mars")), is_background=False)


def test_made_up_inputs_that_do_not_run_keep_no_worker_from_opening(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "Relu")
    shapes = ((TensorName("v0"), (1, 3)),)
    opened = open_deployment(deployment(file(path), warm_shapes=shapes), is_background=False)
    np.testing.assert_array_equal(opened.runner.run({"v0": X}, ["v1"])["v1"], [[0.0, 2.0]])


def test_a_worker_with_specialised_subgraphs_picks_by_shape_counts_and_tells(
    tmp_path: Path,
) -> None:
    special = Specialised(
        shapes=((3, 2),),
        subgraphs=(file(write(tmp_path / "special.onnx", "Neg")),),
        instances=2,
        pinned_cores=(),
    )
    missing = structs.replace(special, shapes=((4, 2),), subgraphs=(file(tmp_path / "gone.onnx"),))
    general = deployment(file(write(tmp_path / "m.onnx", "Relu")))
    with started() as worker:
        worker.send(structs.replace(general, specialised=(special, missing), counted=()))
        ready, _ = worker.receive()
        assert isinstance(ready, Ready)
        assert [u.shapes for u in ready.unopened] == [((4, 2),)]
        assert "refuses it: File doesn't exist" in ready.unopened[0].reason
        for rows in (1, 3, 4):
            heads, tensors = pack_arrays({"v0": np.full((rows, 2), -1, np.float32)})
            worker.send(Run(EPOCH, rows, heads, ("v1",)), tensors)
        got: dict[int, float] = {}
        counted: tuple[ShapeCount, ...] = ()
        while len(counted) < 3:
            message, payload = worker.receive()
            if isinstance(message, Ran):
                first = unpack_arrays(message.tensors, payload)["v1"][0, 0]
                got[message.sequence] = float(first)
            else:
                assert isinstance(message, Counted)
                counted = message.counts
        assert got == {1: 0.0, 3: 1.0, 4: 0.0}
        assert counted == tuple(ShapeCount(((rows, 2),), 1) for rows in (1, 3, 4))


def test_a_worker_counts_nothing_unless_it_is_told_to(tmp_path: Path) -> None:
    opened = open_deployment(
        deployment(file(write(tmp_path / "m.onnx", "Relu"))), is_background=False
    )
    assert opened.counter is None
    assert isinstance(opened.runner, ChainRunner)


def test_a_worker_goes_on_with_another_epoch_and_lets_go_of_the_files_of_the_one_before(
    tmp_path: Path,
) -> None:
    with started() as worker:
        worker.send(deployment(file(write(tmp_path / "1.onnx", "Relu"))))
        assert isinstance(worker.receive()[0], Ready)
        answers = []
        for number, instances in ((2, 2), (3, 1)):
            # The second epoch negates, the third takes the absolute value.
            path = write(tmp_path / f"{number}.onnx", "Neg" if number == 2 else "Abs")
            epoch = replace(EPOCH, number=number)
            following = structs.replace(deployment(file(path)), epoch=epoch, instances=instances)
            worker.send(following)
            assert isinstance(worker.receive()[0], Ready)
            worker.send(Switch(epoch))
            heads, tensors = pack_arrays({"v0": X})
            for sequence in range(4):
                worker.send(Run(epoch, sequence, heads, ("v1",)), tensors)
            for _ in range(4):
                ran, payload = worker.receive()
                assert isinstance(ran, Ran)
                assert ran.epoch == epoch
                answers.append(unpack_arrays(ran.tensors, payload)["v1"].tolist())
        assert answers == [[[1.0, -2.0]]] * 4 + [[[1.0, 2.0]]] * 4
        worker.send(structs.replace(following, subgraphs=(file(tmp_path / "gone.onnx"),)))
        refused, _ = worker.receive()
        assert isinstance(refused, RunError)
        assert (refused.sequence, refused.epoch) == (-1, epoch)


class Closable:
    """Whether it was closed before the sessions were gone."""

    def __init__(self, opened: Opened) -> None:
        self._runner = weakref.ref(opened.runner)
        self.had_sessions: bool | None = None

    def __call__(self) -> None:
        self.had_sessions = self._runner() is not None


def test_the_files_of_an_epoch_are_let_go_of_when_its_sessions_are_gone(tmp_path: Path) -> None:
    opened = open_deployment(
        deployment(file(write(tmp_path / "m.onnx", "Relu"))), is_background=True
    )
    closing = Closable(opened)
    opened.leases.callback(closing)
    opened.leave()
    assert closing.had_sessions is False


def test_made_up_inputs_are_run_beside_another_epoch_only_in_a_pause(tmp_path: Path) -> None:
    asked: list[bool] = []

    def has_pause(answer: bool) -> bool:
        asked.append(answer)
        return answer

    shapes = ((TensorName("v0"), (1, 2)),)
    following = deployment(file(write(tmp_path / "m.onnx", "Relu")), warm_shapes=shapes)
    for pause, times in ((True, 2), (False, 1)):
        asked.clear()
        beside = Beside(counter=None, has_pause=partial(has_pause, pause))
        opened = open_deployment(following, beside, is_background=True)
        np.testing.assert_array_equal(opened.runner.run({"v0": X}, ["v1"])["v1"], [[0.0, 2.0]])
        assert len(asked) == times


def counting_for_ever(path: Path) -> Path:
    """A loop from float32[1] to float32[1] that takes some minutes."""
    values = [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("sum", 1, [1])]
    results = [("on", TensorProto.BOOL, []), ("more", 1, [1])]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["sum", "one"], ["more"]),
        ],
        "body",
        [helper.make_tensor_value_info(*value) for value in values],
        [helper.make_tensor_value_info(*value) for value in results],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["times", "", "v0"], ["v1"], body=body)],
        "counting",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("v1", TensorProto.FLOAT, [1])],
        [
            numpy_helper.from_array(np.array(100_000_000, np.int64), "times"),
            numpy_helper.from_array(np.float32([1]), "one"),
        ],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def test_a_worker_whose_run_on_a_unit_does_not_come_back_ends_itself(tmp_path: Path) -> None:
    path = counting_for_ever(tmp_path / "m.onnx")
    hanging = structs.replace(
        file(path), is_plain=False, use=ProviderUse(provider=CPU), run_limit_s=0.5
    )
    with started() as worker:
        worker.send(deployment(hanging))
        ready, _ = worker.receive()
        assert isinstance(ready, Ready)
        heads, tensors = pack_arrays({"v0": np.float32([0])})
        run = Run(epoch=EPOCH, sequence=1, tensors=heads, outputs=("v1",))
        worker.send(run, tensors)
        with pytest.raises(ConnectionLost):
            worker.receive()
        assert worker.child.how_it_ended() == f"signal {signal.SIGKILL}"
