"""An owner and hosts of stages, as folders: what agents and builders do between them, without
processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_agent.builder.admitting import admit
from edge_agent.builder.benches import Slices
from edge_agent.builder.building import Building
from edge_agent.builder.cutting import cut_stages
from edge_agent.builder.pooling import pooled
from edge_agent.builder.specs import inner_specs
from edge_agent.builder.stage_admitting import admit_stage
from edge_agent.config import Budgets, Settings
from edge_agent.devices import Layout
from edge_agent.engine.chain import Chain
from edge_agent.engine.files import open_file
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.plans import Target
from edge_agent.stages import StageModel
from edge_agent.store.models import ModelStore
from edge_agent.store.partial import PartialStore
from edge_agent.store.pool import POOL_FOLDER, Pool
from edge_agent.store.stage_content import missing, places
from edge_agent.subgraphs import ModelId, SampleSetId, SegmentRange
from edge_agent.tensors import Arrays, Shape, TensorName
from edge_agent.wire.cutting import CutStages, StageAdmitted
from edge_agent.wire.messages import Build, Built
from edge_agent.wire.parts import Shapes
from tests.builder.made_units import HOST, device

DEVICE = replace(device(), units=(replace(HOST, layouts=(Layout.NCHW, Layout.BLOCKED)),))
"""With the processor alone, which need not be probed."""


class Here:
    """One device."""

    def __init__(self, folder: Path, profile_s: float = 0.2, verify_s: float = 0.2) -> None:
        self.settings = Settings(
            socket=folder / "s",
            state=folder,
            cache=folder / "cache",
            planning=Budgets(profile_s=profile_s, verify_s=verify_s),
        )
        self.pool = Pool(folder / POOL_FOLDER, 1 << 40)
        self.partials = PartialStore(folder)
        self.grants = 0
        """How often it was asked for leave to run something."""

    def _grant(self) -> None:
        self.grants += 1

    # ---- as an owner

    def load(self, source: Path) -> ModelId:
        admitted = admit(
            source, self.settings, on_staged=lambda _path: None, wait_until_movable=lambda: None
        )
        return admitted.model

    def starts(
        self, model: ModelId, shapes: Shapes = (), max_segments: int = 64
    ) -> tuple[int, ...]:
        """The first nodes of the segments that the model is worth dividing into."""
        with pooled(model, ModelStore(self.settings.state), self.pool) as entry:
            graph = ModelGraph.load(entry.graph)
            known = dict(shapes)
            specs = inner_specs(graph, known, self.pool.folder / "probe.onnx")
            summary = summarise(graph, model, known, specs, max_segments, with_forks=True)
        (self.pool.folder / "probe.onnx").unlink(missing_ok=True)
        return tuple(segment.start for segment in summary.segments)

    def cut(
        self,
        model: ModelId,
        ranges: Iterable[tuple[int, int]],
        starts: tuple[int, ...],
        shapes: Shapes = (),
        samples: SampleSetId | None = None,
    ) -> tuple[StageModel, ...]:
        asked = CutStages(
            model=model,
            shapes=shapes,
            samples=samples,
            ranges=tuple(SegmentRange(start=start, stop=stop) for start, stop in ranges),
            starts=starts,
        )
        return cut_stages(asked, self.settings, self._grant)

    # ---- as a host

    def receive(self, stage: StageModel, owner: Here) -> int:
        """Get what is missing of it; how many bytes that were."""
        where, lacking = places(stage, owner.pool), missing(stage, self.pool)
        for blob in lacking:
            with self.partials.open(blob.sha256, blob.size_bytes) as partial:
                content = where[blob.sha256].read_bytes()[partial.received_bytes : blob.size_bytes]
                partial.write(partial.received_bytes, content)
        return sum(blob.size_bytes for blob in lacking)

    def admit(self, stage: StageModel) -> StageAdmitted:
        return admit_stage(stage, self.settings)

    def build(self, stage: StageModel) -> Built:
        message = Build(
            model=stage.id,
            target=Target.LATENCY,
            threads=None,
            shapes=stage.shapes,
            is_fresh=False,
            device=DEVICE,
            stage=stage,
        )
        return Building(message, self.settings, self._slices()).build()

    def _slices(self) -> Slices:
        return Slices(self._grant, lambda _fraction, _what: None)

    def files(self) -> dict[str, tuple[int, int]]:
        """All that lies in the folder, with the sizes and times of files."""
        root = self.settings.state
        return {
            str(path.relative_to(root)): (found.st_size, found.st_mtime_ns)
            for path in root.rglob("*")
            if path.is_file()
            for found in (path.stat(),)
        }


def hosted(host: Here, stages: Sequence[StageModel], owner: Here) -> list[Built]:
    """All of them, received, admitted and built."""
    for stage in stages:
        host.receive(stage, owner)
        assert host.admit(stage).is_new
    return [host.build(stage) for stage in stages]


def chained(stages: Sequence[StageModel], built: Sequence[Built], feeds: Arrays) -> Arrays:
    """What the stages compute, each from what the ones before it gave."""
    values = dict(feeds)
    for stage, made in zip(stages, built, strict=True):
        sessions = [open_file(file, made.pinned_cores) for file in made.subgraphs]
        inputs = [spec.name for spec in stage.inputs if spec.name in values]
        outputs = [spec.name for spec in stage.outputs]
        chain = Chain(sessions, inputs, outputs)
        values |= chain.run_checked({name: values[name] for name in inputs}, outputs)
    return values


def shapes_of(arrays: Arrays) -> tuple[tuple[TensorName, Shape], ...]:
    return tuple((TensorName(name), array.shape) for name, array in arrays.items())


def write_wide(path: Path, count: int = 4, batch: int | str = 1, others: Any = ()) -> Path:
    """`count` times Conv and Relu, float32[batch,16,8,8] throughout, with 9 KiB of weights each;
    `others` are nodes between the last and the output "y"."""
    rng = np.random.default_rng(1)
    nodes, weights = [], []
    for i in range(count):
        kernel = rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        last = f"v{i + 1}" if i + 1 < count or others else "y"
        nodes.append(helper.make_node("Conv", [f"v{i}", f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [last]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 16, 8, 8])
        for name in ("v0", "y")
    ]
    graph = helper.make_graph([*nodes, *others], "wide", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return path
