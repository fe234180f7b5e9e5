"""Both sides of the comparison divide the same model at the same place."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np

from tests.model.made_models import run
from tests.system.made_models import convolving, image

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_split"


def test_all_sides_write_parts_that_compute_the_same(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made: Any = runpy.run_path(str(TOOL))["_division"](
        convolving(tmp_path / "net.onnx"), tmp_path / "out"
    )
    assert (made.cut, made.inputs, made.crossing, made.outputs) == (4, ("x",), ("r1",), ("y",))
    made.ours()
    parts = [made.folder / "parts" / f"part-{number}.onnx" for number in (1, 2)]
    wanted = run(parts[0], image())["r1"]
    for theirs in (made.theirs, made.theirs_once):
        theirs()
        np.testing.assert_array_equal(run(made.folder / "before.onnx", image())["r1"], wanted)
    made.clear()
    assert list(made.folder.iterdir()) == []
