"""What real providers keep of a graph, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_agent.devices import ComputeUnit, Keeping
from edge_agent.engine.compiled_form import CompiledForm, NoForm, compile_on, with_keeping
from edge_agent.engine.placing import create
from edge_agent.engine.session import OptimisationLevel, session_options
from edge_agent.engine.tiny import quantised_model

Unit = Callable[[str], ComputeUnit]
SIDE = 16


@pytest.mark.parametrize(
    ("name", "keeps"),
    [("cpu", Keeping.GRAPH), ("webgpu", Keeping.GRAPH), ("qnn", Keeping.CONTEXT)],
)
def test_what_a_unit_keeps_opens_again(
    unit: Unit, name: str, keeps: Keeping, tmp_path: Path
) -> None:
    chosen = unit(name)
    assert with_keeping(chosen).keeps is keeps
    source = tmp_path / "source.onnx"
    source.write_bytes(quantised_model(SIDE, bytes(range(SIDE)) * SIDE, 2.0))
    feeds = {"x": np.ones((SIDE, SIDE), np.float32)}
    use = chosen.use(chosen.layouts[0], 1)
    found = compile_on(use, keeps, source, tmp_path / "kept", feeds)
    if name == "webgpu":
        # It has no kernel for QuantizeLinear, and no form of a part is kept.
        assert isinstance(found, NoForm)
        assert "does not take all nodes" in found.because
        return
    assert isinstance(found, CompiledForm)
    moved = found.graph.parent.rename(tmp_path / "moved") / found.graph.name
    want = create(source, session_options(OptimisationLevel.ALL, 1), use).run(["y"], feeds)
    again = create(moved, session_options(OptimisationLevel.NONE, 1), use).run(["y"], feeds)
    np.testing.assert_array_equal(again[0], want[0])


def test_a_context_that_cannot_be_read_again_is_told(unit: Unit, tmp_path: Path) -> None:
    """OpenVINO 2025.4 writes one on its CPU device; another version may read it."""
    found_unit = with_keeping(unit("openvino"))
    if found_unit.keeps is Keeping.NOTHING:
        assert "the context that it wrote does not open" in found_unit.keeps_nothing_because
    else:
        assert found_unit.keeps is Keeping.CONTEXT
        assert found_unit.keeps_nothing_because == ""
    assert list(tmp_path.iterdir()) == []
