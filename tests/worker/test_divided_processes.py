"""A divided epoch over real worker processes: opened, linked, compared, served, abandoned, lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import TensorProto, helper

from edge_agent import clock
from edge_agent.agent.processes import Child
from edge_agent.devices import DeviceId
from edge_agent.endpoints import Endpoint
from edge_agent.plans import Epoch
from edge_agent.stages import OWNER, Crossing
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import ElementType, TensorName, TensorSpec
from edge_agent.transport.local import FrameStream
from edge_agent.wire.arrays import pack_arrays, unpack_arrays
from edge_agent.wire.frames import Buffer
from edge_agent.wire.hosting import (
    Abandon,
    Closed,
    Compare,
    Compared,
    Dial,
    DividedPart,
    GiveUpRoute,
    HostStages,
    Linked,
    Listen,
    Listening,
    Neighbour,
    RouteShare,
    StageHere,
    Unlinked,
)
from edge_agent.wire.messages import (
    Codec,
    Deployment,
    Message,
    Ran,
    Ready,
    Run,
    RunError,
    Switch,
    decode,
)
from edge_agent.wire.packed import pack_sample
from edge_agent.wire.parts import SubgraphFile

WAIT_S = 60.0
CODEC = Codec()
PLAIN = Epoch(owner="local", incarnation=1, model=ModelId("m"), number=1)
DIVIDED = Epoch(owner="local", incarnation=1, model=ModelId("m"), number=2)
HOME, NEAR, FAR = DeviceId("home"), DeviceId("near"), DeviceId("far")
LOOPBACK = Endpoint(host="127.0.0.1", port=0)
ROWS = 20
"""The most rows that are planned for."""
X = np.array([[-1.0, 2.0]], np.float32)
M = TypeVar("M", bound=Message)


def spec(name: str) -> TensorSpec:
    return TensorSpec(name=TensorName(name), element_type=ElementType.FLOAT32, dims=("N", 2))


def write(path: Path, first: int, *operators: str) -> Path:
    """A chain of operators from v`first` on, each of which gives the next value."""
    values = [f"v{first + i}" for i in range(len(operators) + 1)]
    nodes = [
        helper.make_node(op, [a], [b])
        for op, a, b in zip(operators, values, values[1:], strict=False)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2])
        for name in (values[0], values[-1])
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


def file(path: Path) -> SubgraphFile:
    return SubgraphFile(path=str(path), level="all", threads=1, is_plain=True)


def crossing(source: int, target: int, name: str) -> Crossing:
    return Crossing(source=source, target=target, tensors=(TensorName(name),))


def stage(number: int, path: Path, takes: str, gives: str) -> StageHere:
    return StageHere(
        number=number,
        subgraphs=(file(path),),
        pinned_cores=(),
        inputs=(spec(takes),),
        outputs=(spec(gives),),
        threads=1,
    )


@dataclass(slots=True)
class Process:
    """A worker process."""

    child: Child
    stream: FrameStream
    came: list[tuple[Message, Buffer]] = field(default_factory=list)

    def tell(self, message: Message, *tensors: memoryview) -> None:
        self.stream.send(CODEC.encode(message), tensors)

    def awaited(self, kind: type[M], within_s: float = WAIT_S) -> tuple[M, Buffer]:
        """The next message of that kind; others stay for later."""
        until_s = clock.monotonic_s() + within_s
        while True:
            for at, (message, payload) in enumerate(self.came):
                if isinstance(message, kind):
                    del self.came[at]
                    return message, payload
            raw, payload = self.stream.receive(until_s)
            self.came.append((decode(CODEC.from_worker, raw), payload))


@contextmanager
def process() -> Iterator[Process]:
    child = Child("edge_agent.worker")
    try:
        yield Process(child, FrameStream(child.stream))
    finally:
        child.end(0.0)


@dataclass(slots=True)
class Made:
    home: Process
    near: Process
    far: Process
    whole: Path

    def plain(self, epoch: Epoch) -> Deployment:
        """What the owner serves alone."""
        return Deployment(
            epoch=epoch,
            subgraphs=(file(self.whole),),
            instances=1,
            pinned_cores=(),
            inputs=None,
            outputs=None,
            warm_shapes=(),
        )

    def run(self, sequence: int, x: np.ndarray, left_s: float | None = None) -> None:
        heads, tensors = pack_arrays({"v0": x})
        message = Run(
            epoch=DIVIDED, sequence=sequence, tensors=heads, outputs=("v4",), left_s=left_s
        )
        self.home.tell(message, *tensors)

    def answer(self) -> tuple[int, np.ndarray]:
        ran, payload = self.home.awaited(Ran)
        return ran.sequence, unpack_arrays(ran.tensors, payload)["v4"]


def want(x: np.ndarray) -> np.ndarray:
    return np.exp(np.abs(-np.maximum(x, 0.0))) if x.size else x


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Relu · Neg | Abs | Exp: the owner has the first two, `near` and `far` one each."""
    whole = write(tmp_path / "whole.onnx", 0, "Relu", "Neg", "Abs", "Exp")
    parts = [
        write(tmp_path / "0.onnx", 0, "Relu", "Neg"),
        write(tmp_path / "1.onnx", 2, "Abs"),
        write(tmp_path / "2.onnx", 3, "Exp"),
    ]
    crossings = (
        crossing(OWNER, 0, "v0"),
        crossing(0, 1, "v2"),
        crossing(1, 2, "v3"),
        crossing(2, OWNER, "v4"),
    )
    stages = {
        HOME: (OWNER, 0),
        NEAR: (1,),
        FAR: (2,),
    }
    heres = [
        stage(0, parts[0], "v0", "v2"),
        stage(1, parts[1], "v2", "v3"),
        stage(2, parts[2], "v3", "v4"),
    ]
    neighbours = {HOME: (NEAR, FAR), NEAR: (HOME, FAR), FAR: (NEAR, HOME)}

    def part(device: DeviceId, *here: StageHere) -> DividedPart:
        return DividedPart(
            crossings=crossings,
            stages=here,
            neighbours=tuple(
                Neighbour(device=other, stages=stages[other], window_bytes=1 << 20)
                for other in neighbours[device]
            ),
            routes=(RouteShare(number=0, share=1.0, most=4),) if device == HOME else (),
            shapes=((TensorName("v0"), (ROWS, 2)),) if device == HOME else (),
        )

    with ExitStack() as stack:
        home, near, far = (stack.enter_context(process()) for _ in range(3))
        keys = {}
        for device, one, here in ((NEAR, near, heres[1]), (FAR, far, heres[2])):
            one.tell(HostStages(epoch=DIVIDED, part=part(device, here)))
            keys[device] = one.awaited(Ready)[0].key
        made = Made(home, near, far, whole)
        home.tell(made.plain(PLAIN))
        home.awaited(Ready)
        home.tell(structs.replace(made.plain(DIVIDED), division=part(HOME, heres[0])))
        keys[HOME] = home.awaited(Ready)[0].key
        processes = {HOME: home, NEAR: near, FAR: far}
        for listening, dialling in ((NEAR, HOME), (FAR, HOME), (FAR, NEAR)):
            listen = Listen(epoch=DIVIDED, device=dialling, key=keys[dialling], at=LOOPBACK)
            processes[listening].tell(listen)
            port = processes[listening].awaited(Listening)[0].port
            nobody = Endpoint(host="127.0.0.1", port=1)
            at = Endpoint(host="127.0.0.1", port=port)
            dial = Dial(epoch=DIVIDED, device=listening, key=keys[listening], to=(nobody, at))
            processes[dialling].tell(dial)
        for one in processes.values():
            one.awaited(Linked)
        yield made


