"""How far an output may be from the reference, by element type.

Largest |difference| relative to the largest |reference|. Optimisation levels of one runtime
differ by up to 5e-5 in float32, 9e-4 in float16, and 3e-3 in float32 behind quantised operators,
measured on real models; the bounds leave room above that and are far below what a wrong plan does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_agent.tensors import Array

FLOAT_TOLERANCE = {"float16": 1e-2, "float32": 1e-3, "float64": 1e-6}
QUANTISED_TOLERANCE = 5e-2
"""For every float type in a model with quantised operators: one rounding step moves much."""
STEP_TOLERANCE = 1
"""For 8-bit integers: one quantisation step."""


def largest_difference(got: Array, want: Array) -> tuple[float, float]:
    """Largest absolute difference, and the same relative to the largest finite reference.

    Infinite where shapes differ, or infinities and NaN stand in different places, or where what is
    no number differs.
    """
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
    got: Mapping[str, Array], want: Mapping[str, Array], *, is_quantised: bool
) -> str | None:
    """What is wrong with `got`, by name and amount; None if it agrees with the reference."""
    for name, reference in want.items():
        array = got.get(name)
        if array is None:
            return f'output "{name}" is missing'
        if array.dtype != reference.dtype or array.shape != reference.shape:
            return (
                f'output "{name}": got {array.dtype}{list(array.shape)}, want '
                f"{reference.dtype}{list(reference.shape)}"
            )
        wrong = _array_disagreement(array, reference, is_quantised=is_quantised)
        if wrong is not None:
            return f'output "{name}": {wrong}'
    return None


def _array_disagreement(got: Array, want: Array, *, is_quantised: bool) -> str | None:
    if got.dtype.kind == "f":
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
