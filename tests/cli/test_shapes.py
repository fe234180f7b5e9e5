"""`--shape` with one shape or several, before and behind the model."""

from __future__ import annotations

import pytest

from edge_agent.cli.main import parser
from edge_agent.cli.shapes import spread_shapes


def _asked(line: str) -> tuple[str, list[str]]:
    options = parser().parse_args(list(spread_shapes(line.split())))
    return options.model, options.shape


@pytest.mark.parametrize("command", ["load", "plan", "infer", "inspect", "split --list"])
@pytest.mark.parametrize(
    ("rest", "model", "shapes"),
    [
        ("m.onnx --shape a=1x512 b=2x1x128 c=", "m.onnx", ["a=1x512", "b=2x1x128", "c="]),
        ("m.onnx --shape a=1 --shape b=2", "m.onnx", ["a=1", "b=2"]),
        ("m.onnx --shape=a=1 b=2 --json", "m.onnx", ["a=1", "b=2"]),
        ("--shape a=1 b=2 m.onnx", "m.onnx", ["a=1", "b=2"]),
        ("--shape a=1 b=2 --json m.onnx", "m.onnx", ["a=1", "b=2"]),
        ("--shape gpu_0/data=1 b.c=2 -- x=1", "x=1", ["gpu_0/data=1", "b.c=2"]),
        ("--shape a=1 day=1/m.onnx", "day=1/m.onnx", ["a=1"]),
        ("--shape a=1 v=1.onnx", "v=1.onnx", ["a=1"]),
        ("--shape a m", "m", ["a"]),
        ("m.onnx", "m.onnx", []),
    ],
)
def test_one_option_takes_several_shapes_and_leaves_the_model(
    command: str, rest: str, model: str, shapes: list[str]
) -> None:
    assert _asked(f"{command} {rest}") == (model, shapes)


def test_what_other_options_take_stays_theirs() -> None:
    line = "plan m --shape a=1 --pin conv=lab x=pi --bound latency=8ms --shape b=2"
    options = parser().parse_args(list(spread_shapes(line.split())))
    assert options.shape == ["a=1", "b=2"]
    assert options.pin == ["conv=lab", "x=pi"]
    assert options.bound == ["latency=8ms"]


def test_what_is_no_shape_behind_another_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(list(spread_shapes(["load", "m.onnx", "--shape", "a=1", "b"])))
    assert "unrecognized arguments: b" in capsys.readouterr().err
