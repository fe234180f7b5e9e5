"""Knows how a model is divided and compiled into a pool of its own, and served from there by real
workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_agent.agent.processes import Child
from edge_agent.builder.admitting import admit
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.pooling import pooled
from edge_agent.builder.specs import general_specs, inner_specs
from edge_agent.builder.workshop import Workshop
from edge_agent.config import Settings
from edge_agent.devices import Layout
from edge_agent.engine.session import OptimisationLevel
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.plans import Epoch
from edge_agent.profiling.device import device_key
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import POOL_FOLDER, Pool
from edge_agent.subgraphs import SegmentRange
from edge_agent.tensors import Arrays, TensorName
from edge_agent.transport.local import FrameStream
from edge_agent.wire.arrays import pack_arrays
from edge_agent.wire.messages import (
    Codec,
    Deployment,
    Ran,
    Ready,
    Run,
    Switch,
    decode,
)
from edge_agent.wire.parts import SubgraphFile


class DividedModel:
    """A model in a pool, its parts compiled when they are asked for."""

    def __init__(self, workshop: Workshop, pool: Pool, inputs: Arrays) -> None:
        """Use `divided`."""
        self.workshop = workshop
        self.pool = pool
        self.inputs = inputs
        self._shapes = tuple((TensorName(n), a.shape) for n, a in inputs.items())

    def files(self, *cuts: int) -> tuple[Path, ...]:
        """The compiled parts between `cuts`, which are numbers of segments."""
        bounds = (0, *cuts, len(self.workshop.summary.segments))
        ranges = [SegmentRange(start=a, stop=b) for a, b in itertools.pairwise(bounds)]
        return tuple(self.workshop.compiled(r, Layout.BLOCKED) for r in ranges)

    @contextmanager
    def worker(self, files: Sequence[Path]) -> Iterator[PartsWorker]:
        """A worker that opened these parts and ran them twice."""
        child = Child("edge_agent.worker")
        try:
            worker = PartsWorker(self, child.pid, FrameStream(child.stream))
            worker.deploy(files)
            yield worker
        finally:
            child.end()

    def deployment(self, files: Sequence[Path], number: int) -> Deployment:
        """These parts as an epoch of that number."""
        summary = self.workshop.summary
        return Deployment(
            epoch=Epoch(owner="bench", incarnation=1, model=summary.model, number=number),
            subgraphs=tuple(
                SubgraphFile(
                    path=str(path),
                    level=OptimisationLevel.NONE.value,
                    threads=1,
                    is_plain=False,
                    compiled_for=device_key(),
                )
                for path in files
            ),
            instances=1,
            pinned_cores=(),
            inputs=summary.inputs,
            outputs=summary.outputs,
            warm_shapes=self._shapes,
        )


class PartsWorker:
    """A worker that serves parts of a model."""

    def __init__(self, model: DividedModel, pid: int, stream: FrameStream) -> None:
        self.pid = pid
        self._model = model
        self._stream = stream
        self._codec = Codec()
        self._number = 0

    def deploy(self, files: Sequence[Path]) -> None:
        """Open and run these parts, beside those that it serves; they serve from `switch` on."""
        self._number += 1
        deployment = self._model.deployment(files, self._number)
        self._stream.send(self._codec.encode(deployment))
        raw, _ = self._stream.receive()
        answer = decode(self._codec.from_worker, raw)
        if not isinstance(answer, Ready):
            raise RuntimeError(f"the worker did not open it: {answer}")

    def switch(self) -> None:
        """Serve what was deployed last, and nothing else, once a run of it is answered."""
        model = self._model
        epoch = model.deployment((), self._number).epoch
        self._stream.send(self._codec.encode(Switch(epoch)))
        heads, tensors = pack_arrays(model.inputs)
        run = Run(epoch, 0, heads, tuple(s.name for s in model.workshop.summary.outputs))
        self._stream.send(self._codec.encode(run), tensors)
        raw, _ = self._stream.receive()
        answer = decode(self._codec.from_worker, raw)
        if not isinstance(answer, Ran):
            raise RuntimeError(f"the worker did not run it: {answer}")


@contextmanager
def divided(path: Path, inputs: Arrays, folder: Path) -> Iterator[DividedModel]:
    """The model at `path` in a pool below `folder`, divided for the shapes of `inputs`."""
    settings = Settings(socket=folder / "s", state=folder, cache=folder / "cache")
    pool = Pool(folder / POOL_FOLDER, settings.limits.max_compiled_bytes)
    admitted = admit(path, settings, on_staged=lambda _: None, wait_until_movable=lambda: None)
    models = ModelStore(folder)
    with (
        pooled(admitted.model, models, pool) as entry,
        Compiler(pool, admitted.model, device_key()) as compiler,
    ):
        models.collect(set())  # the pool has it now
        graph = ModelGraph.load(entry.graph)
        shapes = {TensorName(name): array.shape for name, array in inputs.items()}
        specs = inner_specs(graph, shapes, compiler.draft("probe.onnx"))
        summary = summarise(graph, admitted.model, shapes, specs)
        workshop = Workshop(graph, summary, general_specs(graph, specs), compiler)
        yield DividedModel(workshop, pool, inputs)
