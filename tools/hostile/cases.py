"""Knows which model each number stands for: the same one every time."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from pathlib import Path

from onnx.backend.test.loader import load_model_tests

from hostile.damage import damaged_bytes, damaged_model
from hostile.seeds import Seed, seeds

MODEL_FILE = "hostile.onnx"
_OWN_TIMES = 20


def operator_seeds() -> tuple[Seed, ...]:
    """The sound models of the onnx package that try out one operator each."""
    with warnings.catch_warnings():
        # Some overflow on purpose while they are made.
        warnings.simplefilter("ignore")
        found = [case for case in load_model_tests(kind="node") if case.model is not None]
    return tuple(
        Seed(name=case.name, model=case.model)
        for case in sorted(found, key=lambda case: case.name)
        if case.model.ByteSize() < 50_000
    )


def sound(with_operators: bool) -> tuple[Seed, ...]:
    """What is damaged, each as often as any other; beside operators, a fourth are our own."""
    own = seeds()
    return own * _OWN_TIMES + operator_seeds() if with_operators else own


def write_case(number: int, among: Sequence[Seed], folder: Path) -> tuple[Path, str]:
    """Write the damaged model `number` with its data files into `folder`; returns its path, and
    which sound model it was."""
    rng = random.Random(number)
    seed = rng.choice(among)
    model = damaged_model(seed.model, rng) if rng.random() < 0.7 else seed.model
    content = model.SerializeToString()
    if model is seed.model or rng.random() < 0.1:
        content = damaged_bytes(content, rng)
    path = folder / MODEL_FILE
    path.write_bytes(content)
    for location, data in seed.files.items():
        kept = data[: rng.randrange(len(data))] if rng.random() < 0.05 else data
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(kept)
    return path, seed.name
