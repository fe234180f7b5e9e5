"""`split` and `inspect`: options, what is printed where, and how they end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.cli.main import main
from tests.model.made_models import model, node, value
from tests.system.made_models import adding, convolving

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return convolving(tmp_path / "net.onnx")


def test_the_cut_points_are_listed_in_a_table(net: Path, capsys: Shown) -> None:
    assert main(["split", str(net), "--list"]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split("  ")[0] == "cut"
    assert [row.split()[0] for row in rows] == ["2", "4", "6"]
    assert rows[0].endswith("98.0 KiB  25.0%        yes       r0 float32[1,32,28,28]")


def test_every_place_is_listed_with_the_reason_against_it(tmp_path: Path, capsys: Shown) -> None:
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("Abs", ["a"], ["y"]),
        node("Neg", ["y"], ["unused"]),
    ]
    made = model(nodes, [value("x", [3])], [value("y", [3])])
    onnx.save(made, tmp_path / "m.onnx")
    assert main(["split", str(tmp_path / "m.onnx"), "--list", "--all"]) == 0
    shown = capsys.readouterr().out
    assert "impossible" in shown
    assert "cannot be divided at 2: nothing behind it is an output of the model" in shown


def test_the_list_as_json_has_everything(net: Path, capsys: Shown) -> None:
    assert main(["split", str(net), "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["shapes"] == {"x": [1, 32, 28, 28]}
    assert [cut["position"] for cut in listed["cuts"]] == [2, 4, 6]
    assert listed["cuts"][0]["crossing"][0]["size_bytes"] == 100352


def test_a_model_without_cut_points_says_why(tmp_path: Path, capsys: Shown) -> None:
    assert main(["split", str(adding(tmp_path / "m.onnx")), "--list", "--shape", "x=1x3"]) == 0
    assert "no cut point is worth planning with: it has 1 node" in capsys.readouterr().out


def test_parts_go_beside_the_model_and_are_not_replaced_unasked(net: Path, capsys: Shown) -> None:
    assert main(["split", str(net), "--parts", "2"]) == 0
    target = net.with_name("net-parts")
    shown = capsys.readouterr().out
    assert shown.endswith(f"2 parts and manifest.json in {target}\n")
    assert sorted(path.name for path in target.iterdir()) == [
        "manifest.json",
        "part-1.onnx",
        "part-1.onnx.weights",
        "part-2.onnx",
        "part-2.onnx.weights",
    ]
    before = (target / "manifest.json").read_text()
    assert main(["split", str(net), "--at", "2"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (target / "manifest.json").read_text() == before
    assert main(["split", str(net), "--at", "2", "--force"]) == 0
    assert json.loads((target / "manifest.json").read_text())["cuts"][0]["position"] == 2


def test_several_cuts_by_name_give_one_part_more(net: Path, tmp_path: Path, capsys: Shown) -> None:
    out = tmp_path / "elsewhere"
    arguments = ["--at", "r2", "--at", "2", "--out", str(out), "--json"]
    assert main(["split", str(net), *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(out)
    assert told["comparisons"] == []
    assert told["manifest"] == json.loads((out / "manifest.json").read_text())
    assert [part["nodes"] for part in told["manifest"]["parts"]] == [[0, 2], [2, 6], [6, 8]]


def test_the_check_prints_the_largest_differences(net: Path, capsys: Shown) -> None:
    assert main(["split", str(net), "--at", "3", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "optimisation none, 3 rounds of random inputs: right" in shown
    assert "optimisation all, 3 rounds of random inputs: right" in shown
    assert "y       float32  0                   0" in shown


def test_wrong_parts_end_with_1(net: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.builder.comparing.disagreement", lambda *_, **__: "off by 3")
    assert main(["split", str(net), "--parts", "2", "--check"]) == 1
    shown = capsys.readouterr().out
    assert shown.count(": WRONG") == 2
    assert "off by 3" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--parts", "1"], "--parts: got 1, want 2 to 4096"),
        (["--parts", "9999"], "--parts: got 9999"),
        (["--at", "r9"], "--at r9: no value or node of the main graph is called so"),
        (["--at", "2", "--at", "r0"], "is the same place as"),
        (["--at", "2", "--all"], "--all: goes with --list"),
        (["--list", "--out", "d"], "--list: writes nothing"),
        (["--list", "--check"], "--list: writes nothing"),
        (["--at", "2", "--seed", "-1"], "--seed: got -1"),
        (["--at", "2", "--shape", "x"], "--shape x: want INPUT=SIZE"),
        (["--at", "2", "--shape", "x=1x2"], 'shape of input "x": got [1,2]'),
        (["--at", "2", "--shape", "z=1"], 'a shape for "z"'),
        (["--at", "2", "--out", "/no/such/folder"], "there is no folder /no/such; make it first"),
    ],
)
def test_a_wrong_option_ends_with_2_and_writes_nothing(
    arguments: list[str], says: str, net: Path, capsys: Shown
) -> None:
    assert main(["split", str(net), *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("edge-agent split: ")
    assert says in shown.err
    assert [path.name for path in net.parent.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize("command", [["split", "--parts", "2"], ["inspect"]])
def test_a_bad_file_ends_with_4_and_leaves_nothing(
    command: list[str], tmp_path: Path, capsys: Shown
) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    for name, says in {"bad.onnx": "no ONNX model", "gone.onnx": "no such file"}.items():
        assert main([*command, str(tmp_path / name)]) == 4
        assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.onnx"]


def test_more_parts_than_places_are_refused(net: Path, capsys: Shown) -> None:
    assert main(["split", str(net), "--parts", "9"]) == 4
    assert "cannot be divided into 9 parts: it has 7 places" in capsys.readouterr().err


@pytest.mark.parametrize("what", [[], ["--at", "2", "--list"], ["--parts", "x"]])
def test_one_thing_has_to_be_asked(what: list[str], net: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["split", str(net), *what])
    assert end.value.code == 2


def test_a_model_is_shown_in_sections(net: Path, capsys: Shown) -> None:
    assert main(["inspect", str(net)]) == 0
    shown = capsys.readouterr().out
    for line in (
        "opsets ai.onnx 17",
        "8 nodes, 0 of them constant; 0 functions",
        "144.0 KiB of weights",
        "input x: float32[1,32,28,28]",
        "\nOperators\n\noperator  nodes\nConv      4\n",
        "\nSegments\n",
        "\nCut points\n",
        "\nHazards\n\nnodes without a name: 8\n  node 0 (Conv)\n",
        "  and 5 more\n  → they are called by their index in the file\n",
    ):
        assert line in shown


def test_a_model_is_shown_as_json_and_as_a_drawing(net: Path, capsys: Shown) -> None:
    assert main(["inspect", str(net), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["segments"]) == 4
    assert {"cuts", "hazards", "operators", "inputs", "outputs", "passages"} <= shown.keys()
    assert main(["inspect", str(net), "--dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph model {\n")
    assert main(["inspect", str(net), "--dot", "--json"]) == 2


def test_where_shapes_come_from_goes_to_standard_error(tmp_path: Path, capsys: Shown) -> None:
    path = adding(tmp_path / "m.onnx")
    assert main(["inspect", str(path)]) == 0
    assert "open dimensions were tried: x=1x3" in capsys.readouterr().err
    assert main(["inspect", str(path), "--shape", "x=2x3"]) == 0
    assert capsys.readouterr().err == ""


def test_terminating_leaves_nothing_half_written(
    net: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_arguments: object, **_more: object) -> None:
        (half,) = net.parent.glob(".net-parts.new-*")
        assert half.is_dir()
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("edge_agent.builder.parts.write_text", terminated)
    assert main(["split", str(net), "--parts", "2"]) == 130
    assert capsys.readouterr().err == "edge-agent split: interrupted\n"
    assert [path.name for path in net.parent.iterdir()] == ["net.onnx"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_outputs_that_a_checker_wants_to_know_more_of_are_named(
    tmp_path: Path, capsys: Shown
) -> None:
    """Whether a loop runs at all decides about the rank of what it gives."""
    grow = helper.make_graph(
        [node("Unsqueeze", ["h", "zero"], ["g"]), node("Identity", ["c"], ["d"])],
        "grow",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), open_value("h")],
        [value("d", [], TensorProto.BOOL), open_value("g")],
        [numpy_helper.from_array(np.zeros(1, np.int64), "zero")],
    )
    nodes = [node("Abs", ["x"], ["a"]), node("Loop", ["n", "", "a"], ["y"], body=grow)]
    inputs = [value("x", [3]), value("n", [], TensorProto.INT64)]
    onnx.save(model(nodes, inputs, [open_value("y")]), tmp_path / "m.onnx")
    assert main(["split", str(tmp_path / "m.onnx"), "--at", "1"]) == 0
    told = capsys.readouterr().err
    assert "the number of dimensions of y is not known before a run" in told


def open_value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
