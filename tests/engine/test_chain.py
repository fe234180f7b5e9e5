from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.chain import Chain
from edge_agent.errors import Busy, DeadlineExceeded, InputMismatch
from edge_agent.tensors import ElementType
from tests.engine.graphs import OpenModel, WriteModel, constant

FLOAT = TensorProto.FLOAT
X = np.float32([1, -2])


@pytest.fixture
def pair(write_model: WriteModel, open_model: OpenModel) -> Chain:
    """a = 2x, b = x + k | y = a + b, k -> 2x + x + k; outputs y, a (an intermediate) and x."""
    two = constant("two", np.float32([2]))
    first = write_model(
        "first",
        [
            helper.make_node("Mul", ["x", "two"], ["a"]),
            helper.make_node("Add", ["x", "k"], ["b"]),
        ],
        [("x", FLOAT, ["n"]), ("k", FLOAT, ["n"])],
        [("a", FLOAT, ["n"]), ("b", FLOAT, ["n"])],
        [two],
    )
    second = write_model(
        "second",
        [helper.make_node("Sum", ["a", "b", "k"], ["y"])],
        [("a", FLOAT, ["n"]), ("b", FLOAT, ["n"]), ("k", FLOAT, ["n"])],
        [("y", FLOAT, ["n"])],
    )
    return Chain([open_model(first), open_model(second)], ["x", "k"], ["y", "a", "x"])


