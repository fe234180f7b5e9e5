"""How far an output may be from the reference, by element type.

Largest |difference| relative to the largest |reference|. Optimisation levels of one runtime
differ by up to 5e-5 in float32, 9e-4 in float16, and 3e-3 in float32 behind quantised operators,
measured on real models; the bounds leave room above that and are far below what a wrong plan does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_agent.tensors import Array

FLOAT_TOLERANCE = {
    "float16": 1e-2,
    "float32": 1e-3,
    "float64": 1e-6,
    "bfloat16": 5e-2,
    "float8_e4m3fn": 0.15,
    "float8_e4m3fnuz": 0.15,
    "float8_e5m2": 0.3,
    "float8_e5m2fnuz": 0.3,
    "float8_e8m0fnu": 0.6,
    "float4_e2m1fn": 0.35,
}
"""Types below 16 bits: a little more than one step at the end of their range."""
QUANTISED_TOLERANCE = 5e-2
"""For every float type in a model with quantised operators: one rounding step moves much."""
STEP_TOLERANCE = 1
"""For 8-bit integers: one quantisation step."""


def largest_difference(got: Any, want: Any) -> tuple[float, float]:
    """Largest absolute difference, and the same relative to the largest finite reference.

    Infinite where shapes differ, or infinities and NaN stand in different places, or where what is
    no number differs. Sequences and maps agree within the tolerance (0) or do not (infinite).
    """
    if not (isinstance(got, np.ndarray) and isinstance(want, np.ndarray)):
        wrong = _value_disagreement(got, want, is_quantised=False)
        error = 0.0 if wrong is None else float("inf")
        return error, error
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf"), float("inf")
    if want.dtype.kind not in "biufc":
        error = 0.0 if np.array_equal(got, want) else float("inf")
        return error, error
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    wide_got, wide_want = got.astype(wide), want.astype(wide)
    finite = np.isfinite(wide_want)
    same_elsewhere = np.array_equal(wide_got[~finite], wide_want[~finite], equal_nan=True)
    if not same_elsewhere or not np.isfinite(wide_got[finite]).all():
        return float("inf"), float("inf")
    error = float(np.abs(wide_got[finite] - wide_want[finite]).max(initial=0.0))
    scale = float(np.abs(wide_want[finite]).max(initial=0.0))
    if scale > 0.0:
        return error, error / scale
    return error, (0.0 if error == 0.0 else float("inf"))


def disagreement(
    got: Mapping[str, Any],
    want: Mapping[str, Any],
    *,
    is_quantised: bool,
    bound: float | None = None,
) -> str | None:
    """What is wrong with `got`, by name and amount; None if it agrees with the reference.

    Both hold arrays, or what stands for sequences, maps and optionals. `bound` takes the place of
    the tolerance of every float type.
    """
    for name, reference in want.items():
        if name not in got:
            return f'output "{name}" is missing'
        wrong = _value_disagreement(got[name], reference, is_quantised=is_quantised, bound=bound)
        if wrong is not None:
            return f'output "{name}": {wrong}'
    return None


def _value_disagreement(
    got: Any, want: Any, *, is_quantised: bool, bound: float | None = None
) -> str | None:
    """For arrays, lists (sequences), dicts (maps) and None (empty optionals)."""
    if isinstance(want, np.ndarray) and isinstance(got, np.ndarray):
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
        return _array_disagreement(got, want, is_quantised=is_quantised, bound=bound)
    if type(got) is not type(want):
        return f"got a {type(got).__name__}, want a {type(want).__name__}"
    if isinstance(want, list):
        if len(got) != len(want):
            return f"got {len(got)} elements, want {len(want)}"
        wrongs = (
            _value_disagreement(g, w, is_quantised=is_quantised, bound=bound)
            for g, w in zip(got, want, strict=True)
        )
        return next((f"element {at}: {wrong}" for at, wrong in enumerate(wrongs) if wrong), None)
    if isinstance(want, dict):
        if got.keys() != want.keys():
            return f"got the keys {list(got)}, want {list(want)}"
        pair = ([got[key] for key in want], list(want.values()))
        is_float = any(isinstance(value, float) for value in want.values())
        arrays = (np.array(values, np.float32 if is_float else None) for values in pair)
        return _array_disagreement(*arrays, is_quantised=is_quantised, bound=bound)
    return None if got == want else "differs"


def _array_disagreement(
    got: Array, want: Array, *, is_quantised: bool, bound: float | None
) -> str | None:
    if got.dtype.name in FLOAT_TOLERANCE:
        if bound is None:
            bound = FLOAT_TOLERANCE[got.dtype.name]
            if is_quantised:
                bound = max(bound, QUANTISED_TOLERANCE)
        _, error = largest_difference(got, want)
        return f"differs by {error:.2g} of its range, want {bound:g}" if error > bound else None
    if got.dtype.kind in "iu" and got.dtype.itemsize == 1:
        steps = int(np.abs(got.astype(np.int16) - want.astype(np.int16)).max(initial=0))
        return (
            f"differs by {steps} steps, want {STEP_TOLERANCE}" if steps > STEP_TOLERANCE else None
        )
    return None if np.array_equal(got, want) else "differs"
