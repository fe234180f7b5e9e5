"""A real agent on real units: pinned over all of them, with units that end or block its builder,
and what it tells of nodes that were refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edge_agent.client import Client
from edge_agent.devices import ComputeUnit
from edge_agent.errors import UsageError
from edge_agent.plans import ExecutionPlan
from tests.engine.made_library import Loading, make_library
from tests.system.running import RunningAgent, run_command
from tests.units.made import STEP, float_net, mixed_net, picture, quantised_net
from tests.units.running import PLAN_S, close_to, reference, running, saved

Unit = Callable[[str], ComputeUnit]


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    with running() as started:
        yield started


@contextmanager
def loaded(agent: RunningAgent, path: Path, **wishes: Any) -> Iterator[Client]:
    """A client of the agent, which has planned the model, and unloads it afterwards."""
    with agent.client() as client:
        client.load(path, path.stem, wait=True, timeout_s=PLAN_S, **wishes)
        try:
            yield client
        finally:
            client.unload(path.stem)


def units_of(plan: ExecutionPlan) -> list[str]:
    return [s.subgraph.configuration.unit for s in plan.subgraphs]


def nodes_on(plan: ExecutionPlan, path: Path, unit: str) -> set[str]:
    nodes = [n.name for n in onnx.load(path).graph.node]
    return {
        name
        for s in plan.subgraphs
        if s.subgraph.configuration.unit == unit
        for name in nodes[s.subgraph.nodes[0] : s.subgraph.nodes[1]]
    }


def test_one_model_is_divided_over_all_three_kinds_by_pins(unit: Unit, agent: RunningAgent) -> None:
    for name in ("cpu", "webgpu", "qnn"):
        unit(name)
    path = saved(agent, "mixed", mixed_net())
    pins = {"front/*": "webgpu", "quant/*": "qnn", "tail/*": "cpu"}
    with loaded(agent, path, pins=pins) as client:
        assert client.model("mixed").planning == "done", client.model("mixed").progress
        plan = client.plan("mixed")
        outputs = client.infer("mixed", {"x": picture()})
    assert units_of(plan) == ["webgpu", "qnn", "cpu"]
    want = reference(path)
    close_to(outputs["y"], want)
    assert "front/*=webgpu" in plan.reason


def test_pins_hold_when_the_division_changes(unit: Unit, agent: RunningAgent) -> None:
    unit("webgpu")
    path = saved(agent, "two", float_net())
    with loaded(agent, path, pins={"conv2": "webgpu"}, subgraphs=3) as client:
        three = client.plan("two")
    with loaded(agent, path, pins={"conv2": "webgpu"}) as client:
        fewer = client.plan("two")
        outputs = client.infer("two", {"x": picture()})
    assert len(three.subgraphs) == 3
    assert "conv2" in nodes_on(three, path, "webgpu")
    assert "conv2" in nodes_on(fewer, path, "webgpu")
    np.testing.assert_allclose(outputs["y"], reference(path), atol=1e-4)


def test_a_pin_on_what_a_unit_refuses_says_so_and_the_model_serves(
    unit: Unit, agent: RunningAgent
) -> None:
    unit("webgpu")
    path = saved(agent, "refused", quantised_net())
    with loaded(agent, path, pins={"x_q": "webgpu"}) as client:
        state = client.model("refused")
        assert state.planning == "failed"
        assert "x_q=webgpu cannot hold" in state.progress
        assert '"x_q" (QuantizeLinear) on webgpu: the provider has no kernel' in state.progress
        outputs = client.infer("refused", {"x": picture()})
    assert np.abs(outputs["y"] - reference(path)).max() <= STEP


def test_a_pin_that_means_no_node_or_no_unit_is_refused(agent: RunningAgent) -> None:
    path = saved(agent, "pins", float_net())
    with agent.client() as client:
        with pytest.raises(UsageError, match=r'no node has a name like "nothing\*".*conv0'):
            client.load(path, "pins", pins={"nothing*": "cpu"})
        with pytest.raises(UsageError, match='pin "conv0=tpu": this device has no unit tpu, it'):
            client.load(path, "pins", pins={"conv0": "tpu"})
        assert "pins" not in {m.name for m in client.models()}


def test_what_a_unit_refused_is_explained_node_by_node(unit: Unit, agent: RunningAgent) -> None:
    unit("webgpu")
    path = saved(agent, "explained", quantised_net())
    with loaded(agent, path) as client:
        plan = client.plan("explained")
        text = run_command(agent.place, "plan", "explained", "--explain")
    found = {p.unit: p for p in plan.placements}
    refused = {n.label: n for n in found["webgpu"].refused}
    (quantising,) = (n for label, n in refused.items() if '"x_q"' in label)
    assert quantising.ran_on == "cpu"
    assert "QuantizeLinear" in quantising.reason
    assert text.code == 0, text.err
    assert "webgpu" in text.out
    assert "QuantizeLinear" in text.out


def own_npu(unit: ComputeUnit, library: Path) -> str:
    """The NPU as an administrator's own unit, from a copy of its library."""
    source = Path(unit.library)
    for part in source.parent.iterdir():
        if part.is_file() and part != source:
            os.symlink(part, library.parent / part.name)
    shutil.copy(source, library)
    return (
        f'[units.qnn]\noff = true\n[units.mine]\nprovider = "{unit.provider}"\n'
        f'library = "{library}"\nkind = "NPU"\n[units.mine.options]\n'
        + "".join(f'{name} = "{value}"\n' for name, value in unit.options)
    )


@pytest.mark.parametrize(
    ("loading", "said"), [(Loading.ILLEGAL, "signal 4"), (Loading.WAITS, "nothing for")]
)
def test_a_provider_that_ends_or_blocks_the_builder_is_left_out_and_named(
    unit: Unit, loading: Loading, said: str, tmp_path: Path
) -> None:
    library = tmp_path / "libmine.so"
    config = own_npu(unit("qnn"), library)
    # The software driver of the GPU may take as long on a busy machine, which is no matter here.
    with running(config, "unit_s = 20.0\n") as agent, agent.client() as client:
        assert "mine" in {u.id for u in client.devices().units}
        # It worked when it was probed, and does not from now on.
        library.unlink()
        make_library(library, loading)
        path = saved(agent, "net", quantised_net())
        client.load(path, wait=True, timeout_s=PLAN_S)
        outputs = client.infer("net", {"x": picture()})
        assert np.abs(outputs["y"] - reference(path)).max() <= STEP
        plan = client.plan("net")
    (rejection,) = (r for r in plan.rejections if r.candidate == "mine")
    assert said in rejection.detail
    assert "mine" not in units_of(plan)
