"""Which cuts are offered, which ones give even parts, and what is written of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edge_agent.builder.comparing import WholeModel
from edge_agent.builder.dividing import even_cuts, list_cuts, named_cuts, planned_cuts
from edge_agent.builder.parts import Manifest, write_parts
from edge_agent.builder.source import Sizes, general, read_in_place, sized
from edge_agent.config import Limits
from edge_agent.errors import ModelRefused, UsageError
from edge_agent.model.graph import ModelGraph
from tests.model.made_models import held, model, node, run, value
from tests.system.made_models import convolving


class Divided:
    """A model that is divided in a folder of the test."""

    def __init__(self, path: Path) -> None:
        self.graph: ModelGraph = read_in_place(path, Limits())
        self.sizes: Sizes = sized(self.graph, {})
        self.planned, self.reason = planned_cuts(self.graph, self.sizes)
        self.target = path.with_name("parts")

    def write(self, *cuts: int) -> Manifest:
        return write_parts(self.graph, cuts, general(self.graph), self.sizes.specs, self.target)


@pytest.fixture
def convolutions(tmp_path: Path) -> Divided:
    return Divided(convolving(tmp_path / "net.onnx"))


def test_cuts_worth_planning_with_are_listed_with_what_crosses(convolutions: Divided) -> None:
    listed = list_cuts(
        convolutions.graph, convolutions.sizes.specs, convolutions.planned, is_all=False
    )
    assert [cut.position for cut in listed] == [2, 4, 6]
    assert [round(cut.work_before_fraction, 2) for cut in listed] == [0.25, 0.5, 0.75]
    middle = listed[1]
    assert (middle.before, middle.behind) == ("node 3 (Relu)", "node 4 (Conv)")
    assert [(v.name, v.type) for v in middle.crossing] == [("r1", "float32[1,32,28,28]")]
    assert middle.crossing_bytes == 32 * 28 * 28 * 4
    assert middle.is_planned


def test_all_places_are_listed_on_request(convolutions: Divided) -> None:
    listed = list_cuts(
        convolutions.graph, convolutions.sizes.specs, convolutions.planned, is_all=True
    )
    assert [cut.position for cut in listed] == list(range(1, 8))
    assert [cut.is_planned for cut in listed] == [False, True] * 3 + [False]
    assert all(cut.obstacle is None for cut in listed)


def test_parts_of_equal_work_are_cut_where_it_is_worth_it(convolutions: Divided) -> None:
    of = convolutions
    assert even_cuts(of.graph, of.sizes.specs, of.planned, 2) == ((4,), None)
    assert even_cuts(of.graph, of.sizes.specs, of.planned, 4) == ((2, 4, 6), None)
    cuts, note = even_cuts(of.graph, of.sizes.specs, of.planned, 8)
    assert cuts == tuple(range(1, 8))
    assert note is not None
    assert note.startswith("only 3 of the 7 places are worth planning with")
    with pytest.raises(ModelRefused, match="into 9 parts: it has 7 places"):
        even_cuts(of.graph, of.sizes.specs, of.planned, 9)


def test_names_may_come_in_any_order_but_not_twice(convolutions: Divided) -> None:
    of = convolutions
    assert named_cuts(of.graph, of.sizes.specs, ["6", "r0"]) == (2, 6)
    with pytest.raises(UsageError, match="--at r0: is the same place as --at 2"):
        named_cuts(of.graph, of.sizes.specs, ["2", "r0"])


def special(folder: Path) -> Path:
    """y = |x + w| · 2 is given twice, and so are x, w and what is inside, and n is needed by
    nothing."""
    nodes = [
        node("Add", ["x", "w"], ["a"]),
        node("Abs", ["a"], ["b"]),
        node("Mul", ["b", "two"], ["y"]),
        node("Neg", ["y"], ["n"]),
    ]
    given = [value(n, ["N", 3]) for n in ("y", "x", "a", "y")]
    made = model(
        nodes,
        [value("x", ["N", 3]), value("spare", [1], TensorProto.INT64)],
        [*given, value("w", [3])],
        [held("w", [1.0, 2.0, 3.0]), held("two", np.float32(2))],
    )
    onnx.save(made, folder / "special.onnx")
    return folder / "special.onnx"


def test_the_manifest_says_where_everything_comes_from(tmp_path: Path) -> None:
    divided = Divided(special(tmp_path))
    made = divided.write(1, 2)
    kept = json.loads((divided.target / "manifest.json").read_text())
    assert kept["form"] == 1
    assert kept["source"]["file"] == "special.onnx"
    content = (tmp_path / "special.onnx").read_bytes()
    assert kept["source"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert kept["opsets"] == {"ai.onnx": 17}
    assert [(i["name"], i["type"], i["dims"], i["read_by"]) for i in kept["inputs"]] == [
        ("x", "float32", ["N", 3], [1]),
        ("spare", "int64", [1], []),
    ]
    assert [(o["name"], o["from_part"]) for o in kept["outputs"]] == [
        ("y", 3),
        ("x", None),
        ("a", 1),
        ("y", 3),
        ("w", 1),
    ]
    assert [
        ([i["name"] for i in p["inputs"]], [o["name"] for o in p["outputs"]], p["nodes"])
        for p in kept["parts"]
    ] == [(["x"], ["w", "a"], [0, 1]), (["a"], ["b"], [1, 2]), (["b"], ["y"], [2, 4])]
    assert kept["parts"][1]["inputs"] == [
        {"name": "a", "type": "float32", "dims": ["N", 3], "from_part": 1}
    ]
    (first, second) = kept["cuts"]
    assert first["position"] == 1
    assert first["crossing"] == [
        {"name": "a", "type": "float32", "dims": ["N", 3], "from_part": 1, "bytes": 12}
    ]
    assert second["bytes"] == 12
    for part, file in zip(made.parts, kept["parts"], strict=True):
        assert part.weights is None
        content = (divided.target / file["file"]).read_bytes()
        assert file["bytes"] == len(content)
        assert file["sha256"] == hashlib.sha256(content).hexdigest()


def test_the_files_of_the_parts_are_valid_and_compute_the_whole(convolutions: Divided) -> None:
    manifest = convolutions.write(2, 5)
    values: Any = {"x": np.random.default_rng(0).standard_normal((1, 32, 28, 28)).astype("f")}
    wanted = run(convolutions.graph.path, values)["y"]
    for part in manifest.parts:
        path = convolutions.target / part.file
        onnx.checker.check_model(str(path), full_check=True)
        assert part.weights is not None
        weights = path.with_name(part.weights.file).read_bytes()
        assert part.weights.sha256 == hashlib.sha256(weights).hexdigest()
        values |= run(path, {i.name: values[i.name] for i in part.inputs})
    np.testing.assert_array_equal(values["y"], wanted)


def test_a_model_that_changes_meanwhile_is_told_and_nothing_is_left(
    convolutions: Divided, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = iter([(1,), (2,)])
    monkeypatch.setattr("edge_agent.builder.parts.stamp", lambda _: next(stamps))
    with pytest.raises(ModelRefused, match="was changed while it was divided"):
        convolutions.write(2)
    assert not convolutions.target.exists()


def test_right_parts_are_right_at_every_level(convolutions: Divided) -> None:
    whole = WholeModel(convolutions.graph, {}, rounds=2, seed=0)
    manifest = convolutions.write(3)
    compared = whole.compare([convolutions.target / p.file for p in manifest.parts])
    assert [(c.level.value, c.rounds, c.is_right) for c in compared] == [
        ("none", 2, True),
        ("all", 2, True),
    ]
    (output,) = compared[0].outputs
    assert (output.name, output.type, output.wrong) == ("y", "float32", None)
    assert output.largest_difference == output.largest_relative_difference == 0.0


def test_a_part_that_computes_something_else_is_wrong(convolutions: Divided) -> None:
    whole = WholeModel(convolutions.graph, {}, rounds=2, seed=0)
    manifest = convolutions.write(2)
    last = convolutions.target / manifest.parts[1].file
    changed = onnx.load(last, load_external_data=False)
    changed.graph.node[1].op_type = "Abs"
    last.write_bytes(changed.SerializeToString())
    compared = whole.compare([convolutions.target / p.file for p in manifest.parts])
    (output,) = compared[0].outputs
    assert not compared[0].is_right
    assert output.largest_difference > 0.1
    assert output.wrong is not None
    assert 'output "y": differs by' in output.wrong


def saved(made: Any, folder: Path) -> ModelGraph:
    onnx.save(made, folder / "m.onnx")
    return read_in_place(folder / "m.onnx", Limits())


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    ends = [value("x", [3])], [value("y", [3])]
    drawing = [node("RandomNormalLike", ["x"], ["a"]), node("Add", ["x", "a"], ["y"])]
    with pytest.raises(ModelRefused, match=r"node 0 \(RandomNormalLike\) draws random numbers"):
        WholeModel(saved(model(drawing, *ends), tmp_path), {}, rounds=1, seed=0)
    picking = model([node("Gather", ["w", "i"], ["y"])], [value("i", [1], 7)], [value("y", [0])])
    picking.graph.initializer.append(held("w", np.zeros((0,), np.float32)))
    with pytest.raises(ModelRefused, match="does not run on random inputs"):
        WholeModel(saved(picking, tmp_path), {}, rounds=1, seed=0)
