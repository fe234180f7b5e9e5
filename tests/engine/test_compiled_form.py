"""Forms on the CPU provider, which keeps graphs; tests/units looks at others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from edge_agent.devices import Keeping, ProviderUse
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.compiled_form import CompiledForm, NoForm, agrees, compile_on
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import DeadlineExceeded
from tests.engine.graphs import OpenModel, WriteModel, constant

CPU = ProviderUse(provider="CPUExecutionProvider")
IMAGE = {"x": np.random.default_rng(3).random((1, 3, 32, 32), dtype=np.float32)}


def test_a_graph_is_kept_and_opens_again_with_equal_outputs(
    convnet: Path, open_model: OpenModel, tmp_path: Path
) -> None:
    found = compile_on(CPU, Keeping.GRAPH, convnet, tmp_path / "kept", IMAGE)
    assert isinstance(found, CompiledForm)
    assert found.graph == tmp_path / "kept" / "graph.onnx"
    assert found.open_s > 0
    assert found.reopen_s > 0
    again = Session.open(found.graph, threads=1, level=OptimisationLevel.NONE)
    want = open_model(convnet).run(IMAGE, ["y"])["y"]
    np.testing.assert_array_equal(again.run(IMAGE, ["y"])["y"], want)


def test_a_provider_that_writes_no_context_keeps_nothing_and_leaves_no_file(
    convnet: Path, tmp_path: Path
) -> None:
    found = compile_on(CPU, Keeping.CONTEXT, convnet, tmp_path / "kept", IMAGE)
    assert isinstance(found, NoForm)
    assert found.because == "CPUExecutionProvider wrote no context"
    assert list(tmp_path.iterdir()) == [convnet]


def test_nothing_is_tried_where_nothing_is_kept(tmp_path: Path) -> None:
    found = compile_on(CPU, Keeping.NOTHING, tmp_path / "none.onnx", tmp_path / "kept", {})
    assert found == NoForm(because="CPUExecutionProvider keeps nothing")


def test_a_graph_that_does_not_open_has_no_form(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    found = compile_on(CPU, Keeping.GRAPH, tmp_path / "broken.onnx", tmp_path / "kept", {})
    assert isinstance(found, NoForm)
    assert "ONNX Runtime refuses it" in found.because


@pytest.mark.parametrize(
    ("got", "want", "is_close"),
    [
        (np.float32([1.0, 0.0]), np.float32([1.0009, 0.0009]), True),
        (np.float32([1.0, 0.0]), np.float32([1.0, 0.002]), False),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), True),
        (np.float32([np.nan, 1.0]), np.float32([0.0, 1.0]), False),
        (np.float32([1.0]), np.float32([[1.0]]), False),
        (np.int64([1000]), np.int64([1001]), False),
        (np.array(["a"], object), np.array(["a"], object), True),
        ([1, 2], [1, 2], True),
        (None, None, True),
    ],
)
def test_floats_agree_to_a_thousandth_and_all_else_exactly(
    got: object, want: object, is_close: bool
) -> None:
    assert agrees(got, want) is is_close


def test_an_input_that_loses_its_default_has_no_form(
    write_model: WriteModel, tmp_path: Path
) -> None:
    floats = TensorProto.FLOAT
    path = write_model(
        "defaults",
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "v"], ["y"])],
        [("x", floats, [2]), ("w", floats, [2]), ("v", floats, [2])],
        [("y", floats, [2])],
        [constant("w", np.ones(2, np.float32)), constant("v", np.ones(2, np.float32))],
        ir_version=3,
    )
    feeds = {"x": np.ones(2, np.float32)}
    found = compile_on(CPU, Keeping.GRAPH, path, tmp_path / "kept", feeds)
    assert isinstance(found, NoForm)
    assert found.because == 'the optimised graph that it wrote differs in input "w"'


def test_a_cancelled_run_ends_with_its_reason(convnet: Path, tmp_path: Path) -> None:
    cancel = Cancellation()
    cancel.cancel()
    with pytest.raises(DeadlineExceeded):
        compile_on(CPU, Keeping.GRAPH, convnet, tmp_path / "kept", IMAGE, cancel)
    assert list(tmp_path.iterdir()) == [convnet]
