from __future__ import annotations

import pytest

from edge_agent import clock
from edge_agent.devices import ComputeUnit, Layout, UnitId, UnitKind
from edge_agent.engine.runtime import CPU, runtime_version
from edge_agent.profiling.rates import keep_busy, measure_unit
from edge_agent.summaries import Arithmetic


def _processor(cores: int) -> ComputeUnit:
    return ComputeUnit(
        id=UnitId("cpu"),
        kind=UnitKind.CPU,
        provider=CPU,
        provider_version=runtime_version(),
        layouts=(Layout.NCHW, Layout.BLOCKED),
        cores=cores,
    )


@pytest.mark.alone
@pytest.mark.long
def test_a_processor_is_measured_with_one_thread_and_with_all() -> None:
    one, both = measure_unit(_processor(2))
    assert (one.threads, both.threads) == (1, 2)
    for rates in (one, both):
        assert [a for a, _ in rates.operations_per_s] == [Arithmetic.FLOAT32, Arithmetic.INT8]
        assert all(1e8 < rate < 1e14 for _, rate in rates.operations_per_s)
        assert 1e8 < rates.bytes_per_s < 1e13
        assert 0 < rates.operator_s < rates.launch_s < 1e-2


def test_a_unit_is_kept_busy_for_as_long_as_asked() -> None:
    begun_s: list[float] = []
    keep_busy(_processor(1), 0.2, lambda: begun_s.append(clock.precise_s()))
    assert len(begun_s) == 1
    assert clock.precise_s() - begun_s[0] >= 0.2
