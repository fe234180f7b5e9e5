"""How fast a compute unit of this device is, measured with models of a few nodes.

Peaks are those of square matrix products, of the better of two sizes: a large one keeps all of a
unit busy, a small one is over before others on the same cores get in between. The bandwidth is
that of pointwise operators, one behind the other, on a tensor that fits no cache, which read and
write it once each; what an operator costs is told by as many on a tensor of two elements. Of each,
the least of several times counts: others can only make it longer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_agent import clock
from edge_agent.devices import ComputeUnit
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.engine.tiny import chain_model, one_node_model, quantised_model
from edge_agent.errors import EdgeAgentError
from edge_agent.profiling.measured import UnitRates
from edge_agent.summaries import Arithmetic
from edge_agent.tensors import Arrays

_HOST_SIDES = (256, 768)
_ACCELERATOR_SIDES = (768, 2048)
_LARGE_ELEMENTS = 16 << 20
_LARGE_CHAIN = 5
_SMALL_CHAIN = 201
_LEAST_RUNS, _MOST_RUNS = 5, 200
_BUDGET_S = 0.6


def measure_unit(
    unit: ComputeUnit, wait_for_turn: Callable[[], None] = lambda: None
) -> tuple[UnitRates, ...]:
    """The rates of a unit: of a processor with one thread, and with all its cores if it has more.

    Takes some seconds for each, with nothing beside it; `wait_for_turn` is called before every
    slice of about a second.

    Raises:
        EdgeAgentError: it fails at what it was found to be able to do.
    """
    counts = sorted({1, unit.cores}) if unit.cores else [0]
    with tempfile.TemporaryDirectory(prefix="edge-agent-") as scratch:
        return tuple(
            _Bench(unit, threads, Path(scratch), wait_for_turn).rates() for threads in counts
        )


def keep_busy(unit: ComputeUnit, duration_s: float, on_begun: Callable[[], None]) -> None:
    """Have a unit multiply matrices, with all its threads, for so long after `on_begun` was called.

    Raises:
        EdgeAgentError: it fails at it.
    """
    with tempfile.TemporaryDirectory(prefix="edge-agent-") as scratch:
        run = _Bench(unit, unit.cores, Path(scratch)).product()
        run()
        on_begun()
        until_s = clock.precise_s() + duration_s
        while clock.precise_s() < until_s:
            run()


class _Bench:
    def __init__(
        self,
        unit: ComputeUnit,
        threads: int,
        scratch: Path,
        wait_for_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self._unit = unit
        self._threads = threads
        self._scratch = scratch
        self._wait_for_turn = wait_for_turn
        self._sides = _HOST_SIDES if unit.cores else _ACCELERATOR_SIDES

    def rates(self) -> UnitRates:
        one_s, many_s = self._chain_s(1, 2), self._chain_s(_SMALL_CHAIN, 2)
        operator_s = _each_s(one_s, many_s, _SMALL_CHAIN)
        short_s = self._chain_s(1, _LARGE_ELEMENTS)
        long_s = self._chain_s(_LARGE_CHAIN, _LARGE_ELEMENTS)
        pass_s = _each_s(short_s, long_s, _LARGE_CHAIN)
        return UnitRates(
            threads=self._threads,
            operations_per_s=tuple(self._peaks()),
            bytes_per_s=2 * 4 * _LARGE_ELEMENTS / pass_s,
            launch_s=max(one_s - operator_s, 0.0),
            operator_s=operator_s,
        )

    def product(self) -> Callable[[], object]:
        """A run of a matrix product, in float32 if the unit takes it, else quantised."""
        side = self._sides[-1]
        is_float = self._unit.takes_floats
        return self._float_product(side) if is_float else self._quantised_product(side)

    def _peaks(self) -> Iterator[tuple[Arithmetic, float]]:
        if self._unit.takes_floats:
            yield Arithmetic.FLOAT32, self._peak(self._float_product)
        try:
            quantised = self._peak(self._quantised_product)
        except EdgeAgentError:
            # Many units take no quantised product, and have a rate for float32 then.
            if not self._unit.takes_floats:
                raise
        else:
            yield Arithmetic.INT8, quantised

    def _peak(self, product: Callable[[int], Callable[[], object]]) -> float:
        """Operations per second of the product with the better side."""
        return max(2 * side**3 / self._least_s(partial(product, side)) for side in self._sides)

    def _float_product(self, side: int) -> Callable[[], object]:
        model = one_node_model("MatMul", opset=13, inputs=("x", "w"), shape=(side, side))
        return self._run(model, {"x": _square(side), "w": _square(side)})

    def _quantised_product(self, side: int) -> Callable[[], object]:
        weight = _square(side).astype(np.uint8).tobytes()
        return self._run(quantised_model(side, weight, 4.0), {"x": _square(side)})

    def _chain_s(self, nodes: int, elements: int) -> float:
        vector = np.linspace(-1.0, 1.0, elements, dtype=np.float32)
        return self._least_s(lambda: self._run(chain_model(nodes, elements), {"v0": vector}))

    def _least_s(self, opened: Callable[[], Callable[[], object]]) -> float:
        """What a run of something takes that is opened first."""
        self._wait_for_turn()
        return _least_s(opened())

    def _run(self, model: bytes, arrays: Arrays) -> Callable[[], object]:
        path = self._scratch / "bench.onnx"
        path.write_bytes(model)
        # On the processor, default options: whatever layout, these operators know none.
        use = self._unit.use(self._unit.layouts[0], self._threads) if not self._unit.cores else None
        session = Session.open(
            path, threads=self._threads or 1, level=OptimisationLevel.ALL, use=use, is_silent=True
        )
        return lambda: session.run(arrays, session.output_names)


def _square(side: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).integers(0, 2, (side, side)).astype(np.float32)


def _each_s(one_s: float, many_s: float, count: int) -> float:
    """What each operator of a chain takes, where one takes `one_s` with all that is around it."""
    each_s = (many_s - one_s) / (count - 1)
    # Where others used the processor meanwhile, one may seem to take as long as many.
    return each_s if each_s > 0 else many_s / count


def _least_s(run: Callable[[], object]) -> float:
    run()
    end_s = clock.precise_s() + _BUDGET_S
    found: list[float] = []
    while len(found) < _LEAST_RUNS or (clock.precise_s() < end_s and len(found) < _MOST_RUNS):
        started_s = clock.precise_s()
        run()
        found.append(clock.precise_s() - started_s)
    return min(found)
