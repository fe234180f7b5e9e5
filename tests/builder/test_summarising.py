"""Model files as planning over devices needs them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edge_agent.builder.summarising import summarise_file
from edge_agent.config import Limits
from edge_agent.errors import ModelRefused, UsageError
from edge_agent.subgraphs import ModelId
from tests.model.made_models import model, node, value
from tests.system.made_models import adding, convolving


def test_a_model_has_the_bytes_of_its_inputs_and_outputs_and_the_id_of_its_file(
    tmp_path: Path,
) -> None:
    path = convolving(tmp_path / "net.onnx")
    found = summarise_file(path, Limits(), {}, [])
    image_bytes = 4 * 32 * 28 * 28
    assert (found.input_bytes, found.output_bytes) == (image_bytes, image_bytes)
    assert found.summary.model == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [cut.position for cut in found.summary.cuts] == [2, 4, 6]
    assert (found.pinned, found.notes) == ((None,) * 4, ())


def test_given_shapes_are_what_bytes_are_counted_for(tmp_path: Path) -> None:
    path = adding(tmp_path / "m.onnx")
    assert summarise_file(path, Limits(), {"x": (5, 3)}, []).input_bytes == 60


def test_an_input_that_nothing_reads_is_not_sent(tmp_path: Path) -> None:
    made = model(
        [node("Neg", ["x"], ["y"])], [value("x", [3]), value("idle", [9])], [value("y", [3])]
    )
    onnx.save(made, tmp_path / "m.onnx")
    assert summarise_file(tmp_path / "m.onnx", Limits(), {}, []).input_bytes == 12


def test_sizes_that_depend_on_values_are_not_known_and_that_is_told(tmp_path: Path) -> None:
    nodes = [node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["y"], to=1)]
    onnx.save(model(nodes, [value("x", [3])], [value("y", None)]), tmp_path / "m.onnx")
    found = summarise_file(tmp_path / "m.onnx", Limits(), {}, [])
    assert (found.input_bytes, found.output_bytes) == (12, None)
    (note,) = found.notes
    assert note.startswith('the size of output "y" (')
    assert "is not known before it is computed, so the last segment runs on the owner" in note


def test_inputs_whose_sizes_nobody_knows_are_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    made = model(
        [node("Reshape", ["x", "to"], ["y"])],
        [value("x", ["n"])],
        [value("y", [7, 11, 13])],
        [numpy_helper.from_array(np.array([7, 11, 13], np.int64), "to")],
    )
    onnx.save(made, path)
    with pytest.raises(UsageError, match=r'input "x": its size is not known .* --shape'):
        summarise_file(path, Limits(), {}, [])
    assert summarise_file(path, Limits(), {"x": (1001,)}, []).input_bytes == 4004


def test_segments_are_pinned_where_their_nodes_are(tmp_path: Path) -> None:
    path = convolving(tmp_path / "net.onnx")
    found = summarise_file(path, Limits(), {}, [("r0", "pi"), ("c0", "pi"), ("y", "lab/gpu")])
    assert found.pinned[0] == "pi"
    assert found.pinned[-1] == "lab/gpu"
    assert set(found.pinned[1:-1]) == {None}


def test_a_pin_of_no_node_is_refused(tmp_path: Path) -> None:
    path = convolving(tmp_path / "net.onnx")
    with pytest.raises(UsageError, match='no node has a name like "conv'):
        summarise_file(path, Limits(), {}, [("conv*", "pi")])


def test_pins_that_cannot_be_parted_are_refused(tmp_path: Path) -> None:
    nodes = [node("Bernoulli", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    onnx.save(model(nodes, [value("x", [3])], [value("y", [3])]), tmp_path / "m.onnx")
    with pytest.raises(ModelRefused, match="pinned where it cannot be divided"):
        summarise_file(tmp_path / "m.onnx", Limits(), {}, [("a", "pi"), ("y", "lab")])


def test_measured_models_are_divided_as_they_were_measured(tmp_path: Path) -> None:
    """Two branches of convolutions: parted for forks, but not where times are valid without."""
    path = _branching(tmp_path / "m.onnx")
    forked = summarise_file(path, Limits(), {}, [])
    assert forked.summary.forks
    plain = summarise_file(path, Limits(), {}, [], [ModelId(forked.summary.model)])
    assert plain.summary.forks == ()


def _branching(path: Path) -> Path:
    kernel = np.full((16, 16, 3, 3), 0.01, np.float32)
    weights, nodes, ends = [], [], []
    for branch in "ab":
        before = "s"
        for i in range(4):
            name = f"{branch}{i}"
            weights.append(numpy_helper.from_array(kernel, f"w{name}"))
            nodes.append(node("Conv", [before, f"w{name}"], [name], pads=[1, 1, 1, 1]))
            before = name
        ends.append(before)
    nodes = [node("Neg", ["x"], ["s"]), *nodes, node("Concat", ends, ["y"], axis=1)]
    inputs, outputs = [value("x", [1, 16, 28, 28])], [value("y", [1, 32, 28, 28])]
    onnx.save(model(nodes, inputs, outputs, weights), path)
    return path
