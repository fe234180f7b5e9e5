"""What ONNX Runtime infers about values inside a graph, where onnx's own inference gives up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_agent.engine.session import OptimisationLevel, open_on_cpu, session_options
from edge_agent.engine.values import spec_of
from edge_agent.errors import InputMismatch
from edge_agent.tensors import Shape, TensorName, ValueSpecs


def infer_specs(path: Path, names: Sequence[str], shapes: Mapping[str, Shape]) -> ValueSpecs:
    """Specs of the values `names`, which the graph at `path` lists as outputs (a name suffices).

    `shapes` gives inputs concrete shapes: the symbolic sizes in their declarations are replaced
    throughout. A scalar is reported with `dims=None`, like a value of unknown rank: ONNX Runtime
    does not tell them apart.

    Raises: InputMismatch if a shape contradicts the declaration; ModelRefused.
    """
    wanted = set(names)
    sizes = _symbolic_sizes(_opened(path, {}), shapes) if shapes else {}
    found = [d for d in _opened(path, sizes).get_outputs() if d.name in wanted]
    specs = {TensorName(d.name): spec_of(d) for d in found}
    return ValueSpecs(
        tensors={n: spec for n, spec in specs.items() if spec is not None and not spec.container},
        others={
            TensorName(d.name): d.type
            for d in found
            if (spec := specs[TensorName(d.name)]) is None or spec.container
        },
    )


def _opened(path: Path, sizes: Mapping[str, int]) -> Any:
    options = session_options(OptimisationLevel.NONE, threads=1)
    # Nothing is going to run, so packing weights would be lost work.
    options.add_session_config_entry("session.disable_prepacking", "1")
    for symbol, size in sizes.items():
        options.add_free_dimension_override_by_name(symbol, size)
    return open_on_cpu(path, options)


def _symbolic_sizes(session: Any, shapes: Mapping[str, Shape]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for declared in session.get_inputs():
        spec, shape = spec_of(declared), shapes.get(declared.name)
        if spec is None or spec.dims is None or shape is None:
            continue
        if len(spec.dims) != len(shape):
            raise InputMismatch(f'input "{spec.name}": got shape {list(shape)}, want {spec}')
        for dim, size in zip(spec.dims, shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise InputMismatch(
                    f'input "{spec.name}": got {size} for "{dim}", which is {sizes[dim]} elsewhere'
                )
            if isinstance(dim, int) and dim != size:
                raise InputMismatch(f'input "{spec.name}": got shape {list(shape)}, want {spec}')
    return sizes
