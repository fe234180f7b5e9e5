"""Which units this environment has, and which it is expected to have (`tools/testbed units`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge_agent.devices import ComputeUnit, RefusedUnit
from edge_agent.engine.offers import candidates
from edge_agent.engine.runtime import CPU, runtime_build, runtime_version
from edge_agent.engine.units import find_units, probe_in_child

PROBE_S = 120.0
Found = tuple[tuple[ComputeUnit, ...], tuple[RefusedUnit, ...]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect-units",
        metavar="ID,...",
        help="fail, rather than skip, where one of these units is missing or another one is there",
    )


@pytest.fixture(scope="session")
def expected(pytestconfig: pytest.Config) -> frozenset[str]:
    """Ids of the units that must be here; none where nobody said so."""
    # pytest only knows the option where it is called with this folder.
    given = pytestconfig.getoption("--expect-units", None)
    return frozenset(given.split(",")) if given else frozenset()


@pytest.fixture(scope="session")
def found() -> Found:
    """The units and the refused providers of this environment, as the agent finds them."""
    return probe_in_child(PROBE_S, cores=2)


@pytest.fixture(scope="session", autouse=True)
def _woken(found: Found) -> None:
    """Run something on each unit first: drivers keep files open from then on."""
    names = {u.provider for u in found[0]} - {CPU}
    if names:
        find_units(cores=1, skip={c.provider for c in candidates()} - names)


@pytest.fixture
def unit(found: Found, expected: frozenset[str]) -> Callable[[str], ComputeUnit]:
    """The unit of that id; skips the test where there is none, unless it is expected."""

    def get(name: str) -> ComputeUnit:
        for each in found[0]:
            if each.id == name:
                return each
        missing = f"{runtime_build()} {runtime_version()} has no unit {name} here"
        if name in expected:
            refused = [f"{r.provider}: {r.reason}" for r in found[1]]
            pytest.fail(f"{missing}; refused: {'; '.join(refused) or 'nothing'}")
        pytest.skip(f"{missing}; tools/testbed units makes an environment for it")

    return get
