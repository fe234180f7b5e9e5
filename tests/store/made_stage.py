"""A stage that was made up, for tests of stores."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from edge_agent.stages import Blob, StageModel
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import ElementType, TensorName, TensorSpec

MODEL = ModelId("1" * 64)


def blob(name: str, size_bytes: int = 1000) -> Blob:
    return Blob(sha256=hashlib.sha256(name.encode()).hexdigest(), size_bytes=size_bytes)


def stage(
    name: str = "s",
    *,
    model: ModelId = MODEL,
    tensors: Sequence[str] = ("t",),
    size_bytes: int = 1000,
) -> StageModel:
    """Its graph is called `name`; everything of it has `size_bytes`."""
    spec = TensorSpec(name=TensorName("x"), element_type=ElementType.FLOAT32, dims=(1, "n", None))
    return StageModel(
        model=model,
        segments=SegmentRange(start=2, stop=4),
        starts=(0, 3),
        nodes=5,
        graph=blob(f"graph {name}", size_bytes),
        tensors=tuple(blob(f"tensor {tensor}", size_bytes) for tensor in tensors),
        samples=(blob(f"sample {name}", size_bytes),),
        inputs=(spec,),
        outputs=(spec,),
        shapes=((TensorName("x"), (1, 7, 3)),),
    )
