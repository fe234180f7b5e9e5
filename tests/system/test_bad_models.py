"""Model files that must be refused, through the daemon, with nothing of them left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from edge_agent.client import Client
from edge_agent.errors import ModelQuarantined, ModelRefused
from tests.system.made_models import (
    adding,
    convolving,
    model,
    saved,
    value,
    with_external_data,
    x,
)
from tests.system.running import QUICK_PLANS, Place, RunningAgent, wait_until

MAX_MODEL_BYTES = 100_000


@pytest.fixture(scope="module")
def agent(shared_place: Place) -> Iterator[RunningAgent]:
    config = QUICK_PLANS + f"[limits]\nmax_model_bytes = {MAX_MODEL_BYTES}\n"
    running = RunningAgent(shared_place, (), config)
    yield running
    running.end()


@pytest.fixture
def client(agent: RunningAgent) -> Iterator[Client]:
    with agent.client() as made:
        yield made


def _text(folder: Path) -> Path:
    path = folder / "bad.onnx"
    path.write_text("import this\n")
    return path


def _truncated(folder: Path) -> Path:
    path = convolving(folder / "bad.onnx", channels=8)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def _too_new(folder: Path) -> Path:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "new", [value("x", [1])], [value("y", [1])])
    return saved(model(graph, opset=999), folder / "bad.onnx")


def _linked(folder: Path) -> Path:
    path = with_external_data(folder / "bad.onnx", "w.bin", write=True)
    (folder / "w.bin").rename(folder / "elsewhere.bin")
    (folder / "w.bin").symlink_to(folder / "elsewhere.bin")
    return path


def _external(location: str, *, write: bool = False) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        inner = folder / "inner"
        inner.mkdir()
        return with_external_data(inner / "bad.onnx", location, write=write)

    return make


CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "not a model": (_text, r"no valid protobuf|has no graph"),
    "truncated": (_truncated, "cut short"),
    "over the size limit": (
        lambda folder: convolving(folder / "bad.onnx"),
        rf"got 1\d{{5}} bytes, want at most {MAX_MODEL_BYTES}",
    ),
    "an unknown operator": (
        lambda folder: adding(folder / "bad.onnx", operator="Frobnicate"),
        r"the_node.*Frobnicate",
    ),
    "an unknown domain": (
        lambda folder: adding(folder / "bad.onnx", operator="Add", domain="com.acme"),
        r"com\.acme",
    ),
    "an opset too new": (_too_new, "got opset 999 of ai.onnx, want 1 to"),
    "external data missing": (_external("gone.bin"), r'"gone.bin".*no such regular file'),
    "external data outside": (_external("../w.bin", write=True), r"w\.bin.*want a relative path"),
    "external data absolute": (_external("/etc/hostname"), r"hostname.*want a relative path"),
    "external data a symbolic link": (_linked, r'"w\.bin" is a symbolic link'),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_model_is_refused_by_name_and_nothing_of_it_is_left(
    case: str, client: Client, agent: RunningAgent, tmp_path: Path
) -> None:
    make, reason = CASES[case]
    path = make(tmp_path)
    with pytest.raises(ModelRefused, match=reason) as refusal:
        client.load(path)
    assert "bad.onnx" in str(refusal.value)
    assert "model.onnx" not in str(refusal.value)
    assert client.models() == ()
    assert agent.place.stored() == []


@pytest.mark.long
def test_a_model_that_kills_its_worker_while_it_is_opened_is_refused_and_nothing_is_left(
    client: Client, agent: RunningAgent, tmp_path: Path
) -> None:
    client.devices()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(client.load, adding(tmp_path / "bad.onnx"))
        for worker in wait_until(lambda: agent.children("edge_agent.worker"), "its worker"):
            worker.kill()
        with pytest.raises(ModelRefused) as refusal:
            loading.result(20)
    assert str(refusal.value) == (
        f"{tmp_path / 'bad.onnx'}: the worker died while it opened the model (signal 9)"
    )
    assert client.models() == ()
    assert agent.place.stored() == []
    assert agent.children() == []


@pytest.mark.long
def test_what_the_check_says_of_a_model_goes_before_the_death_of_its_worker(
    client: Client, agent: RunningAgent, tmp_path: Path
) -> None:
    client.devices()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(client.load, _text(tmp_path))
        for worker in wait_until(lambda: agent.children("edge_agent.worker"), "its worker"):
            worker.kill()
        with pytest.raises(ModelRefused, match=r"no valid protobuf|has no graph"):
            loading.result(20)
    assert agent.place.stored() == []


def test_the_command_ends_with_the_code_of_a_refusal_and_says_why(
    agent: RunningAgent, tmp_path: Path
) -> None:
    ended = agent.command("load", str(_text(tmp_path)))
    assert ended.code == ModelRefused.exit_code
    assert ended.out == ""
    assert ended.err.startswith("edge-agent load: ")
    assert "bad.onnx" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.long
def test_a_refused_model_leaves_the_one_of_that_name_as_it_was(
    start: Callable[..., RunningAgent], tmp_path: Path
) -> None:
    good = adding(tmp_path / "good.onnx", 5.0)
    agent = start()
    with agent.client() as client:
        client.load(good, "m", wait=True)
        # What its build still clears away meanwhile is none of the other's doing.
        before = set(agent.place.stored())
        with pytest.raises(ModelRefused):
            client.load(_text(tmp_path), "m")
        assert set(agent.place.stored()) <= before
        assert client.infer("m", x(0.0))["y"].tolist() == [[5.0, 6.0, 7.0]]


SMALLEST = np.array([-(2**63)], np.int64)
BARE_OPENING = """
import sys, onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


