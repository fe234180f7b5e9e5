"""The real command divides models of every kind, and its parts, run by nothing but the manifest
and plain ONNX Runtime, compute what the whole computes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.cli.main import main
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.tensors import Arrays
from models.inputs import standard_inputs
from tests.model.made_models import body, held, model, node, value

ROOT = Path(__file__).resolve().parents[2]
X = {"x": np.float32([1, -2, 3])}
FLAG = value("c", [], TensorProto.BOOL)


def edge_agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of the command as a user starts it."""
    command = [str(Path(sys.executable).with_name("edge-agent")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run_by_hand(folder: Path, inputs: Arrays) -> Arrays:
    """The outputs of the parts, by the script of the README as it is printed there."""
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"<!-- run_parts -->\s*```python\n(.*?)```", readme, re.DOTALL)
    assert found
    files = folder.parent / "in.npz", folder.parent / "out.npz"
    np.savez(files[0], **inputs)  # type: ignore[arg-type]
    script = [sys.executable, "-W", "error", "-c", found[1], str(folder), *map(str, files)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(files[1]) as outputs:
        return dict(outputs)


def run_whole(path: Path, inputs: Arrays) -> Arrays:
    """What plain ONNX Runtime computes."""
    whole = Session.open(path, threads=1, level=OptimisationLevel.ALL, plain=True)
    return whole.run(inputs, whole.output_names)


def legal(path: Path) -> list[str]:
    """Every number at which the command says that the model can be divided."""
    listed = edge_agent("split", str(path), "--list", "--all", "--json")
    assert listed.returncode == 0, listed.stderr
    cuts = json.loads(listed.stdout)["cuts"]
    return [f"position:{cut['position']}" for cut in cuts if cut["obstacle"] is None]


def check(path: Path, inputs: Arrays, cuts: Sequence[str], wanted: Arrays) -> dict[str, Any]:
    """Divide at `cuts`, check the files, run them by hand, and compare."""
    out = path.parent / "parts"
    at = [argument for cut in cuts for argument in ("--at", cut)]
    divided = edge_agent("split", str(path), *at, "--out", str(out), "--check", "--json")
    assert divided.returncode == 0, divided.stdout + divided.stderr
    told = json.loads(divided.stdout)
    assert all(o["wrong"] is None for c in told["comparisons"] for o in c["outputs"])
    manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    assert manifest == told["manifest"]
    assert len(manifest["parts"]) == len(cuts) + 1
    for part in manifest["parts"]:
        # ONNX allows values of unknown rank, as behind a loop; its checker does not.
        if all(v["dims"] is not None for v in part["inputs"] + part["outputs"]):
            onnx.checker.check_model(str(out / part["file"]), full_check=True)
        else:
            assert "onnx.checker refuses" in divided.stderr
    got = run_by_hand(out, inputs)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.abs(got[name] - array).max() <= 1e-5 * np.abs(array).max(), name
    return manifest


def capturing() -> Any:
    """Bodies that read values and a constant of the outer graph, two deep."""
    inner = node(
        "If",
        ["c"],
        ["u"],
        then_branch=body([node("Add", ["a", "m"], ["t2"])], [value("t2", [3])]),
        else_branch=body([node("Identity", ["m"], ["e2"])], [value("e2", [3])]),
    )
    outer = node(
        "If",
        ["c"],
        ["y"],
        then_branch=body([node("Mul", ["b", "w"], ["m"]), inner], [value("u", [3])]),
        else_branch=body([node("Identity", ["w"], ["e"])], [value("e", [3])]),
    )
    nodes = [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["b"]), outer]
    return model(nodes, [value("x", [3]), FLAG], [value("y", [3])], [held("w", [1.0, 2.0, 3.0])])


def hiding() -> Any:
    """A loop whose state is called like an outer value."""
    loop = body(
        [node("Add", ["a", "a"], ["twice"]), node("Identity", ["keep"], ["keep_on"])],
        [value("keep_on", [], TensorProto.BOOL), value("twice", [3])],
        inputs=[
            value("i", [], TensorProto.INT64),
            value("keep", [], TensorProto.BOOL),
            value("a", [3]),
        ],
    )
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("Abs", ["a"], ["b"]),
        node("Loop", ["times", "go", "b"], ["d"], body=loop),
        node("Add", ["d", "a"], ["y"]),
    ]
    constants = [held("times", np.array(2, np.int64)), held("go", np.array(True))]
    return model(nodes, [value("x", [3])], [value("y", [3])], constants)


