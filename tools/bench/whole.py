"""What a whole model gives on plain ONNX Runtime, in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from edge_agent.tensors import Arrays


def outputs_of(path: Path, samples: Sequence[Arrays]) -> list[Arrays]:
    """The outputs for each of the samples, by name."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, str(path), list(samples)).result()


def _run(path: str, samples: Sequence[Arrays]) -> list[Arrays]:
    from edge_agent.engine.runtime import CPU, load_runtime  # in the child alone

    runtime = load_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(path, options, providers=[CPU])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, feeds), strict=True)) for feeds in samples]
