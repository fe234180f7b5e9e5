from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_agent.devices import ComputeUnit, Layout, UnitId, UnitKind
from edge_agent.model.refusable import rules_against
from edge_agent.model.specs import infer_specs
from tests.model.made_models import graph_of, held, model, node, value


def unit(*, floats: bool = True, open_dimensions: bool = True) -> ComputeUnit:
    return ComputeUnit(
        id=UnitId("npu"),
        kind=UnitKind.NPU,
        provider="NpuExecutionProvider",
        provider_version="1",
        layouts=(Layout.NATIVE,),
        cores=0,
        takes_floats=floats,
        takes_open_dimensions=open_dimensions,
    )


def against(made: object, folder: Path, of: ComputeUnit) -> tuple[str, ...]:
    graph = graph_of(made, folder)
    return rules_against(graph, infer_specs(graph, {}), of)


def test_a_node_with_an_open_dimension_is_named_with_the_tensor(tmp_path: Path) -> None:
    made = model(
        [node("Relu", ["x"], ["a"]), node("Relu", ["w"], ["b"])],
        [value("x", ["n", 3]), value("w", [2])],
        [value("a", ["n", 3]), value("b", [2])],
    )
    found = against(made, tmp_path, unit(open_dimensions=False))
    assert found == ('"x" is float32[n,3], and the unit takes fixed dimensions only', "")
    assert against(made, tmp_path, unit()) == ("", "")


def test_floats_are_refused_but_between_dequantised_and_quantised(tmp_path: Path) -> None:
    steps = [held("s", 0.5), held("z", np.uint8(0)), held("w", np.eye(2))]
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("MatMul", ["d", "w"], ["m"]),
        node("QuantizeLinear", ["m", "s", "z"], ["p"]),
        node("DequantizeLinear", ["p", "s", "z"], ["e"]),
        node("Relu", ["e"], ["y"]),
    ]
    made = model(nodes, [value("x", [2, 2])], [value("y", [2, 2])], steps)
    floats = "it computes in float32, and the unit only in quantised integers"
    assert against(made, tmp_path, unit(floats=False)) == ("", "", "", "", "", floats)
    assert against(made, tmp_path, unit()) == ("",) * 6