def sample(folder: Path) -> str:
    path = folder / "sample"
    path.write_bytes(pack_sample("made", {"v0": X}))
    return str(path)


def compare(folder: Path, budget_s: float) -> Compare:
    return Compare(
        epoch=DIVIDED,
        samples=(sample(folder),),
        budget_s=budget_s,
        callers=4,
        alone_callers=1,
        is_quantised=False,
        float_bound=None,
    )


def test_a_divided_epoch_is_compared_and_then_serves(made: Made, tmp_path: Path) -> None:
    made.home.tell(compare(tmp_path, 0.1))
    compared, _ = made.home.awaited(Compared)
    assert compared.wrong == ""
    assert compared.alone_over_divided is not None
    assert compared.control is not None
    # Three processes for four tiny operators can only be slower than one.
    assert compared.alone_over_divided.median < 1.0
    assert compared.divided_s is not None
    assert compared.latency_s is not None
    assert compared.latency_s > compared.divided_s
    made.home.tell(Switch(epoch=DIVIDED))
    inputs = {n: np.full((n + 1, 2), n - 2, np.float32) for n in range(20)}
    for number, x in inputs.items():
        made.run(number, x)
    answers = dict(made.answer() for _ in inputs)
    assert answers.keys() == inputs.keys()
    for number, x in inputs.items():
        np.testing.assert_allclose(answers[number], want(x), rtol=1e-6)


