"""The sides of a comparison: what they time, and that they are still while the other runs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from bench.child import SideSpec, Stopwatch, serve
from bench.report import Options, publish
from bench.side import InputFiles, Side, SideFailed
from edge_agent import clock


def _small_model(path: Path) -> str:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["g/x:0", "g/x:0"], ["y"])],
        "double",
        [value("g/x:0", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[SideSpec]:
    with InputFiles() as files:
        inputs = files.write({"g/x:0": np.ones(2, np.float32)})
        yield SideSpec(kind="plain", inputs=inputs, path=_small_model(tmp_path / "double.onnx"))


def test_a_plain_side_times_its_runs_in_each_way(spec: SideSpec) -> None:
    with Side(spec) as side:
        assert 0 < side.one_s() < 1
        latencies_s = side.latencies_s(4, period_s=0.005)
        assert len(latencies_s) == 4
        assert all(0 < s < 1 for s in latencies_s)
        assert 0 < side.per_request_s(callers=2, duration_s=0.02) < 0.1
        assert 0 < side.per_request_s(callers=1, duration_s=0.0) < 0.1


def test_a_plain_side_is_stopped_between_its_runs(spec: SideSpec) -> None:
    with Side(spec) as side:
        side.one_s()
        until_s = clock.monotonic_s() + 5.0
        while psutil.Process(side.pid).status() != psutil.STATUS_STOPPED:
            assert clock.monotonic_s() < until_s


def test_a_side_that_cannot_open_its_model_is_reported(spec: SideSpec, tmp_path: Path) -> None:
    gone = SideSpec(kind="plain", inputs=spec.inputs, path=str(tmp_path / "gone.onnx"))
    with pytest.raises(SideFailed, match=r"plain side of .*gone.onnx ended with exit status 1"):
        Side(gone)


def test_a_child_answers_line_by_line_until_its_commands_end() -> None:
    runs: list[int] = []
    commands = [{"do": "latencies", "count": 3, "period_s": 0.0}, {"do": "one"}]
    answers = io.StringIO()
    lines = io.StringIO("\n".join(json.dumps(c) for c in commands))
    serve(Stopwatch(lambda: runs.append(1)), lines, answers)
    ready, latencies_s, one_s = map(json.loads, answers.getvalue().splitlines())
    assert ready == "ready"
    assert len(latencies_s) == 3
    assert one_s > 0
    assert len(runs) > 7


def test_callers_that_ask_at_once_share_the_time() -> None:
    threads = Stopwatch(lambda: None)
    assert threads.per_request_s(callers=2, duration_s=0.01) < 0.01


def _options(*, is_json: bool = False) -> Options:
    return Options(models={}, cache=Path(), is_smoke=True, is_json=is_json, seed=0, budget_s=5.0)


def test_rows_with_equal_columns_form_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    ratio = {"median": 1.0, "low": 0.99, "high": 1.01, "pairs": 8}
    publish(_options(), [{"model": "a", "ms": 1.23456}, {"model": "bb", "ms": 2.0}, {"r": ratio}])
    tables = capsys.readouterr().out.split("\n\n")
    assert "onnxruntime" in tables[0]
    assert tables[1:] == ["model  ms\na      1.235\nbb     2", "r\n1.000 [0.990, 1.010]\n"]


def test_json_has_rows_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    publish(_options(is_json=True), [{"model": "a"}])
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == [{"model": "a"}]
    assert printed["environment"]["cores"]


def test_a_comparison_of_made_up_times_finds_their_ratio() -> None:
    ratio, control = _options().compare_with_control(lambda: 3.0, lambda: 2.0)
    assert (ratio.median, ratio.pairs, control.median) == (1.5, 8, 1.0)
