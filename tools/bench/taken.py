"""Knows how many nodes of a model each unit takes, with open dimensions and with fixed ones.

Runs as `python -m bench.taken MODEL NAME UNIT`, because providers end processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from edge_agent.devices import ComputeUnit
from edge_agent.engine.evidence import placement_of
from edge_agent.engine.units import find_units
from edge_agent.errors import ModelRefused
from edge_agent.model.graph import ModelGraph
from edge_agent.model.naming import write_named
from edge_agent.model.specs import infer_specs
from edge_agent.tensors import TensorName
from models.inputs import Arrays, standard_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Of how many nodes, before ONNX Runtime takes some away, how many ran on the unit."""

    nodes: int
    open: int
    fixed: int


def nodes_taken(path: Path, name: str, unit: str) -> Taken | None:
    """What the unit takes of a model; None if that ended the process that found out."""
    tools = str(Path(__file__).resolve().parents[1])
    paths = [tools, *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, "-m", "bench.taken", str(path), name, unit],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = ended.stdout.splitlines()
    return Taken(**json.loads(lines[-1])) if ended.returncode == 0 and lines else None


def _count(graph: ModelGraph, unit: ComputeUnit, inputs: Arrays, *, is_fixed: bool) -> int:
    shapes = {TensorName(n): a.shape for n, a in inputs.items()} if is_fixed else {}
    with tempfile.TemporaryDirectory(prefix="edge-taken-") as folder:
        path = Path(folder) / "named.onnx"
        names = write_named(graph, path, infer_specs(graph, shapes), is_fixed=is_fixed)
        try:
            evidence = placement_of(path, unit.use(unit.layouts[0], 1), names, inputs)
        except ModelRefused:
            return 0
        return evidence.ran_on.count(unit.provider)


def main(path: str, name: str, unit_id: str) -> None:
    """Print what is found as JSON."""
    units, _ = find_units(cores=1)
    (unit,) = (u for u in units if u.id == unit_id)
    graph = ModelGraph.load(Path(path))
    inputs = standard_inputs(name)
    found = Taken(
        nodes=len(graph.nodes),
        open=_count(graph, unit, inputs, is_fixed=False),
        fixed=_count(graph, unit, inputs, is_fixed=True),
    )
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
