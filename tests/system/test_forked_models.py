"""Real models that fork: what the branches compute one by one is what the run of nodes computes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from edge_agent.builder.specs import inner_specs
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.model.divide import summarise
from edge_agent.model.extract import ExtractedSubgraph, extract, extract_branch
from edge_agent.model.graph import ModelGraph
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays, TensorName
from models.inputs import standard_inputs

pytestmark = pytest.mark.zoo

FORKS = {
    "arname_decoder": 2,
    "minilm_int8": 6,
    "ppocr_det": 2,
    "squeezenet": 2,
    "tashkeel_ensemble_int8": 1,
}
"""How many each model has."""
LARGE_FORKS = {
    "inception_v1": 9,
    "inception_v2": 10,
    # Where a block changes the width, the shortcut has a convolution of its own.
    "resnet50": 4,
    "resnet50_qoperator": 3,
    "slanet_plus": 4,
}
NO_FORKS = ("densenet121", "silero_ifless", "silero_vad")


def _run(part: ExtractedSubgraph, values: Arrays) -> Arrays:
    if not part.outputs:
        return {}
    session = Session.open(part.path, threads=1, level=OptimisationLevel.NONE)
    return session.run({name: values[name] for name in part.inputs}, part.outputs)


def check_model(name: str, zoo: dict[str, Path], folder: Path, wanted: int) -> None:
    """Run the model from fork to fork, each fork whole and in its branches."""
    if name not in zoo:
        pytest.skip(f"{name} is not fetched: run tools/zoo")
    graph = ModelGraph.load(zoo[name])
    values: Arrays = dict(standard_inputs(name, 1))
    shapes = {TensorName(n): array.shape for n, array in values.items()}
    specs = inner_specs(graph, shapes, folder / "probe.onnx")
    summary = summarise(graph, ModelId("m"), shapes, specs, with_forks=True)
    assert len(summary.forks) == wanted
    plain = summarise(graph, ModelId("m"), shapes, specs)
    cuts = {cut.position for cut in summary.cuts}
    assert {cut.position for cut in plain.cuts} <= cuts
    assert len(summary.segments) <= len(plain.segments) + 2 * wanted
    bounds = [segment.start for segment in summary.segments] + [len(graph.nodes)]
    forks = {bounds[fork.segments.start]: fork for fork in summary.forks}
    edges = {at for f in summary.forks for at in (f.segments.start, f.segments.stop)}
    between = sorted({0, len(graph.nodes), *(bounds[at] for at in edges)})
    for start, stop in itertools.pairwise(between):
        given = _run(extract(graph, start, stop, folder / f"{start}.onnx", specs), values)
        if start in forks:
            got: Arrays = {}
            for index, branch in enumerate(forks[start].branches):
                path = folder / f"{start}-{index}.onnx"
                got |= _run(extract_branch(graph, branch.nodes, path, specs), values)
            assert got.keys() == given.keys()
            for value, want in given.items():
                np.testing.assert_array_equal(got[value], want, err_msg=f"{name}: {value}")
        values |= given


@pytest.mark.parametrize("name", FORKS)
def test_branches_of_a_real_model_compute_what_they_compute_together(
    name: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    check_model(name, zoo, tmp_path, FORKS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE_FORKS)
def test_branches_of_any_real_model_compute_what_they_compute_together(
    name: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    check_model(name, zoo, tmp_path, LARGE_FORKS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", NO_FORKS)
def test_a_chain_has_no_forks(name: str, zoo: dict[str, Path], tmp_path: Path) -> None:
    check_model(name, zoo, tmp_path, 0)
