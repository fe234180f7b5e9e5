from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.devices import ComputeUnit, Layout, ProviderUse
from edge_agent.engine.compiled_form import write_optimised
from edge_agent.engine.placing import create, kernels, record, recorded
from edge_agent.engine.runtime import FATAL_ONLY, load_runtime, runtime_errors
from edge_agent.model.borders import count_transposes, write_last
from tests.units.made import STEP, float_net, picture, quantised_net

Unit = Callable[[str], ComputeUnit]

CPU = ProviderUse(provider="CPUExecutionProvider")
TOLERANCE = {"openvino": 1e-3, "webgpu": 1e-3, "cuda": 2e-2, "tensorrt": 2e-2}
"""Of activations up to 5; NVIDIA's multiply with 10 bits of mantissa by default (TF32)."""
FLOAT_UNITS = [
    ("openvino", Layout.NATIVE),
    ("webgpu", Layout.NCHW),
    ("webgpu", Layout.NHWC),
    ("cuda", Layout.NCHW),
    ("cuda", Layout.NHWC),
    ("tensorrt", Layout.NATIVE),
]


def opened(model: bytes, use: ProviderUse, *, is_whole: bool = True, profile: str = "") -> Any:
    options = load_runtime().SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = 1
    record(options)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return create(model, options, use, is_whole=is_whole)


def run(session: Any) -> NDArray[np.float32]:
    (y,) = session.run(["y"], {"x": picture()})
    assert isinstance(y, np.ndarray)
    return y


def taken(model: bytes, use: ProviderUse) -> tuple[int, int]:
    """How many nodes (the provider, all) have, where it may refuse some."""
    nodes = {p: len(names) for p, names in recorded(opened(model, use, is_whole=False)).items()}
    return nodes.get(use.provider, 0), sum(nodes.values())


@pytest.mark.parametrize(("name", "layout"), FLOAT_UNITS)
def test_a_float_net_runs_there_whole_and_equals_the_processor(
    unit: Unit, name: str, layout: Layout
) -> None:
    session = opened(float_net(), unit(name).use(layout, 1))
    want = run(opened(float_net(), CPU))
    assert want.max() > 1
    np.testing.assert_allclose(run(session), want, rtol=0, atol=TOLERANCE[name])


@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
def test_a_profile_shows_every_kernel_of_a_float_net_on_the_gpu(
    unit: Unit, layout: Layout, tmp_path: Path
) -> None:
    use = unit("webgpu").use(layout, 1)
    session = opened(float_net(), use, profile=str(tmp_path / "profile"))
    run(session)
    ran = kernels(json.loads(Path(session.end_profiling()).read_text()))
    assert set(ran) == {use.provider}
    assert len(ran[use.provider]) >= 4


@pytest.mark.parametrize("name", ["webgpu", "cuda"])
def test_the_layouts_of_a_gpu_are_what_they_are_called(
    unit: Unit, name: str, tmp_path: Path
) -> None:
    """Between a graph, which is channels-first, and kernels that are channels-last, transposes
    stand; none where the graph is channels-last outside."""
    one = unit(name)
    usual, last = tmp_path / "usual.onnx", tmp_path / "last.onnx"
    usual.write_bytes(float_net())
    write_last(usual, last, ["x", "y"])
    left = []
    for layout in (Layout.NCHW, Layout.NHWC):
        for source in (usual, last):
            write_optimised(source, one.use(layout, 0), tmp_path / "made.onnx")
            left.append(count_transposes(tmp_path / "made.onnx"))
    assert left == [0, 2, 2, 0]


def test_openvino_records_every_node_of_a_float_net(unit: Unit) -> None:
    use = unit("openvino").use(Layout.NATIVE, 1)
    names = recorded(opened(float_net(), use))
    assert set(names) == {use.provider}
    assert {"conv0", "conv1", "conv2", "add", "pool"} <= set(names[use.provider])


def test_a_net_that_a_gpu_takes_in_part_is_not_opened_as_if_it_were_there(unit: Unit) -> None:
    use = unit("webgpu").use(Layout.NCHW, 1)
    with pytest.raises(runtime_errors(), match="assigned to the default CPU EP"):
        opened(quantised_net(), use)
    on_gpu, everywhere = taken(quantised_net(), use)
    assert 0 < on_gpu < everywhere


@pytest.mark.parametrize("name", ["qnn", "openvino"])
def test_a_quantised_net_runs_there_whole_within_one_step_of_the_processor(
    unit: Unit, name: str
) -> None:
    use = unit(name).use(Layout.NATIVE, 1)
    session = opened(quantised_net(), use)
    assert set(recorded(session)) == {use.provider}
    want = run(opened(quantised_net(), CPU))
    assert want.max() > 100 * STEP
    assert np.abs(run(session) - want).max() <= 1.01 * STEP


def test_an_npu_takes_a_net_of_fixed_shape_and_leaves_an_open_batch_to_the_processor(
    unit: Unit,
) -> None:
    npu = unit("qnn")
    assert not npu.takes_open_dimensions
    use = npu.use(Layout.NATIVE, 1)
    fixed, of_fixed = taken(quantised_net(), use)
    open_, of_open = taken(quantised_net("batch"), use)
    assert fixed >= 0.9 * of_fixed
    assert open_ <= 0.1 * of_open


def test_three_kinds_of_units_work_in_one_process(unit: Unit) -> None:
    gpu, npu = unit("webgpu"), unit("qnn")
    on_gpu = opened(float_net(), gpu.use(Layout.NHWC, 1))
    on_npu = opened(quantised_net(), npu.use(Layout.NATIVE, 1))
    on_cpu = opened(float_net(), CPU)
    np.testing.assert_allclose(run(on_gpu), run(on_cpu), rtol=0, atol=1e-3)
    assert run(on_npu).max() > 100 * STEP
    np.testing.assert_allclose(run(on_gpu), run(on_cpu), rtol=0, atol=1e-3)
