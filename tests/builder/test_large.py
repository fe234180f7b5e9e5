"""Models whose weights must not be in memory: cut, found out about and compared without them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.builder.admitting import admit
from edge_agent.builder.benches import Subject
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.pooling import pooled
from edge_agent.builder.specs import inner_specs
from edge_agent.builder.workshop import Workshop
from edge_agent.config import Settings
from edge_agent.devices import Layout
from edge_agent.engine.session import Session
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.profiling.device import is_large
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import SegmentRange
from edge_agent.tensors import Arrays, TensorName

SIDE = 1536
LAYERS = 6
LAYER_BYTES = SIDE * SIDE * 4
X = np.random.default_rng(1).standard_normal((2, SIDE)).astype(np.float32)


def anonymous_bytes() -> int:
    """Resident memory of this process that no file is behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the kernel does not say")


def write_stack(path: Path) -> Path:
    """x[n,SIDE] through LAYERS matrix products with Relu between; weights in a file beside it."""
    chance = np.random.default_rng(0)
    nodes, weights = [], []
    with path.with_name("w.bin").open("wb") as file:
        for i in range(LAYERS):
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "w.bin"), ("offset", str(file.tell()))):
                tensor.external_data.add(key=key, value=value)
            weights.append(tensor)
            (chance.standard_normal((SIDE, SIDE)).astype(np.float32) / SIDE**0.5).tofile(file)
            nodes.append(helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("Relu", [f"p{i}"], [f"v{i + 1}"]))
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", SIDE])
        for n in ("v0", f"v{LAYERS}")
    ]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    state = tmp_path / "state"
    settings = Settings(socket=state / "s", state=state, cache=state / "cache")
    source = write_stack(tmp_path / "stack.onnx")
    admitted = admit(source, settings, on_staged=lambda _: None, wait_until_movable=lambda: None)
    pool = Pool(state / "pool", max_compiled_bytes=1 << 30)
    shapes = {TensorName("v0"): X.shape}
    with (
        pooled(admitted.model, ModelStore(state), pool) as entry,
        Compiler(pool, admitted.model, "this device") as compiler,
    ):
        graph = ModelGraph.load(entry.graph)
        specs = inner_specs(graph, shapes, compiler.draft("probe.onnx"))
        summary = summarise(graph, admitted.model, shapes, specs)
        yield Workshop(graph, summary, specs, compiler, is_large=True)


def subject(workshop: Workshop) -> Subject:
    return Subject(
        workshop=workshop, samples=({"v0": X},), cores=(0,), plain_threads=1, is_quantised=False
    )


def whole(workshop: Workshop) -> SegmentRange:
    return SegmentRange(start=0, stop=len(workshop.summary.segments))


def outputs(session: Session) -> Arrays:
    return session.run({"v0": X}, session.output_names)


def test_admitting_and_cutting_hold_less_than_one_layer(workshop: Workshop) -> None:
    before_bytes = anonymous_bytes()
    middle = len(workshop.summary.segments) // 2
    for part in (SegmentRange(start=0, stop=middle), SegmentRange(start=middle, stop=middle + 1)):
        path = workshop.source(part)
        assert path.stat().st_size < 10_000
        assert not path.with_name(f"{path.name}.weights").exists()
    assert anonymous_bytes() - before_bytes < LAYER_BYTES


def growth_of_a_new_process(path: Path, *, lean: bool) -> int:
    """Anonymous bytes that opening `path` as plain ONNX Runtime and running it adds."""
    script = f"""
from pathlib import Path
from edge_agent.engine.session import OptimisationLevel, Session
from tests.builder.test_large import X, anonymous_bytes, outputs
before_bytes = anonymous_bytes()
session = Session.open(
    Path({str(path)!r}), threads=1, level=OptimisationLevel.ALL, plain=True, lean={lean}
)
outputs(session)
print(anonymous_bytes() - before_bytes)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(ended.stdout)


@pytest.mark.long
def test_packed_weights_are_a_copy_that_a_lean_session_does_not_make(
    workshop: Workshop,
) -> None:
    source = workshop.graph.path
    assert growth_of_a_new_process(source, lean=False) > LAYERS * LAYER_BYTES
    assert growth_of_a_new_process(source, lean=True) < 2 * LAYER_BYTES


def test_a_large_model_is_timed_compiled_and_compared_with_uncompiled(
    workshop: Workshop,
) -> None:
    reference, timed = subject(workshop).open_reference(), subject(workshop).open_plain()
    assert reference.path == workshop.graph.path
    assert timed.path == workshop.compiled(whole(workshop), Layout.BLOCKED)
    last = f"v{LAYERS}"
    np.testing.assert_allclose(outputs(timed)[last], outputs(reference)[last], rtol=1e-4, atol=1e-5)


def test_weights_above_a_gibibyte_are_large_and_small_ones_never_are() -> None:
    assert is_large((1 << 30) + 1)
    assert not is_large(64 << 20)
