"""Which made-up inputs a model runs on, where it leaves dimensions open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_agent.engine.cancel import cancelled_after
from edge_agent.engine.session import Session
from edge_agent.errors import EdgeAgentError
from edge_agent.samples import random_arrays, sample_bytes
from edge_agent.tensors import Arrays, Shape, TensorName

log = logging.getLogger(__name__)

SAMPLES = 2
OPEN_SIZES = (64, 224, 16, 320, 48, 128, 1, 512, 2)
"""Sizes tried for dimensions that the model leaves open, until it runs."""
SAMPLE_RUN_S = 60.0
"""A model that takes longer than this once could not be measured within any budget; and one that
never ends must not keep the others from their plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Inputs that the model runs on."""

    arrays: tuple[Arrays, ...]
    shapes: dict[TensorName, Shape]


def find_samples(
    session: Session,
    given: Mapping[TensorName, Shape],
    max_bytes: int,
    *,
    seed: int = 0,
    run_s: float = SAMPLE_RUN_S,
) -> Samples | None:
    """Made-up inputs that the model runs on, for the given shapes or for sizes that are tried;
    None if it runs on none of them of at most `max_bytes` bytes within `run_s` seconds."""
    rng = np.random.default_rng(seed)
    for open_size in OPEN_SIZES:
        if sample_bytes(session.inputs, given, open_size) > max_bytes:
            continue
        arrays = tuple(random_arrays(session.inputs, given, rng, open_size) for _ in range(SAMPLES))
        try:
            for sample in arrays:
                with cancelled_after(run_s) as cancel:
                    session.run(sample, session.output_names, cancel)
        except EdgeAgentError as error:
            log.info("does not run with open dimensions of %d: %s", open_size, error)
            if all(spec.is_static or spec.name in given for spec in session.inputs):
                return None
            continue
        tensors = [spec.name for spec in session.inputs if not spec.container]
        shapes = {name: arrays[0][name].shape for name in tensors if name in arrays[0]}
        return Samples(arrays=arrays, shapes=shapes)
    return None