def _overflowing(path: Path, *, is_constant: bool) -> Path:
    """q = a / b, int64[1]: the smallest number over -1 has no result, and x86 traps it. A constant
    one is computed while the model is opened."""
    held = [numpy_helper.from_array(SMALLEST, "a"), numpy_helper.from_array(-np.ones(1, int), "b")]
    nodes = [
        onnx.helper.make_node("Div", ["a", "b"], ["c" if is_constant else "q"]),
        *([onnx.helper.make_node("Add", ["x", "c"], ["q"])] if is_constant else []),
    ]
    inputs = [value(name, [1], TensorProto.INT64) for name in ("x" if is_constant else "ab")]
    outputs = [value("q", [1], TensorProto.INT64)]
    graph = onnx.helper.make_graph(
        nodes, "overflowing", inputs, outputs, held if is_constant else []
    )
    return saved(model(graph), path)


@pytest.fixture
def killing(tmp_path: Path) -> Path:
    """A model of which ONNX Runtime dies, not by any hand, while it opens it."""
    path = _overflowing(tmp_path / "killing.onnx", is_constant=True)
    alone = [sys.executable, "-c", BARE_OPENING, str(path)]
    if subprocess.run(alone, capture_output=True, check=False).returncode >= 0:
        pytest.skip("this ONNX Runtime, or this processor, survives the model")
    return path


def test_a_model_of_which_onnx_runtime_dies_is_refused_and_others_go_on_serving(
    client: Client, agent: RunningAgent, killing: Path, tmp_path: Path
) -> None:
    client.load(adding(tmp_path / "good.onnx"), wait=True)
    before = set(agent.place.stored())
    with pytest.raises(ModelRefused, match=r"killing\.onnx: .*died while it opened the model"):
        client.load(killing)
    assert client.infer("good", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
    assert set(agent.place.stored()) <= before
    client.unload("good")


@pytest.mark.long
@pytest.mark.usefixtures("killing")
def test_a_request_of_which_onnx_runtime_dies_costs_that_model_at_most(
    client: Client, tmp_path: Path
) -> None:
    client.load(adding(tmp_path / "good.onnx"))
    client.load(_overflowing(tmp_path / "dividing.onnx", is_constant=False), wait=True)
    assert client.infer("dividing", {"a": 6 * np.ones(1, int), "b": 3 * np.ones(1, int)})["q"] == 2
    with pytest.raises(ModelQuarantined):
        client.infer("dividing", {"a": SMALLEST, "b": -np.ones(1, int)}, deadline_s=60.0)
    assert client.infer("good", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
    client.unload("dividing")
    client.unload("good")
