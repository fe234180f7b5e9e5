"""Stages as their owner cuts them: what they are, where it lies, and what is not done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.agent.stores import Stores
from edge_agent.builder.given import GivenSample, decode_sample, encode_sample
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused, StorageError
from edge_agent.plans import Target
from edge_agent.stages import StageModel
from edge_agent.store.registry import LoadedModel
from edge_agent.store.samples import SampleStore
from edge_agent.store.stage_content import places, read_blob
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays, TensorName
from tests.builder.made_hosts import Here, write_wide

STARTS = (0, 2, 4, 6)


@pytest.fixture
def owner(tmp_path: Path) -> Here:
    return Here(tmp_path / "owner")


@pytest.fixture
def model(owner: Here, tmp_path: Path) -> ModelId:
    return owner.load(write_wide(tmp_path / "m.onnx"))


def session_of(owner: Here, stage: StageModel) -> Session:
    return Session.open(owner.pool.graph(stage.id), threads=1, level=OptimisationLevel.ALL)


def samples_of(owner: Here, stage: StageModel) -> list[Arrays]:
    return [decode_sample(read_blob(blob, owner.pool)).arrays for blob in stage.samples]


def loaded(model: ModelId) -> LoadedModel:
    return LoadedModel(
        name="m",
        model=model,
        target=Target.LATENCY,
        threads=None,
        shapes=(),
        loaded_at_s=0.0,
        source="m.onnx",
    )


def test_a_stage_says_what_it_is(owner: Here, model: ModelId) -> None:
    first, second = owner.cut(model, [(0, 1), (1, 4)], STARTS)
    assert (first.starts, first.nodes) == ((0,), 2)
    assert (second.starts, second.nodes) == ((0, 2, 4), 6)
    assert [str(spec.name) for spec in (*second.inputs, *second.outputs)] == ["v1", "y"]
    assert second.inputs == (replace(first.outputs[0]),)
    assert second.shapes == ((TensorName("v1"), (1, 16, 8, 8)),)
    assert (first.model, str(second.segments)) == (model, "1-3")
    assert second.id == second.graph.sha256
    assert [len(first.tensors), len(second.tensors)] == [1, 3]


def test_its_tensors_are_those_of_the_whole_model(owner: Here, model: ModelId) -> None:
    blobs = owner.pool.folder / "blobs"
    owner.cut(model, [(0, 1)], STARTS)
    before = {path.name for path in blobs.iterdir()}
    first, second = owner.cut(model, [(0, 2), (2, 4)], STARTS)
    samples = {blob.sha256 for blob in (*first.samples, *second.samples)}
    assert {path.name for path in blobs.iterdir()} - before <= samples
    for blob in first.tensors:
        assert places(first, owner.pool)[blob.sha256].stat().st_size == blob.size_bytes


def test_its_samples_are_what_plain_onnx_runtime_computes_before_it(
    owner: Here, model: ModelId
) -> None:
    stages = owner.cut(model, [(0, 1), (1, 2), (2, 4)], STARTS)
    for sample in range(2):
        values = samples_of(owner, stages[0])[sample]
        for stage in stages:
            (name,) = (str(spec.name) for spec in stage.inputs)
            np.testing.assert_allclose(
                samples_of(owner, stage)[sample][name], values[name], rtol=1e-5, atol=1e-6
            )
            session = session_of(owner, stage)
            values |= session.run({name: values[name]}, session.output_names)


def test_a_stage_that_was_cut_is_found_without_a_run_or_a_write(
    owner: Here, model: ModelId
) -> None:
    first = owner.cut(model, [(0, 2), (2, 4)], STARTS)
    grants, files = owner.grants, owner.files()
    assert grants > 0
    assert owner.cut(model, [(2, 4), (0, 2)], STARTS) == first[::-1]
    assert owner.grants == grants
    after = owner.files()
    assert {name: size for name, (size, _) in after.items()} == {
        name: size for name, (size, _) in files.items()
    }
    # Only when they were used last is new.
    used = {name for name in files if name.endswith(".json")}
    assert {name for name in files if files[name] != after[name]} <= used


def test_only_what_was_not_cut_before_is_cut(owner: Here, model: ModelId) -> None:
    (kept,) = owner.cut(model, [(0, 2)], STARTS)
    graph = places(kept, owner.pool)[kept.graph.sha256]
    written = graph.stat().st_mtime_ns
    assert owner.cut(model, [(0, 2), (2, 3)], STARTS)[0] == kept
    assert graph.stat().st_mtime_ns == written


@pytest.mark.parametrize("what", ["graph", "sample", "record"])
def test_a_stage_that_is_damaged_is_cut_again(owner: Here, model: ModelId, what: str) -> None:
    (stage,) = owner.cut(model, [(1, 3)], STARTS)
    where = places(stage, owner.pool)
    damaged = {
        "graph": where[stage.graph.sha256],
        "sample": where[stage.samples[0].sha256],
        "record": next((owner.settings.state / "cuts" / model).iterdir()),
    }[what]
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    assert owner.cut(model, [(1, 3)], STARTS) == (stage,)
    with owner.pool.get(stage.id, thorough=True) as entry:  # type: ignore[union-attr]
        assert entry.manifest.graph_sha256 == stage.graph.sha256


def test_samples_that_a_user_gave_come_first(owner: Here, model: ModelId) -> None:
    given = [
        GivenSample(name=f"secret{n}.npz", arrays={"v0": np.full((1, 16, 8, 8), n + 1, np.float32)})
        for n in range(3)
    ]
    kept = SampleStore(owner.settings.state).put([encode_sample(sample) for sample in given])
    (stage,) = owner.cut(model, [(0, 2)], STARTS, samples=kept)
    real, made_up = samples_of(owner, stage)
    np.testing.assert_array_equal(real["v0"], given[0].arrays["v0"])
    assert made_up["v0"].std() > 0.5
    contents = [read_blob(blob, owner.pool) for blob in stage.samples]
    assert not any(b"secret" in content for content in contents)


def test_a_stage_of_a_model_with_open_sizes_takes_any(owner: Here, tmp_path: Path) -> None:
    model = owner.load(write_wide(tmp_path / "open.onnx", batch="n"))
    shapes = ((TensorName("v0"), (3, 16, 8, 8)),)
    first, second = owner.cut(model, [(0, 2), (2, 4)], STARTS, shapes)
    assert second.shapes == ((TensorName("v2"), (3, 16, 8, 8)),)
    assert first.inputs[0].dims == ("n", 16, 8, 8)
    assert second.inputs[0].dims is not None
    assert not isinstance(second.inputs[0].dims[0], int)
    session = session_of(owner, second)
    for batch in (1, 5):
        got = session.run({"v2": np.zeros((batch, 16, 8, 8), np.float32)}, ["y"])
        assert got["y"].shape[0] == batch


def test_what_cannot_leave_a_device_is_refused_and_leaves_nothing(
    owner: Here, tmp_path: Path
) -> None:
    others = [
        helper.make_node("SequenceConstruct", ["v2", "v2"], ["both"]),
        helper.make_node("ConcatFromSequence", ["both"], ["z"], axis=0),
        helper.make_node("ReduceMean", ["z"], ["y"], keepdims=1),
    ]
    made = onnx.load(write_wide(tmp_path / "seq.onnx", 2, others=others))
    made.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, 1])
    )
    onnx.save(made, tmp_path / "seq.onnx")
    model = owner.load(tmp_path / "seq.onnx")
    owner.cut(model, [(0, 1)], (0, 4))
    entries = set(owner.pool.models())
    with pytest.raises(ModelRefused) as told:
        owner.cut(model, [(0, 2), (2, 3)], (0, 2, 5))
    assert str(told.value) == (
        f'segments 0-1 of model {model[:12]}…: output "both" is a seq(tensor(float)), want a '
        "tensor: nothing else is sent to other devices; choose other cuts"
    )
    assert set(owner.pool.models()) == entries
    assert not list(owner.pool.folder.glob(".part-*"))


@pytest.mark.parametrize(
    ("ranges", "starts", "said"),
    [
        ([(2, 5)], STARTS, "got segments 2-4, want a range within its 4 segments"),
        ([(0, 1)], (0, 9), r"segments that begin at nodes \[0, 9\], want them ascending from 0"),
        ([(0, 1)], (1, 2), r"segments that begin at nodes \[1, 2\], want them ascending from 0"),
        ([(0, 1)], (0, 4, 2), "want them ascending from 0 and below 8"),
    ],
)
def test_segments_that_the_model_does_not_have_are_refused(
    owner: Here,
    model: ModelId,
    ranges: list[tuple[int, int]],
    starts: tuple[int, ...],
    said: str,
) -> None:
    with pytest.raises(ModelRefused, match=said):
        owner.cut(model, ranges, starts)


def test_a_model_that_is_not_here_has_no_stages(owner: Here) -> None:
    with pytest.raises(StorageError):
        owner.cut(ModelId("0" * 64), [(0, 1)], (0,))


def test_stages_stay_as_long_as_their_model_is_loaded(owner: Here, model: ModelId) -> None:
    (stage,) = owner.cut(model, [(1, 3)], STARTS)
    stores = Stores(owner.settings)
    stores.collect([loaded(model)])
    grants = owner.grants
    assert owner.cut(model, [(1, 3)], STARTS) == (stage,)
    assert owner.grants == grants
    stores.collect([])
    assert owner.pool.models() == ()
    assert list((owner.pool.folder / "blobs").iterdir()) == []
    assert [p.name for p in (owner.settings.state / "cuts").iterdir()] == ["staging"]
