"""Two parts on one GPU, channels-last: nothing is turned between them, and the values are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_agent.builder.benches import Subject, WholeBench
from edge_agent.devices import ComputeUnit, Layout
from edge_agent.model.graph import ModelGraph
from edge_agent.profiles import Configuration
from tests.builder.test_borders import SHAPE, divided, made_workshop
from tests.builder.test_workshop import quiet_slices
from tests.model.nhwc_graphs import node, value, write

Unit = Callable[[str], ComputeUnit]


def write_two_convolutions(path: Path) -> Path:
    channels = SHAPE[1]
    rng = np.random.default_rng(2)
    kernels = {
        f"w{i}": rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) / 8
        for i in range(2)
    }
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w1", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "y"),
    ]
    return write(path, nodes, [value("x", SHAPE)], [value("y", SHAPE)], kernels)


@pytest.mark.parametrize("name", ["webgpu", "cuda"])
@pytest.mark.parametrize(("layout", "crossing"), [(Layout.NHWC, {"b"}), (Layout.NCHW, set())])
def test_a_value_crosses_channels_last_where_a_gpu_computes_so(
    unit: Unit, name: str, tmp_path: Path, layout: Layout, crossing: set[str]
) -> None:
    one = unit(name)
    configuration = Configuration(unit=one.id, layout=layout, threads=0)
    graph = ModelGraph.load(write_two_convolutions(tmp_path / "m.onnx"))
    with made_workshop(tmp_path, graph) as workshop:
        sample = {"x": np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)}
        subject = Subject(
            workshop=workshop,
            samples=(sample,),
            cores=(0,),
            plain_threads=1,
            is_quantised=False,
            units=(one,),
        )
        plan = divided(workshop, 1, using=configuration)
        assert workshop.last_between(plan.subgraphs, subject.use) == crossing
        assert WholeBench(subject, quiet_slices(), 1).check(plan) is None
