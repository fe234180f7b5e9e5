"""How fast a compute unit of this device is, measured with models of a few nodes.

Peaks are those of a square matrix product, large enough that nothing else counts; the bandwidth is
that of pointwise operators, one behind the other, on a tensor that fits no cache, which read and
write it once each; what an operator costs is told by as many on a tensor of two elements. Of each,
the least of several times counts: others can only make it longer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_agent import clock
from edge_agent.devices import ComputeUnit
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.engine.tiny import chain_model, one_node_model, quantised_model
from edge_agent.errors import EdgeAgentError
from edge_agent.hardware import Source, Sourced, UnitProfile
from edge_agent.subgraphs import Arithmetic
from edge_agent.tensors import Arrays

_SIDE = 768
_LARGE_ELEMENTS = 16 << 20
_LARGE_CHAIN = 5
_SMALL_CHAIN = 201
_LEAST_RUNS, _MOST_RUNS = 5, 200
_BUDGET_S = 0.6
_SHORTEST_S = 1e-9
"""What a difference of two times counts as at least: it may come out as nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRates:
    """What a compute unit sustains with so many threads."""

    threads: int
    operations_per_s: tuple[tuple[Arithmetic, float], ...]
    """Of what it computes in, in the order of `Arithmetic`."""
    bytes_per_s: float
    launch_s: float
    operator_s: float


def measure_unit(unit: ComputeUnit) -> tuple[UnitRates, ...]:
    """The rates of a unit: of a processor with one thread, and with all its cores if it has more.

    Takes some seconds for each, with nothing beside it.

    Raises:
        EdgeAgentError: it fails at what it was found to be able to do.
    """
    counts = sorted({1, unit.cores}) if unit.cores else [0]
    with tempfile.TemporaryDirectory(prefix="edge-agent-") as scratch:
        return tuple(_Bench(unit, threads, Path(scratch)).rates() for threads in counts)


def best_of(measured: Sequence[tuple[UnitRates, ...]]) -> tuple[UnitRates, ...]:
    """The best of what several calls of `measure_unit` found of one unit: where others use the
    processor meanwhile, rates can only be too low."""
    return tuple(
        UnitRates(
            threads=of_threads[0].threads,
            operations_per_s=tuple(
                (arithmetic, max(dict(rates.operations_per_s)[arithmetic] for rates in of_threads))
                for arithmetic, _ in of_threads[0].operations_per_s
            ),
            bytes_per_s=max(rates.bytes_per_s for rates in of_threads),
            launch_s=min(rates.launch_s for rates in of_threads),
            operator_s=min(rates.operator_s for rates in of_threads),
        )
        for of_threads in zip(*measured, strict=True)
    )


class _Bench:
    def __init__(self, unit: ComputeUnit, threads: int, scratch: Path) -> None:
        self._unit = unit
        self._threads = threads
        self._scratch = scratch

    def rates(self) -> UnitRates:
        one_s, many_s = self._chain_s(1, 2), self._chain_s(_SMALL_CHAIN, 2)
        operator_s = max((many_s - one_s) / (_SMALL_CHAIN - 1), _SHORTEST_S)
        short_s = self._chain_s(1, _LARGE_ELEMENTS)
        long_s = self._chain_s(_LARGE_CHAIN, _LARGE_ELEMENTS)
        pass_s = max((long_s - short_s) / (_LARGE_CHAIN - 1), _SHORTEST_S)
        return UnitRates(
            threads=self._threads,
            operations_per_s=tuple(self._peaks()),
            bytes_per_s=2 * 4 * _LARGE_ELEMENTS / pass_s,
            launch_s=max(one_s - operator_s, _SHORTEST_S),
            operator_s=operator_s,
        )

    def _peaks(self) -> Sequence[tuple[Arithmetic, float]]:
        operations = 2 * _SIDE**3
        rng = np.random.default_rng(0)
        x = rng.integers(0, 2, (_SIDE, _SIDE)).astype(np.float32)
        found = []
        if self._unit.takes_floats:
            shape = (_SIDE, _SIDE)
            model = one_node_model("MatMul", opset=13, inputs=("x", "w"), shape=shape)
            took_s = self._run_s(model, {"x": x, "w": x})
            found.append((Arithmetic.FLOAT32, operations / took_s))
        weight = rng.integers(0, 2, _SIDE * _SIDE).astype(np.uint8).tobytes()
        try:
            took_s = self._run_s(quantised_model(_SIDE, weight, 4.0), {"x": x})
        except EdgeAgentError:
            # Many units take no quantised product, and have a rate for float32 then.
            if not self._unit.takes_floats:
                raise
        else:
            found.append((Arithmetic.INT8, operations / took_s))
        return found

    def _chain_s(self, nodes: int, elements: int) -> float:
        vector = np.linspace(-1.0, 1.0, elements, dtype=np.float32)
        return self._run_s(chain_model(nodes, elements), {"v0": vector})

    def _run_s(self, model: bytes, arrays: Arrays) -> float:
        path = self._scratch / "bench.onnx"
        path.write_bytes(model)
        # On the processor, default options: whatever layout, these operators know none.
        use = self._unit.use(self._unit.layouts[0], self._threads) if not self._unit.cores else None
        session = Session.open(
            path, threads=self._threads or 1, level=OptimisationLevel.ALL, use=use, is_silent=True
        )
        return _least_s(lambda: session.run(arrays, session.output_names))


def _least_s(run: Callable[[], object]) -> float:
    run()
    end_s = clock.precise_s() + _BUDGET_S
    found: list[float] = []
    while len(found) < _LEAST_RUNS or (clock.precise_s() < end_s and len(found) < _MOST_RUNS):
        started_s = clock.precise_s()
        run()
        found.append(clock.precise_s() - started_s)
    return min(found)


def unit_profile(unit: ComputeUnit, measured: Sequence[UnitRates], source: Source) -> UnitProfile:
    """What `measure_unit` found of a unit, as part of a device profile."""
    one, all_cores = measured[0], measured[-1]

    def sourced(value: float) -> Sourced:
        return Sourced(value=value, source=source)

    # Two threads are never slower than one: where it seems so, something else ran meanwhile.
    peaks = {
        arithmetic: max(rate, dict(one.operations_per_s)[arithmetic])
        for arithmetic, rate in all_cores.operations_per_s
    }
    is_host = bool(unit.cores)
    return UnitProfile(
        id=unit.id,
        kind=unit.kind,
        cores=sourced(unit.cores) if is_host else None,
        operations_per_s=tuple((a, sourced(rate)) for a, rate in peaks.items()),
        core_operations_per_s=tuple((a, sourced(rate)) for a, rate in one.operations_per_s)
        if is_host
        else (),
        bandwidth_bytes_per_s=sourced(max(one.bytes_per_s, all_cores.bytes_per_s)),
        core_bandwidth_bytes_per_s=sourced(one.bytes_per_s) if is_host else None,
        launch_s=sourced(one.launch_s),
        operator_s=sourced(one.operator_s),
        memory_bytes=sourced(unit.memory_bytes) if unit.memory_bytes else None,
        layouts=unit.layouts,
        threads=tuple(rates.threads for rates in measured) if is_host else (),
        takes=() if unit.takes_floats else (Arithmetic.INT8,),
    )
