"""Values between two subgraphs on one accelerator stay in its memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge_agent.devices import ComputeUnit
from edge_agent.engine.chain import Chain
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from tests.units.made import float_net, picture

Unit = Callable[[str], ComputeUnit]
CUTS = (0, 2, 4, 8)


def halves(unit: ComputeUnit, folder: Path) -> list[Session]:
    """The float net in three parts, in the unit's layouts in turn."""
    whole = folder / "whole.onnx"
    whole.write_bytes(float_net())
    graph = ModelGraph.load(whole)
    specs = infer_specs(graph, {})
    sessions = []
    for i, (start, stop) in enumerate(pairwise(CUTS)):
        path = folder / f"{start}.onnx"
        extract(graph, start, stop, path, specs)
        use = unit.use(unit.layouts[i % len(unit.layouts)], 0)
        sessions.append(Session.open(path, threads=1, level=OptimisationLevel.ALL, use=use))
    return sessions


@pytest.mark.parametrize("name", ["webgpu", "cuda"])
def test_a_chain_on_an_accelerator_gives_what_the_whole_gives(
    unit: Unit, name: str, tmp_path: Path
) -> None:
    sessions = halves(unit(name), tmp_path)
    plain = Session.open(tmp_path / "whole.onnx", threads=1, level=OptimisationLevel.ALL)
    want = plain.run({"x": picture()}, ["y"])["y"]
    got = Chain(sessions, ["x"], ["y"]).run({"x": picture()})["y"]
    np.testing.assert_allclose(got, want, atol=1e-2 * np.abs(want).max())


@pytest.mark.parametrize("name", ["webgpu", "cuda"])
def test_what_stays_is_not_in_the_memory_of_the_host(unit: Unit, name: str, tmp_path: Path) -> None:
    first, *_ = halves(unit(name), tmp_path)
    (output, *others) = first.output_names
    values = first.compute({"x": picture()}, [output, *others], None, staying=[output])
    assert values[output].device_name() != "cpu"
    assert all(values[other].device_name() == "cpu" for other in others)
    np.testing.assert_array_equal(
        values[output].numpy(), first.run({"x": picture()}, [output])[output]
    )
