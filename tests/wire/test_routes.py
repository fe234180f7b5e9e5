"""Distributions come over the wire as they were, and nothing else is taken for one."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.devices import DeviceId
from edge_agent.distributions import (
    Alone,
    Appraisal,
    Distribution,
    Infeasible,
    LeftOut,
    MemoryUse,
    Metrics,
    PlacedArm,
    PlacedFork,
    PlacedSubgraph,
    Planned,
    Route,
)
from edge_agent.errors import ProtocolError
from edge_agent.plans import Target
from edge_agent.subgraphs import SegmentRange
from edge_agent.wire.messages import Codec, Distributions, decode
from edge_agent.wire.routes import pack, unpack
from tests.planning.made_models import configuration

CODEC = Codec()
A, B = DeviceId("a"), DeviceId("b")
SUBGRAPH = PlacedSubgraph(
    segments=SegmentRange(start=0, stop=2), device=A, configuration=configuration()
)
FORK = PlacedFork(
    fork=1,
    segments=SegmentRange(start=2, stop=5),
    home=A,
    arms=(
        PlacedArm(branches=(0, 2), device=A, configuration=configuration()),
        PlacedArm(branches=(1,), device=B, configuration=configuration(threads=2, instances=2)),
    ),
)
numbers = st.floats(min_value=0.0, allow_nan=False)
metrics = st.builds(
    Metrics,
    latency_s=numbers,
    throughput_per_s=numbers,
    energy_joules=numbers,
    peak_memory_bytes=numbers,
    wire_bytes=numbers,
    latency_error_s=numbers,
)
routes = st.builds(
    Route,
    steps=st.lists(st.sampled_from([SUBGRAPH, FORK]), min_size=1, max_size=4).map(tuple),
    share=numbers,
)
distributions = st.builds(
    Distribution,
    target=st.sampled_from(Target),
    routes=st.lists(routes, max_size=3).map(tuple),
    metrics=metrics,
    bound=numbers,
)
infeasible = st.builds(
    Infeasible,
    target=st.sampled_from(Target),
    reason=st.text(max_size=20),
    is_certain=st.booleans(),
)
devices = st.sampled_from([A, B])
appraisals = st.builds(
    Appraisal,
    memory=st.lists(
        st.builds(MemoryUse, name=devices, used_bytes=numbers, budget_bytes=st.integers(0, 2**40)),
        max_size=2,
    ).map(tuple),
    estimated=st.lists(devices, max_size=2).map(tuple),
    alone=st.lists(st.builds(Alone, device=devices, metrics=metrics), max_size=2).map(tuple),
    left_out=st.lists(
        st.builds(LeftOut, device=devices, reason=st.text(max_size=20)), max_size=2
    ).map(tuple),
)
answers = st.builds(
    Planned,
    best=st.lists(distributions | infeasible, max_size=5).map(tuple),
    front=st.lists(distributions, max_size=3).map(tuple),
    knows_energy=st.booleans(),
    disturbed_fraction=st.floats(0, 1),
    appraisals=st.lists(appraisals, max_size=5).map(tuple),
    notes=st.lists(st.text(max_size=20), max_size=3).map(tuple),
    names=st.lists(st.tuples(devices, st.text(max_size=9)), max_size=2).map(tuple),
    division=st.text(max_size=9),
)
EXAMPLE = Planned(
    best=(
        Distribution(
            target=Target.THROUGHPUT,
            routes=(Route(steps=(SUBGRAPH, FORK)),),
            metrics=Metrics(
                latency_s=1.0,
                throughput_per_s=math.inf,
                energy_joules=0.0,
                peak_memory_bytes=1.0,
                wire_bytes=0.0,
            ),
            bound=math.inf,
        ),
        Infeasible(target=Target.MEMORY, reason="no"),
    ),
    front=(),
    knows_energy=False,
    disturbed_fraction=0.5,
)


def sent(planned: Planned) -> bytes:
    return CODEC.encode(Distributions(pack(planned)))


def received(raw: bytes) -> Planned:
    found = decode(CODEC.from_agent, raw)
    assert isinstance(found, Distributions)
    return unpack(found.planned)


@given(answers)
def test_an_answer_comes_back_as_it_was(planned: Planned) -> None:
    assert received(sent(planned)) == planned


def test_forks_and_rates_without_end_survive_the_way() -> None:
    assert received(sent(EXAMPLE)) == EXAMPLE


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m["best"][0].update(kind="perhaps"), "perhaps"),
        (lambda m: m["best"][0].update(more=1), "more"),
        (lambda m: m["best"][0]["routes"][0]["steps"][0].update(kind="branch"), "branch"),
        (lambda m: m["best"][0]["routes"][0]["steps"][0].update(kind="fork"), "fork"),
        (lambda m: m["best"][0]["routes"][0].pop("share"), "share"),
        (lambda m: m["best"][0].update(target="comfort"), "comfort"),
        (lambda m: m.update(best=m["best"] * 3), "length"),
        (lambda m: m.pop("front"), "front"),
        (lambda m: m.update(knows_energy=1), "knows_energy"),
        (lambda m: m.update(disturbed_fraction=1.5), "disturbed_fraction"),
        (
            lambda m: m["best"][0]["routes"][0]["steps"][0]["placed"]["segments"].update(stop=0),
            "0 <= start < stop",
        ),
    ],
)
def test_what_is_no_answer_is_refused(change: Any, told: str) -> None:
    plain = msgspec.msgpack.decode(sent(EXAMPLE))
    change(plain["planned"])
    with pytest.raises(ProtocolError, match=told):
        received(msgspec.msgpack.encode(plain))