def test_samples_that_cannot_be_read_are_told_and_nothing_is_timed(
    made: Made, tmp_path: Path
) -> None:
    missing = compare(tmp_path, 0.1)
    (tmp_path / "sample").unlink()
    made.home.tell(missing)
    compared, _ = made.home.awaited(Compared)
    assert "cannot be read" in compared.wrong
    assert compared.is_decided
    assert compared.alone_over_divided is None


def test_what_is_on_a_killed_device_is_run_again_here(made: Made) -> None:
    made.home.tell(Switch(epoch=DIVIDED))
    made.run(1, X)
    assert made.answer()[0] == 1
    os.kill(made.far.child.pid, signal.SIGSTOP)
    for number in range(2, 6):
        made.run(number, X)
    os.kill(made.far.child.pid, signal.SIGKILL)
    answers = dict(made.answer() for _ in range(4))
    assert answers.keys() == {2, 3, 4, 5}
    for answer in answers.values():
        np.testing.assert_allclose(answer, want(X), rtol=1e-6)
    lost = {made.home.awaited(Unlinked)[0].device, made.near.awaited(Unlinked)[0].device}
    assert lost == {FAR}


def test_an_epoch_that_was_taken_over_from_is_told_to_be_closed(made: Made) -> None:
    made.home.tell(Switch(epoch=DIVIDED))
    made.run(1, X)
    assert made.answer()[0] == 1
    made.home.tell(made.plain(Epoch(owner="local", incarnation=1, model=ModelId("m"), number=3)))
    ready, _ = made.home.awaited(Ready)
    made.home.tell(Switch(epoch=ready.epoch))
    closed, _ = made.home.awaited(Closed)
    assert closed.epoch == DIVIDED
    # The other workers notice, too.
    assert made.near.awaited(Unlinked)[0].device == HOME


def test_inputs_that_are_larger_than_planned_are_run_by_the_owner_alone(made: Made) -> None:
    made.home.tell(Switch(epoch=DIVIDED))
    os.kill(made.far.child.pid, signal.SIGSTOP)
    try:
        larger = np.ones((ROWS + 1, 2), np.float32)
        made.run(1, larger)
        sequence, answer = made.answer()
        assert sequence == 1
        np.testing.assert_allclose(answer, want(larger), rtol=1e-6)
    finally:
        os.kill(made.far.child.pid, signal.SIGCONT)


def test_a_route_that_the_agent_gives_up_is_left(made: Made) -> None:
    made.home.tell(Switch(epoch=DIVIDED))
    os.kill(made.far.child.pid, signal.SIGSTOP)
    try:
        for number in range(1, 5):
            made.run(number, X)
        made.home.tell(GiveUpRoute(epoch=DIVIDED, route=0, why="far is silent"))
        answers = dict(made.answer() for _ in range(4))
        assert answers.keys() == {1, 2, 3, 4}
    finally:
        os.kill(made.far.child.pid, signal.SIGCONT)


def test_a_request_is_abandoned_and_leaves_its_place_to_others(made: Made) -> None:
    made.home.tell(Switch(epoch=DIVIDED))
    os.kill(made.far.child.pid, signal.SIGSTOP)
    for number in range(1, 5):  # as many as may be under way
        made.run(number, X)
    for number in range(1, 5):
        made.home.tell(Abandon(sequence=number))
    failed = {made.home.awaited(RunError)[0].sequence for _ in range(4)}
    assert failed == {1, 2, 3, 4}
    # Also when that is known before the request has begun.
    for number in range(5, 55):
        made.run(number, X)
        made.home.tell(Abandon(sequence=number))
        assert made.home.awaited(RunError)[0].sequence == number
    os.kill(made.far.child.pid, signal.SIGCONT)
    made.run(55, X)
    assert made.answer()[0] == 55


def test_a_deadline_ends_a_request_on_all_devices(made: Made) -> None:
    made.home.tell(Switch(epoch=DIVIDED))
    os.kill(made.far.child.pid, signal.SIGSTOP)
    try:
        made.run(1, X, left_s=0.2)
        error, _ = made.home.awaited(RunError)
        assert error.sequence == 1
        assert "deadline" in error.message
    finally:
        os.kill(made.far.child.pid, signal.SIGCONT)