@pytest.fixture
def slow(write_model: WriteModel, open_model: OpenModel) -> Chain:
    """Counts to a hundred million in a loop: some minutes, one short node at a time."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["sum", "one"], ["more"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", FLOAT, [1]),
        ],
    )
    path = write_model(
        "slow",
        [helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)],
        [("x", FLOAT, [1])],
        [("y", FLOAT, [1])],
        [
            constant("times", np.array(100_000_000, np.int64)),
            constant("one", np.float32([1])),
        ],
    )
    return Chain([open_model(path)], ["x"], ["y"])


def test_a_chain_computes_what_the_whole_model_would(pair: Chain) -> None:
    results = pair.run({"x": X, "k": np.float32([10, 20])})
    assert list(results) == ["y", "a", "x"]
    assert results["y"].tolist() == [23, 34]
    assert results["a"].tolist() == [2, -4]
    assert results["x"].tolist() == [1, -2]


def test_only_the_outputs_asked_for_come_back(pair: Chain) -> None:
    results = pair.run({"x": X, "k": X}, ["a"])
    assert {name: array.tolist() for name, array in results.items()} == {"a": [2, -4]}


def test_one_chain_answers_many_callers_at_once(pair: Chain) -> None:
    def answer(k: int) -> list[float]:
        return pair.run({"x": X, "k": np.float32([k, k])}, ["y"])["y"].tolist()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, range(200)))
    assert answers == [[3 + 2 * k, -6 + 2 * k] for k in range(200)]


def test_a_wrong_type_or_shape_is_told_before_anything_runs(pair: Chain) -> None:
    with pytest.raises(InputMismatch) as caught:
        pair.run({"x": X.astype(np.float64), "k": X})
    assert str(caught.value) == 'input "x": got float64[2], want float32[n]'
    with pytest.raises(InputMismatch) as caught:
        pair.run({"x": X, "k": X.reshape(1, 2)})
    assert str(caught.value) == 'input "k": got float32[1,2], want float32[n]'
    with pytest.raises(InputMismatch, match='input "k" is missing'):
        pair.run({"x": X})
    with pytest.raises(InputMismatch, match='output "b" is unknown'):
        pair.run({"x": X, "k": X}, ["b"])


def test_an_order_that_cannot_work_is_an_error(pair: Chain) -> None:
    with pytest.raises(ValueError, match=r"needs .*'a', 'b'"):
        Chain(pair.sessions[::-1], ["x", "k"], ["y"])
    with pytest.raises(ValueError, match=r"no session gives .*'q'"):
        Chain(pair.sessions, ["x", "k"], ["q"])


def test_sequences_and_bfloat16_pass_between_sessions(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    first = write_model(
        "first",
        [
            helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
            helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
        ],
        [("x", FLOAT, [2])],
        [sequence, ("h", TensorProto.BFLOAT16, [2])],
    )
    second = write_model(
        "second",
        [
            helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
            helper.make_node("Cast", ["h"], ["z"], to=FLOAT),
        ],
        [sequence, ("h", TensorProto.BFLOAT16, [2])],
        [("y", FLOAT, [4]), ("z", FLOAT, [2])],
    )
    chain = Chain([open_model(first), open_model(second)], ["x"], ["y", "z"])
    results = chain.run({"x": X})
    assert results["y"].tolist() == [1, -2, 1, -2]
    assert results["z"].tolist() == [1, -2]


def test_strings_fed_to_several_sessions_and_made_between_them_pass(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    text = TensorProto.STRING
    first = write_model(
        "first",
        [
            helper.make_node("Concat", ["x", "x"], ["a"], axis=0),
            helper.make_node("Neg", ["k"], ["m"]),
        ],
        [("x", text, [1]), ("k", FLOAT, [1])],
        [("a", text, [2]), ("m", FLOAT, [1])],
    )
    second = write_model(
        "second",
        [
            helper.make_node("Concat", ["a", "x"], ["y"], axis=0),
            helper.make_node("Neg", ["m"], ["z"]),
        ],
        [("a", text, [2]), ("x", text, [1]), ("m", FLOAT, [1])],
        [("y", text, [3]), ("z", FLOAT, [1])],
    )
    chain = Chain([open_model(first), open_model(second)], ["x", "k"], ["y", "z"])
    results = chain.run({"x": np.array(["é"], dtype=object), "k": np.float32([5])})
    assert results["y"].tolist() == ["é", "é", "é"]
    assert results["z"].tolist() == [5]


def test_strings_made_in_one_session_and_used_in_the_next_pass(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    text = TensorProto.STRING
    first = write_model(
        "first",
        [helper.make_node("Cast", ["k"], ["a"], to=text)],
        [("k", TensorProto.INT64, [2])],
        [("a", text, [2])],
    )
    second = write_model(
        "second",
        [helper.make_node("Identity", ["a"], ["y"])],
        [("a", text, [2])],
        [("y", text, [2])],
    )
    chain = Chain([open_model(first), open_model(second)], ["k"], ["y"])
    assert chain.run({"k": np.int64([7, 8])})["y"].tolist() == ["7", "8"]


def test_text_passes_beside_types_that_numpy_lacks(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    text, short = TensorProto.STRING, TensorProto.BFLOAT16
    sequence = helper.make_tensor_sequence_value_info("s", text, None)
    first = write_model(
        "first",
        [
            helper.make_node("Cast", ["k"], ["h"], to=short),
            helper.make_node("Concat", ["x", "x"], ["a"], axis=0),
            helper.make_node("SequenceConstruct", ["x"], ["s"]),
        ],
        [("x", text, [2]), ("k", FLOAT, [2])],
        [("h", short, [2]), ("a", text, [4]), sequence],
    )
    second = write_model(
        "second",
        [
            helper.make_node("Cast", ["h"], ["z"], to=FLOAT),
            helper.make_node("SequenceAt", ["s", "at"], ["b"]),
            helper.make_node("Concat", ["a", "b", "x"], ["y"], axis=0),
        ],
        [("h", short, [2]), ("a", text, [4]), sequence, ("x", text, [2])],
        [("z", FLOAT, [2]), ("y", text, [8])],
        [constant("at", np.array(0, np.int64))],
    )
    chain = Chain([open_model(first), open_model(second)], ["x", "k"], ["y", "z", "h"])
    for words in (np.array(["é", ""]), np.array(["é", ""], dtype=object)):
        results = chain.run({"x": words, "k": np.float32([5, -0.5])})
        assert results["y"].tolist() == ["é", ""] * 4
        assert results["z"].tolist() == [5, -0.5]
        assert results["h"].dtype == ElementType.BFLOAT16.numpy_dtype


@pytest.mark.parametrize("is_empty", [False, True])
def test_optionals_pass_empty_or_not(
    is_empty: bool, write_model: WriteModel, open_model: OpenModel
) -> None:
    tensor = helper.make_tensor_type_proto(FLOAT, None)
    sequence = helper.make_sequence_type_proto(tensor)
    optionals = [
        helper.make_value_info("o", helper.make_optional_type_proto(tensor)),
        helper.make_value_info("p", helper.make_optional_type_proto(sequence)),
        helper.make_tensor_sequence_value_info("s", FLOAT, None),
    ]
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"])]
    if is_empty:
        nodes.append(helper.make_node("Optional", [], ["o"], type=tensor))
        nodes.append(helper.make_node("Optional", [], ["p"], type=sequence))
    else:
        nodes.append(helper.make_node("Optional", ["x"], ["o"]))
        nodes.append(helper.make_node("Optional", ["s"], ["p"]))
    first = write_model("first", nodes, [("x", FLOAT, [2])], optionals, opset=18)
    second = write_model(
        "second",
        [
            helper.make_node("OptionalHasElement", ["o"], ["a"]),
            helper.make_node("OptionalHasElement", ["p"], ["b"]),
            helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
        ],
        optionals,
        [("a", TensorProto.BOOL, []), ("b", TensorProto.BOOL, []), ("y", FLOAT, [4])],
        opset=18,
    )
    chain = Chain([open_model(first), open_model(second)], ["x"], ["a", "b", "y"])
    results = chain.run({"x": X})
    assert (bool(results["a"]), bool(results["b"])) == (not is_empty, not is_empty)
    assert results["y"].tolist() == [1, -2, 1, -2]


def test_a_map_passes_to_both_sessions(write_model: WriteModel, open_model: OpenModel) -> None:
    maps = onnx.TypeProto()
    maps.map_type.key_type = TensorProto.INT64
    maps.map_type.value_type.tensor_type.elem_type = FLOAT
    given = helper.make_value_info("m", maps)
    first = write_model(
        "first",
        [
            helper.make_node("CastMap", ["m"], ["a"], domain="ai.onnx.ml"),
            helper.make_node("Neg", ["a"], ["i"]),
        ],
        [given],
        [("i", FLOAT, [1, 2])],
        domains=["ai.onnx.ml"],
    )
    second = write_model(
        "second",
        [
            helper.make_node(
                "DictVectorizer", ["m"], ["b"], domain="ai.onnx.ml", int64_vocabulary=[9, 7]
            ),
            helper.make_node("Concat", ["b", "i"], ["y"], axis=0),
        ],
        [("i", FLOAT, [1, 2]), given],
        [("y", FLOAT, [2, 2])],
        domains=["ai.onnx.ml"],
    )
    chain = Chain([open_model(first), open_model(second)], ["m"], ["y"])
    fed: dict[str, Any] = {"m": {7: -3.0, 9: 5.0}}
    assert chain.run_checked(fed, ["y"])["y"].tolist() == [[5, -3], [3, -5]]


def test_int4_passes_between_sessions(write_model: WriteModel, open_model: OpenModel) -> None:
    first = write_model(
        "first",
        [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT4)],
        [("x", FLOAT, [3])],
        [("i", TensorProto.INT4, [3])],
        opset=21,
    )
    second = write_model(
        "second",
        [helper.make_node("Cast", ["i"], ["y"], to=FLOAT)],
        [("i", TensorProto.INT4, [3])],
        [("y", FLOAT, [3])],
        opset=21,
    )
    sessions = [open_model(first), open_model(second)]
    results = Chain(sessions, ["x"], ["y", "i"]).run({"x": np.float32([-8, 7, 3])})
    assert results["y"].tolist() == [-8, 7, 3]
    assert results["i"].astype(np.int8).tolist() == [-8, 7, 3]
    again = sessions[1].run({"i": results["i"]}, ["y"])
    assert again["y"].tolist() == [-8, 7, 3]


def test_an_overridable_initializer_of_a_later_session_may_be_fed(
    write_model: WriteModel, open_model: OpenModel
) -> None:
    first = write_model(
        "first", [helper.make_node("Neg", ["x"], ["a"])], [("x", FLOAT, [2])], [("a", FLOAT, [2])]
    )
    second = write_model(
        "second",
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [("a", FLOAT, [2]), ("b", FLOAT, [2])],
        [("y", FLOAT, [2])],
        [constant("b", np.float32([10, 20]))],
    )
    chain = Chain([open_model(first), open_model(second)], ["x"], ["y"])
    assert chain.run({"x": X})["y"].tolist() == [9, 22]
    assert chain.run({"x": X, "b": X})["y"].tolist() == [0, 0]


def test_a_cancelled_run_ends_at_once_and_the_chain_goes_on_working(slow: Chain) -> None:
    cancel = Cancellation()
    timer = threading.Timer(0.05, cancel.cancel)
    timer.start()
    with pytest.raises(DeadlineExceeded):
        slow.run({"x": np.float32([0])}, ["y"], cancel)
    timer.join()
    other = Cancellation()
    timer = threading.Timer(0.05, other.cancel, [Busy("made room")])
    timer.start()
    with pytest.raises(Busy, match="made room"):
        slow.run({"x": np.float32([0])}, ["y"], other)
    timer.join()


def test_a_cancellation_stops_only_its_own_request(pair: Chain) -> None:
    stopped, going = Cancellation(), Cancellation()
    stopped.cancel()
    feeds = {"x": X, "k": X}
    assert stopped.is_cancelled
    with pytest.raises(DeadlineExceeded):
        pair.run(feeds, ["y"], stopped)
    assert pair.run(feeds, ["y"], going)["y"].tolist() == [5, -10]


def test_an_error_of_a_run_without_cancellation_stays_what_it_is(
    convnet: Path, open_model: OpenModel
) -> None:
    chain = Chain([open_model(convnet)], ["x"], ["y"])
    with pytest.raises(InputMismatch, match=r"got float32\[1,3,8,8\], want float32\[1,3,32,32\]"):
        chain.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
