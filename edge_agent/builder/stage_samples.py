"""The values that come into a stage, as its owner computed them: how they are packed, and what is
checked of those that come from another device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from edge_agent.builder.given import GivenSample, decode_sample, encode_sample, fitting
from edge_agent.builder.made_up import SAMPLE_RUN_S, Samples
from edge_agent.engine.session import Session
from edge_agent.engine.values import check_array
from edge_agent.errors import InputMismatch, ModelRefused, StorageError
from edge_agent.stages import StageModel
from edge_agent.store.pool import Pool
from edge_agent.store.stage_content import read_blob
from edge_agent.tensors import Arrays, Shape, TensorName, TensorSpec, required

MAX_SAMPLES = 2
"""Of a stage. Each is as large as all that crosses to it; the first is compared with and timed."""


def pack(samples: Sequence[Arrays]) -> list[bytes]:
    """Each of them in one piece."""
    return [
        # What a user's file is called is nothing that other devices need to know.
        encode_sample(GivenSample(name=f"sample {number}", arrays=arrays))
        for number, arrays in enumerate(samples)
    ]


def shapes_of(arrays: Arrays, inputs: Iterable[TensorSpec]) -> tuple[tuple[TensorName, Shape], ...]:
    """The shapes of a sample, in the order of the inputs that it must have."""
    return tuple((name, arrays[name].shape) for name in required(inputs))


def check_samples(stage: StageModel, contents: Sequence[bytes]) -> None:
    """Compare packed samples with what their stage declares.

    Raises: ModelRefused: one is no sample of it.
    """
    if not 1 <= len(contents) <= MAX_SAMPLES:
        raise ModelRefused(f"got {len(contents)} samples, want 1 to {MAX_SAMPLES}; cut it again")
    for number, content in enumerate(contents):
        try:
            _check(stage, decode_sample(content).arrays)
        except (StorageError, InputMismatch) as error:
            raise ModelRefused(f"sample {number}: {error}; cut it again") from error


def _check(stage: StageModel, arrays: Arrays) -> None:
    specs = {str(spec.name): spec for spec in stage.inputs}
    for needed in required(stage.inputs):
        if needed not in arrays:
            raise InputMismatch(f'input "{needed}" is missing, want {specs[needed]}')
    for name, array in arrays.items():
        spec = specs.get(name)
        if spec is None:
            raise InputMismatch(f'got a value for "{name}", want one of the inputs {list(specs)}')
        if not isinstance(array, np.ndarray):
            raise InputMismatch(f'input "{name}": got a {type(array).__name__}, want {spec}')
        check_array(spec, array)
    if (got := shapes_of(arrays, stage.inputs)) != stage.shapes:
        raise InputMismatch(f"got shapes {dict(got)}, want {dict(stage.shapes)}")


def stage_samples(
    stage: StageModel, session: Session, pool: Pool, grant: Callable[[], None]
) -> Samples:
    """The samples of a stage of the pool that is open in `session`.

    Nothing is made up beside them: inside of a model, most random values mean nothing, and what a
    layout computes of them would be compared for nothing.

    Raises: ModelRefused: it does not run on them; StorageError.
    """
    packed = [decode_sample(read_blob(blob, pool)) for blob in stage.samples]
    arrays, shapes = fitting(session, packed, dict(stage.shapes), SAMPLE_RUN_S, grant)
    if not arrays:
        raise ModelRefused(
            f"stage {stage.segments} of model {stage.model[:12]}…: none of its samples has the "
            f"shapes {dict(stage.shapes)}; cut it again"
        )
    return Samples(arrays=arrays, shapes=shapes)
