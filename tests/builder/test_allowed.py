"""What may run where before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.builder.allowed import (
    Allowed,
    allow,
    configurations,
    host_unit,
    pinned_segments,
)
from edge_agent.devices import ComputeUnit, Device, Layout, RefusedUnit, UnitId, UnitKind
from edge_agent.errors import ModelRefused, RunFailed
from edge_agent.plans import SERVED_TARGETS, Pin, Target, unusable_pin
from edge_agent.profiles import HOST_UNIT, Configuration, Placement, RefusedNode, Rejection
from edge_agent.summaries import ModelSummary
from tests.planning.made_models import segment, summary

GPU, NPU = UnitId("gpu0"), UnitId("npu0")
HOST = ComputeUnit(
    id=HOST_UNIT,
    kind=UnitKind.CPU,
    provider="CPUExecutionProvider",
    provider_version="1",
    layouts=(Layout.NCHW, Layout.BLOCKED),
    cores=4,
)
ACCELERATOR = ComputeUnit(
    id=GPU,
    kind=UnitKind.GPU,
    provider="MadeUpExecutionProvider",
    provider_version="1",
    layouts=(Layout.NCHW, Layout.NHWC),
    cores=0,
)
OTHER_CPU = replace(ACCELERATOR, id=UnitId("ov"), cores=4, layouts=(Layout.NATIVE,))
MODEL = summary([segment(i) for i in range(4)])
"""Four segments of three nodes."""


def units_of(found: Sequence[Configuration]) -> list[UnitId]:
    return list(dict.fromkeys(c.unit for c in found))


def placement(
    unit: ComputeUnit, refused: Sequence[int] = (), taken: int | None = None
) -> Placement:
    nodes = tuple(
        RefusedNode(position=at, label=f"node {at}", ran_on="cpu", reason="") for at in refused
    )
    count = MODEL.nodes - len(nodes) if taken is None else taken
    return Placement(unit=unit.id, taken=count, refused=nodes, removed=0, evidence="made up")


def allowed(
    *units: ComputeUnit,
    refused: Sequence[int] = (),
    taken: int | None = None,
    pinned: Sequence[UnitId | None] = (None,) * 4,
    is_fixed: bool = True,
    target: Target = Target.LATENCY,
    cores: int = 4,
    model: ModelSummary = MODEL,
) -> Allowed:
    """What is allowed where every unit refuses the same nodes."""
    return allow(
        model,
        units or (HOST, ACCELERATOR),
        lambda unit: placement(unit, refused, taken),
        target=target,
        cores=cores,
        pinned=pinned,
        is_fixed=is_fixed,
    )


# ---- configurations


@pytest.mark.parametrize("target", SERVED_TARGETS)
def test_a_unit_without_cores_of_the_host_runs_once_in_each_layout_without_threads(
    target: Target,
) -> None:
    assert configurations(ACCELERATOR, target, 4) == (
        Configuration(unit=GPU, layout=Layout.NCHW, threads=0, instances=1),
        Configuration(unit=GPU, layout=Layout.NHWC, threads=0, instances=1),
    )


@pytest.mark.parametrize(
    ("unit_cores", "cores", "threads"),
    [(4, 4, [4, 2, 1]), (2, 4, [2, 1]), (3, 4, [3, 2, 1]), (4, 2, [2, 1]), (1, 4, [1])],
)
def test_a_unit_gets_no_more_threads_than_it_may_use_cores(
    unit_cores: int, cores: int, threads: list[int]
) -> None:
    found = configurations(replace(OTHER_CPU, cores=unit_cores), Target.LATENCY, cores)
    assert [c.threads for c in found] == threads


def test_a_unit_runs_as_many_at_once_as_the_cores_that_it_may_use_take() -> None:
    found = configurations(replace(OTHER_CPU, cores=2), Target.THROUGHPUT, 4)
    assert [(c.threads, c.instances) for c in found] == [(1, 2), (2, 1)]


# ---- the processor


def device(*units: ComputeUnit, refused: tuple[RefusedUnit, ...] = ()) -> Device:
    return Device(
        hostname="here",
        processor="p",
        cores=(0, 1, 2, 3),
        memory_bytes=1 << 30,
        runtime_version="1",
        runtime_build="onnxruntime",
        units=units,
        refused=refused,
    )


def test_the_processor_is_found_wherever_it_stands() -> None:
    assert host_unit(device(ACCELERATOR, HOST)) is HOST


def test_without_the_processor_nothing_can_be_measured() -> None:
    with pytest.raises(ModelRefused, match="the processor is no unit of this device"):
        host_unit(device(ACCELERATOR))


# ---- by evidence


def test_the_processor_may_run_everything_and_is_not_looked_at() -> None:
    def look(unit: ComputeUnit) -> Placement:
        raise AssertionError(f"asked of {unit.id}")

    found = allow(
        MODEL, [HOST], look, target=Target.LATENCY, cores=4, pinned=[None] * 4, is_fixed=False
    )
    assert found == Allowed(configurations=[*configurations(HOST, Target.LATENCY, 4)])


def test_a_unit_that_takes_everything_may_run_everything() -> None:
    found = allowed()
    assert found.configurations == [
        *configurations(HOST, Target.LATENCY, 4),
        *configurations(ACCELERATOR, Target.LATENCY, 4),
    ]
    assert found.refused == {}
    assert found.placements == [placement(ACCELERATOR)]
    assert found.rejections == []


def test_segments_with_a_node_that_is_refused_are_refused_in_every_layout() -> None:
    # The first node of segment 1, the last of segment 2.
    found = allowed(refused=[3, 8])
    assert found.refused == {
        Configuration(unit=GPU, layout=Layout.NCHW, threads=0): frozenset({1, 2}),
        Configuration(unit=GPU, layout=Layout.NHWC, threads=0): frozenset({1, 2}),
    }


def test_a_unit_that_takes_a_part_may_have_the_rest_run_by_the_processor() -> None:
    found = allowed(refused=[3])
    assert [c for c in found.configurations if c.unit == GPU] == [
        Configuration(unit=GPU, layout=Layout.NCHW, threads=4, falls_back=True),
        Configuration(unit=GPU, layout=Layout.NHWC, threads=4, falls_back=True),
        Configuration(unit=GPU, layout=Layout.NCHW, threads=0),
        Configuration(unit=GPU, layout=Layout.NHWC, threads=0),
    ]


def test_with_the_processor_for_the_rest_one_runs_at_a_time_on_all_cores() -> None:
    found = allowed(HOST, OTHER_CPU, refused=[3], target=Target.THROUGHPUT)
    assert [c for c in found.configurations if c.falls_back] == [
        Configuration(unit=OTHER_CPU.id, layout=Layout.NATIVE, threads=4, falls_back=True)
    ]


def test_with_the_processor_for_the_rest_a_unit_gets_no_more_cores_than_it_may_use() -> None:
    found = allowed(HOST, replace(OTHER_CPU, cores=2), refused=[3])
    assert [c for c in found.configurations if c.falls_back] == [
        Configuration(unit=OTHER_CPU.id, layout=Layout.NATIVE, threads=2, falls_back=True)
    ]


@pytest.mark.parametrize(
    ("refused", "taken", "pinned"),
    [
        ((), 12, (None,) * 4),
        (range(12), 0, (None,) * 4),
        ((3,), 11, (None, None, None, GPU)),
    ],
    ids=["nothing is refused", "all is refused", "something is pinned"],
)
def test_else_nothing_falls_back(
    refused: Sequence[int], taken: int, pinned: Sequence[UnitId | None]
) -> None:
    found = allowed(refused=refused, taken=taken, pinned=pinned)
    assert not any(c.falls_back for c in found.configurations)


def test_a_unit_that_takes_some_of_every_segment_only_runs_with_the_processor_for_the_rest() -> (
    None
):
    found = allowed(refused=[0, 3, 6, 9])
    on_gpu = [c for c in found.configurations if c.unit == GPU]
    assert on_gpu
    assert all(c.falls_back for c in on_gpu)
    assert found.refused == {}
    assert found.rejections == [
        Rejection(
            candidate=GPU, reason="refused", detail="no segment is left that it may run whole"
        )
    ]


def test_a_unit_that_refuses_everything_is_rejected_and_what_it_refused_is_told() -> None:
    found = allowed(refused=range(12), taken=0)
    assert units_of(found.configurations) == [HOST_UNIT]
    assert found.refused == {}
    assert [(r.candidate, r.reason) for r in found.rejections] == [(GPU, "refused")]
    assert found.placements == [placement(ACCELERATOR, range(12), 0)]


def test_a_unit_that_does_not_open_the_model_is_rejected_with_its_reason() -> None:
    def look(unit: ComputeUnit) -> Placement:
        if unit.id == GPU:
            raise RunFailed("it has a cold")
        return placement(unit)

    found = allow(
        MODEL,
        [HOST, ACCELERATOR, OTHER_CPU],
        look,
        target=Target.LATENCY,
        cores=4,
        pinned=[None] * 4,
        is_fixed=True,
    )
    assert found.rejections == [Rejection(candidate=GPU, reason="refused", detail="it has a cold")]
    assert units_of(found.configurations) == [HOST_UNIT, OTHER_CPU.id]
    assert found.placements == [placement(OTHER_CPU)]


# ---- open dimensions


def test_a_unit_that_takes_fixed_dimensions_alone_is_not_tried_with_open_ones() -> None:
    fixed_only = replace(ACCELERATOR, takes_open_dimensions=False)
    found = allowed(HOST, fixed_only, is_fixed=False)
    assert units_of(found.configurations) == [HOST_UNIT]
    assert found.placements == []
    ((candidate, detail),) = [(r.candidate, r.detail) for r in found.rejections]
    assert candidate == GPU
    assert detail.startswith("it takes fixed dimensions alone: ")


def test_it_is_with_fixed_ones_and_others_are_with_open_ones() -> None:
    fixed_only = replace(ACCELERATOR, takes_open_dimensions=False)
    assert GPU in units_of(allowed(HOST, fixed_only, is_fixed=True).configurations)
    assert GPU in units_of(allowed(HOST, ACCELERATOR, is_fixed=False).configurations)


# ---- pins


def test_a_segment_that_is_pinned_is_refused_by_all_other_units() -> None:
    found = allowed(HOST, ACCELERATOR, OTHER_CPU, pinned=(None, GPU, None, HOST_UNIT))
    assert {c.unit: segments for c, segments in found.refused.items()} == {
        HOST_UNIT: {1},
        GPU: {3},
        OTHER_CPU.id: {1, 3},
    }
    assert set(found.refused) == set(found.configurations)


def test_pins_come_on_top_of_what_a_unit_refuses_by_itself() -> None:
    found = allowed(refused=[0], pinned=(None, None, HOST_UNIT, GPU))
    assert {c.unit: segments for c, segments in found.refused.items()} == {
        HOST_UNIT: {3},
        GPU: {0, 2},
    }


def test_a_unit_to_which_no_segment_is_left_by_the_pins_is_rejected() -> None:
    found = allowed(pinned=(GPU,) * 4)
    assert units_of(found.configurations) == [GPU]
    assert [r.candidate for r in found.rejections] == [HOST_UNIT]


# ---- memory


def sized(*sizes: tuple[int, int]) -> ModelSummary:
    """Segments with these bytes of weights and activations."""
    return summary(
        [
            segment(i, weight_bytes=weights, activation_bytes=activations)
            for i, (weights, activations) in enumerate(sizes)
        ]
    )


def refused_by(cap: int, model: ModelSummary, refused: Sequence[int] = ()) -> set[int]:
    capped = replace(ACCELERATOR, memory_bytes=cap)
    count = len(model.segments)
    found = allowed(HOST, capped, model=model, refused=refused, pinned=(None,) * count)
    if any(r.candidate == GPU for r in found.rejections):
        return set(range(count))
    return set(chain.from_iterable(s for c, s in found.refused.items() if c.unit == GPU))


def test_what_fits_into_the_memory_of_a_unit_may_all_run_there() -> None:
    model = sized((100, 10), (200, 30), (300, 20), (0, 0))
    assert refused_by(630, model) == set()
    assert refused_by(629, model) == {2}


def test_without_a_cap_everything_fits() -> None:
    assert refused_by(0, sized((1 << 50, 1 << 50), (1, 1))) == set()


def test_the_heaviest_segments_are_left_out_until_the_others_fit_together() -> None:
    model = sized((100, 10), (200, 30), (300, 20), (50, 300))
    assert refused_by(360, model) == {3, 2}
    assert refused_by(329, model) == {3, 2, 1}
    assert refused_by(110, model) == {3, 2, 1}
    assert refused_by(109, model) == {0, 1, 2, 3}


def test_equally_heavy_segments_are_left_out_in_their_order() -> None:
    assert refused_by(220, sized((100, 10), (100, 10), (100, 10))) == {0}


def test_what_a_unit_refuses_by_itself_takes_none_of_its_memory() -> None:
    model = sized((100, 10), (200, 30), (300, 20), (0, 0))
    assert refused_by(420, model, refused=[3]) == {1}


sizes = st.tuples(st.integers(0, 50), st.integers(0, 50))


@given(st.lists(sizes, min_size=1, max_size=6), st.integers(1, 300))
def test_whatever_is_put_together_of_what_is_left_fits(
    each: list[tuple[int, int]], cap: int
) -> None:
    left = sorted(set(range(len(each))) - refused_by(cap, sized(*each)))
    for count in range(1, len(left) + 1):
        for together in combinations(left, count):
            weights = sum(each[i][0] for i in together)
            assert weights + max(each[i][1] for i in together) <= cap


@given(st.lists(sizes, min_size=1, max_size=6))
def test_nothing_is_left_out_that_fits_whole(each: list[tuple[int, int]]) -> None:
    cap = sum(weights for weights, _ in each) + max(activations for _, activations in each)
    assert refused_by(max(cap, 1), sized(*each)) == set()


def test_the_whole_is_not_given_to_a_unit_that_has_no_room_for_it() -> None:
    model = sized((100, 10), (200, 30), (300, 20), (0, 0))
    capped = replace(ACCELERATOR, memory_bytes=629)
    assert not any(
        c.falls_back for c in allowed(HOST, capped, model=model, refused=[0]).configurations
    )
    roomy = replace(ACCELERATOR, memory_bytes=630)
    assert any(c.falls_back for c in allowed(HOST, roomy, model=model, refused=[0]).configurations)


# ---- pins of nodes


def label(position: int) -> str:
    return f"node {position}"


def test_a_segment_is_pinned_as_its_nodes_are() -> None:
    pinned = [None, None, None, GPU, GPU, GPU, None, NPU, None, None, None, GPU]
    assert pinned_segments(MODEL, pinned, label) == (None, GPU, NPU, GPU)


def test_nodes_of_one_segment_that_are_pinned_to_two_units_are_refused() -> None:
    pinned = [None, None, None, GPU, None, NPU, *[None] * 6]
    with pytest.raises(ModelRefused) as told:
        pinned_segments(MODEL, pinned, label)
    assert str(told.value) == (
        "it is pinned where it cannot be divided: node 3 to gpu0 and node 5 to npu0; pin what lies "
        "between as well, or both to one unit"
    )


def test_pins_to_units_that_are_there_can_hold() -> None:
    pins = [Pin(pattern="a*", unit=GPU), Pin(pattern="b*", unit=HOST_UNIT)]
    assert unusable_pin(pins, device(HOST, ACCELERATOR), {NPU: "it died"}) is None
    assert unusable_pin([], device(HOST), {GPU: "it died"}) is None


def test_a_pin_to_a_unit_that_is_not_there_tells_those_that_are() -> None:
    pin = Pin(pattern="a*", unit=NPU)
    azure = RefusedUnit(provider="AzureExecutionProvider", reason="remote", remedy="none")
    assert unusable_pin([pin], device(HOST, ACCELERATOR, refused=(azure,))) == (
        'pin "a*=npu0": this device has no unit npu0, it has cpu, gpu0'
    )


def test_a_pin_to_a_unit_that_was_refused_tells_why() -> None:
    refused = RefusedUnit(
        provider="QNNExecutionProvider", reason="no driver", remedy="install one", unit=NPU
    )
    assert unusable_pin([Pin(pattern="a*", unit=NPU)], device(HOST, refused=(refused,))) == (
        'pin "a*=npu0": this device has no unit npu0, it has cpu '
        "(refused: npu0, QNNExecutionProvider: no driver)"
    )


def test_a_pin_to_a_unit_that_is_banned_tells_why() -> None:
    pin = Pin(pattern="a*", unit=GPU)
    died = {GPU: "the worker died again and again"}
    assert unusable_pin([pin], device(HOST, ACCELERATOR), died) == (
        'pin "a*=gpu0" cannot hold: the worker died again and again'
    )