def calling() -> Any:
    """Functions inside the model, one of which calls the other."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    twice = helper.make_function(
        "mine", "twice", ["v"], ["u"], [node("Add", ["v", "v"], ["u"])], opsets[:1]
    )
    four = helper.make_function(
        "mine",
        "four",
        ["v"],
        ["u"],
        [node("twice", ["v"], ["t"], domain="mine"), node("twice", ["t"], ["u"], domain="mine")],
        opsets,
    )
    nodes = [
        node("four", ["x"], ["a"], domain="mine"),
        node("Neg", ["a"], ["b"]),
        node("twice", ["b"], ["y"], domain="mine"),
    ]
    ends = [value("x", [3])], [value("y", [3])]
    return model(nodes, *ends, functions=[twice, four], domains=["mine"])


def giving_much() -> Any:
    """Outputs that are inputs, constants, intermediates, and one twice; unordered nodes, a dead
    one, and an unused input."""
    nodes = [
        node("Mul", ["b", "w"], ["y"]),
        node("Sqrt", ["w"], ["root"]),
        node("Add", ["x", "root"], ["a"]),
        node("Neg", ["a"], ["dead"]),
        node("Abs", ["a"], ["b"]),
    ]
    outputs = [value(name, [3]) for name in ("y", "a", "x", "w", "root", "y")]
    inputs = [value("x", [3]), value("spare", [2], TensorProto.INT64)]
    return model(nodes, inputs, outputs, [held("w", [1.0, 4.0, 9.0])])


def old() -> Any:
    """IR version 3: initializers are inputs too."""
    nodes = [node("Add", ["x", "w"], ["a"]), node("Mul", ["a", "w"], ["y"])]
    inputs = [value("x", [3]), value("w", [3])]
    constants = [held("w", [1.0, 2.0, 3.0])]
    return model(nodes, inputs, [value("y", [3])], constants, opset=9, ir_version=3)


def odd_names() -> Any:
    """Names that look like numbers, paths, options, and no names at all."""
    nodes = [
        node("Neg", ["x"], ["2"], name="same"),
        node("Abs", ["2"], ["../a b/;'\"c"], name="1"),
        node("Split", ["../a b/;'\"c"], ["", "--at"], axis=0),
        node("Neg", ["--at"], ["y"]),
    ]
    made = model(nodes, [value("x", [4])], [value("y", [2])], opset=13)
    made.graph.node[2].output[0] = "unused"
    return made


CASES: list[tuple[Callable[[], Any], Arrays, int]] = [
    (capturing, X | {"c": np.array(True)}, 2),
    (hiding, X, 3),
    (calling, X, 2),
    (giving_much, X | {"spare": np.array([1, 2])}, 2),
    (old, X, 1),
    (odd_names, {"x": np.float32([1, -2, 3, 4])}, 3),
]


@pytest.mark.parametrize(
    ("make", "inputs", "places"),
    [
        pytest.param(*case, id=case[0].__name__, marks=[pytest.mark.long] if at else [])
        for at, case in enumerate(CASES)
    ],
)
def test_a_model_divided_everywhere_computes_what_it_computes_whole(
    make: Callable[[], Any], inputs: Arrays, places: int, tmp_path: Path
) -> None:
    path = tmp_path / "made.onnx"
    onnx.save(make(), path)
    cuts = legal(path)
    assert len(cuts) == places
    check(path, inputs, cuts, run_whole(path, inputs))


def test_external_data_are_shared_out_to_the_parts_that_read_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weights = [held(n, rng.standard_normal((32, 32)).astype(np.float32)) for n in "abc"]
    nodes = [
        node("MatMul", ["x", "a"], ["p"]),
        node("MatMul", ["p", "b"], ["q"]),
        node("MatMul", ["q", "c"], ["r"]),
        node("Add", ["r", "a"], ["y"]),
    ]
    made = model(nodes, [value("x", [32, 32])], [value("y", [32, 32])], weights)
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "made.onnx"
    onnx.save(made, path, save_as_external_data=True, location="made.bin")
    inputs: Arrays = {"x": rng.standard_normal((32, 32)).astype(np.float32)}
    manifest = check(path, inputs, ["p", "q"], run_whole(path, inputs))
    (external,) = manifest["source"]["external_data"]
    assert (external["file"], external["bytes"]) == ("made.bin", 3 * 4096)
    assert [part["weights"]["bytes"] for part in manifest["parts"]] == [4096, 4096, 2 * 4096]
    assert sorted(p.name for p in path.parent.iterdir()) == [
        *("in.npz", "made.bin", "made.onnx", "out.npz", "parts")
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["split", "made.onnx", "--at", "nowhere"],
        ["split", "made.onnx", "--parts", "77"],
        ["split", "made.onnx", "--list", "--shape", "x=9"],
        ["split", "."],
        ["split", ".", "--list"],
        ["split", "/dev/null", "--list"],
        ["inspect", "gone.onnx"],
        ["inspect", "made.onnx", "--config", "gone.toml"],
    ],
)
def test_no_mistake_of_a_user_gives_a_traceback(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    onnx.save(hiding(), tmp_path / "made.onnx")
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as ended:
        # Of options that are none, with the usage.
        code = int(ended.code or 0)
    assert code in (2, 4)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"edge-agent {arguments[0]}: " in err
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["made.onnx"]


@pytest.mark.zoo
def test_a_real_model_in_parts_of_equal_work_computes_what_it_computes_whole(
    zoo: dict[str, Path], tmp_path: Path
) -> None:
    if "squeezenet" not in zoo:
        pytest.skip("squeezenet is not fetched: run tools/zoo")
    out = tmp_path / "parts"
    done = edge_agent("split", str(zoo["squeezenet"]), "--parts", "3", "--out", str(out))
    assert done.returncode == 0, done.stderr
    inputs = standard_inputs("squeezenet", 1)
    wanted = run_whole(zoo["squeezenet"], inputs)
    got = run_by_hand(out, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-6, err_msg=name)
