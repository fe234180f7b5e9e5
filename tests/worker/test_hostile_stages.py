"""Workers of trusted devices that send to stages what was not agreed: their stream ends, what was
under way there is run by the owner, and the other streams go on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest

from edge_agent import clock
from edge_agent.stages import OWNER
from edge_agent.tensors import ElementType, TensorName, TensorSpec
from edge_agent.wire.arrays import pack_arrays
from edge_agent.wire.streaming import Cancel, RunFailed, Stale, Tensors
from edge_agent.worker.runners import Asked
from edge_agent.worker.streams import Stream
from tests.system.running import wait_until
from tests.worker.made_stages import EPOCH, HOME, Computing, Divided, Whole, crossings, divided

X = np.arange(12, dtype=np.float32)
DIVISION = crossings("o>0 x", "0>1 a", "1>o z", "o>2 x", "2>o z")
RUNNERS = {
    0: Computing(lambda f: {"a": f["x"] + 1}),
    1: Computing(lambda f: {"z": f["a"] * 2}),
    2: Computing(lambda f: {"z": (f["x"] + 1) * 2}),
}
PLACES = {0: "bad", 1: "two", 2: "good"}


def spec(name: str, container: str = "") -> TensorSpec:
    dims = None if container else (12,)
    return TensorSpec(
        name=TensorName(name), element_type=ElementType.FLOAT32, dims=dims, container=container
    )


SPECS = {
    **{stage: (spec("x"),) for stage in (0, 2)},
    1: (spec("a"),),
    OWNER: (spec("z"),),
}


@pytest.fixture
def made() -> Iterator[Divided]:
    whole = Whole(lambda f: {"z": (f["x"] + 1) * 2})
    with divided(DIVISION, PLACES, RUNNERS, whole, specs=SPECS) as found:
        yield found
        # Whatever happened: the other route serves, and nothing is under way.
        found.runner.route_is_lost(0, "bad broke the rules")
        for _ in range(3):
            np.testing.assert_array_equal(found.runner.run({"x": X}, ["z"])["z"], (X + 1) * 2)
        assert not found.places["good"].broken
        assert all(route.under_way == 0 for route in found.routes)


def tensors(source: int, target: int, *, run: int = 1, **arrays: np.ndarray) -> Tensors:
    heads, _ = pack_arrays(arrays)
    return Tensors(
        epoch=EPOCH, run=run, source=source, target=target, tensors=heads, left_s=None, narrowed=()
    )


def replace_tensors(message: Tensors, arrays: dict[str, np.ndarray]) -> Tensors:
    return msgspec.structs.replace(message, tensors=pack_arrays(arrays)[0])


def say(stream: Stream, source: int, target: int, *, run: int = 1, **arrays: np.ndarray) -> None:
    stream.put(tensors(source, target, run=run, **arrays), pack_arrays(arrays)[1])


def broke(made: Divided, place: str) -> list[str]:
    return made.places[place].broken


@pytest.mark.parametrize(
    ("source", "target", "arrays", "told"),
    [
        (0, 1, {"b": X}, "got other tensors from stage 0 than agreed"),
        (0, 1, {"a": X, "b": X}, "got other tensors from stage 0 than agreed"),
        (0, 1, {}, "got other tensors from stage 0 than agreed"),
        (0, 2, {"a": X}, "got tensors from stage 0 for 2"),
        (2, 1, {"a": X}, "got tensors from stage 2 for 1"),
        (0, OWNER, {"z": X}, "got tensors from stage 0 for -1"),
        (OWNER, 1, {"a": X}, "got tensors from stage -1 for 1"),
        (7, 1, {"a": X}, "got tensors from stage 7 for 1"),
    ],
)
def test_tensors_that_were_not_agreed_end_the_stream(
    made: Divided, source: int, target: int, arrays: dict[str, np.ndarray], told: str
) -> None:
    line = made.places["bad"].neighbours["two"]
    message = replace_tensors(tensors(source, target), arrays)
    line.put(message, pack_arrays(arrays)[1])
    wait_until(partial(broke, made, "two"), "the stream ends")
    assert broke(made, "two") == [told]


WRONG_TYPES = [
    pytest.param(X.astype(np.float64), "float64", id="wider"),
    pytest.param(X.view(np.int32), "int32", id="of the same size"),
    pytest.param([X], "a sequence, map or optional", id="no tensor"),
]


@pytest.mark.parametrize(("value", "got"), WRONG_TYPES)
def test_tensors_of_another_type_than_the_model_says_end_the_stream(
    made: Divided, value: np.ndarray, got: str
) -> None:
    say(made.places["bad"].neighbours["two"], 0, 1, a=value)
    wait_until(partial(broke, made, "two"), "the stream ends")
    assert broke(made, "two") == [f'tensor "a": got {got}, want float32[12]']


@pytest.mark.parametrize(("value", "got"), WRONG_TYPES)
def test_a_result_of_another_type_reaches_nobody(value: np.ndarray, got: str) -> None:
    line = crossings("o>0 x", "0>o z")
    lying = {0: Computing(lambda _: {"z": value})}
    whole = Whole(lambda f: {"z": f["x"] * 2})
    with divided(line, {0: "bad"}, lying, whole, specs=SPECS) as other:
        np.testing.assert_array_equal(other.runner.run({"x": X}, ["z"])["z"], X * 2)
        assert other.runner.run_again == 1
        assert broke(other, HOME) == [f'tensor "z": got {got}, want float32[12]']


def test_what_is_no_tensor_by_the_model_must_be_none() -> None:
    """A sequence may hold whatever ONNX Runtime takes, and a tensor is none."""
    line = crossings("o>0 x", "0>o z")
    specs = {OWNER: (spec("z", "seq(tensor(float))"),)}
    whole = Whole(lambda f: {"z": [f["x"]]})
    for value, is_taken in (([X, X], True), (X, False)):
        runners = {0: Computing(lambda _, value=value: {"z": value})}
        with divided(line, {0: "bad"}, runners, whole, specs=specs) as other:
            found = other.runner.run({"x": X}, ["z"])["z"]
            np.testing.assert_array_equal(found, [X, X] if is_taken else [X])
            assert bool(broke(other, HOME)) == (not is_taken)


def test_a_result_of_another_route_or_of_no_run_is_dropped(made: Divided) -> None:
    line = made.places["good"].neighbours[HOME]
    for run in (1, 99):
        say(line, 2, OWNER, run=run, z=X)
    end = made.places[HOME].neighbours["good"]
    np.testing.assert_array_equal(made.runner.run({"x": X}, ["z"])["z"], (X + 1) * 2)
    wait_until(lambda: end.inflow.held_bytes == 0, "its memory is given back")


def test_what_comes_twice_ends_the_stream() -> None:
    """A join holds the first: which of the two is right nobody could say."""
    join = crossings("o>0 x", "o>1 x", "0>2 a", "1>2 b", "2>o z")
    runners = {n: Computing(lambda f: f) for n in range(3)}
    with divided(join, {0: "one", 1: "two", 2: "three"}, runners, None) as other:
        line = other.places["one"].neighbours["three"]
        for _ in range(2):
            say(line, 0, 2, run=5, a=X)
        wait_until(partial(broke, other, "three"), "the stream ends")
        assert broke(other, "three") == ["got tensors of run 5 from stage 0 twice"]


def test_messages_of_runs_and_epochs_that_are_not_known_change_nothing(made: Divided) -> None:
    other = replace(EPOCH, incarnation=7)
    line = made.places["bad"].neighbours["two"]
    for epoch in (EPOCH, other):
        line.steer(Cancel(epoch=epoch, run=12345))
        line.steer(Stale(epoch=epoch, run=12346))
        line.steer(
            RunFailed(epoch=epoch, run=12347, stage=0, code="of-tomorrow", message="whatever")
        )
    stages = made.places["two"].stages
    wait_until(lambda: stages.counters["messages of another epoch"] == 3, "they are counted")
    assert not broke(made, "two")
    for _ in range(4):
        np.testing.assert_array_equal(made.runner.run({"x": X}, ["z"])["z"], (X + 1) * 2)


def test_a_device_of_one_route_cannot_end_the_runs_of_another(made: Divided) -> None:
    line = made.places["good"].neighbours[HOME]
    for run in range(1, 40):
        line.steer(Stale(epoch=EPOCH, run=run))
        line.steer(RunFailed(epoch=EPOCH, run=run, stage=2, code="run-failed", message="no"))
    stages = made.places[HOME].stages
    wait_until(lambda: stages.counters["ends of runs that are not theirs"] == 78, "all came")
    for _ in range(6):
        np.testing.assert_array_equal(made.runner.run({"x": X}, ["z"])["z"], (X + 1) * 2)
    assert made.runner.run_again == 0


def test_only_the_owner_cancels(made: Divided) -> None:
    """Runs that have not begun yet would never end."""
    line = made.places["bad"].neighbours[HOME]
    for run in range(1, 40):
        line.steer(Cancel(epoch=EPOCH, run=run))
    x = np.arange(6, dtype=np.float32)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            got = pool.submit(made.runner.run, {"x": x}, ["z"], Asked(clock.monotonic_s() + 10))
            np.testing.assert_array_equal(got.result(15)["z"], (x + 1) * 2)
