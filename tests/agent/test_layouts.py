"""What is deployed for a distribution: stages, what crosses between them, and room for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from edge_agent.agent.layouts import (
    LEAST_WINDOW_BYTES,
    MORE_UNDER_WAY,
    UNKNOWN_BYTES,
    Layout,
    PlacedStage,
    crossings_of,
    layout_of,
    neighbours_of,
    shares_of,
)
from edge_agent.devices import THIS_DEVICE, DeviceId
from edge_agent.devices import Layout as TensorLayout
from edge_agent.distributions import (
    Distribution,
    Metrics,
    PlacedArm,
    PlacedFork,
    PlacedSubgraph,
    Route,
)
from edge_agent.errors import UsageError
from edge_agent.plans import Target
from edge_agent.profiles import HOST_UNIT, Configuration
from edge_agent.stages import OWNER, Blob, Crossing, Division, StageModel
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.tensors import ElementType, TensorName, TensorSpec
from edge_agent.wire.hosting import MAX_UNDER_WAY, Neighbour, RouteShare
from edge_agent.wire.streaming import HEAD_BYTES

NEAR, FAR = DeviceId("near"), DeviceId("far")
CONFIGURATION = Configuration(unit=HOST_UNIT, layout=TensorLayout.BLOCKED, threads=1)


def parts(start: int, stop: int) -> SegmentRange:
    return SegmentRange(start=start, stop=stop)


def subgraph(device: DeviceId, start: int, stop: int) -> PlacedSubgraph:
    return PlacedSubgraph(segments=parts(start, stop), device=device, configuration=CONFIGURATION)


def distribution(*routes: Route) -> Distribution:
    metrics = Metrics(
        latency_s=1.0,
        throughput_per_s=1.0,
        energy_joules=0.0,
        peak_memory_bytes=0.0,
        wire_bytes=0.0,
    )
    return Distribution(target=Target.LATENCY, routes=routes, metrics=metrics, bound=0.0)


def stage(number: int, route: int, device: DeviceId, start: int, stop: int) -> PlacedStage:
    return PlacedStage(number=number, route=route, device=device, segments=parts(start, stop))


def spec(name: str, *dims: int | str, has_default: bool = False) -> TensorSpec:
    return TensorSpec(
        name=TensorName(name),
        element_type=ElementType.FLOAT32,
        dims=dims,
        has_default=has_default,
    )


def model(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], **shapes: tuple[int, ...]
) -> StageModel:
    return StageModel(
        model=ModelId("m"),
        segments=parts(0, 1),
        starts=(0,),
        nodes=1,
        graph=Blob(sha256="g", size_bytes=1),
        tensors=(),
        samples=(),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        shapes=tuple((TensorName(name), shape) for name, shape in shapes.items()),
    )


def chain(*names: str) -> dict[int, StageModel]:
    """Stages of which each takes what the one before gives, 4 bytes each."""
    return {
        number: model([spec(a, 1)], [spec(b, 1)], **{a: (1,)})
        for number, (a, b) in enumerate(itertools.pairwise(names))
    }


def written(crossings: Sequence[Crossing]) -> list[str]:
    def end(number: int) -> str:
        return "o" if number == OWNER else str(number)

    return [f"{end(c.source)}>{end(c.target)} {' '.join(c.tensors)}".strip() for c in crossings]


def test_subgraphs_that_follow_each_other_on_a_device_are_one_stage() -> None:
    first = Route(
        steps=(
            subgraph(THIS_DEVICE, 0, 2),
            subgraph(THIS_DEVICE, 2, 3),
            subgraph(NEAR, 3, 5),
            subgraph(THIS_DEVICE, 5, 6),
        ),
        share=0.75,
    )
    second = Route(steps=(subgraph(FAR, 0, 6),), share=0.25)
    found = layout_of(distribution(first, second))
    assert found == Layout(
        stages=(
            stage(0, 0, THIS_DEVICE, 0, 3),
            stage(1, 0, NEAR, 3, 5),
            stage(2, 0, THIS_DEVICE, 5, 6),
            stage(3, 1, FAR, 0, 6),
        ),
        shares=(0.75, 0.25),
    )
    assert found.devices == (THIS_DEVICE, NEAR, FAR)
    assert found.routes_over(THIS_DEVICE) == (0,)
    assert found.routes_over(FAR) == (1,)
    assert found.routes_over_others == {0, 1}
    assert found.parts == (parts(0, 3), parts(3, 5), parts(5, 6), parts(0, 6))


def test_layouts_are_alike_whatever_their_shares_and_the_order_of_their_routes() -> None:
    one = Route(steps=(subgraph(NEAR, 0, 2),), share=0.6)
    two = Route(steps=(subgraph(THIS_DEVICE, 0, 2),), share=0.4)
    first = layout_of(distribution(one, two))
    assert first.routes_over_others == {0}
    assert first.is_like(layout_of(distribution(two, one)))
    assert not first.is_like(layout_of(distribution(one)))


def test_branches_on_several_devices_are_refused() -> None:
    arms = tuple(
        PlacedArm(branches=(n,), device=device, configuration=CONFIGURATION)
        for n, device in enumerate((THIS_DEVICE, NEAR))
    )
    fork = PlacedFork(fork=0, segments=parts(0, 1), home=THIS_DEVICE, arms=arms)
    with pytest.raises(UsageError, match="want runs of segments"):
        layout_of(distribution(Route(steps=(fork,))))


def test_values_go_straight_to_who_reads_them_where_devices_are_linked() -> None:
    layout = Layout(
        stages=(
            stage(0, 0, THIS_DEVICE, 0, 1),
            stage(1, 0, NEAR, 1, 2),
            stage(2, 0, THIS_DEVICE, 2, 3),
        ),
        shares=(1.0,),
    )
    models = {
        0: model([spec("x", 1)], [spec("a", 1), spec("skip", 1)]),
        1: model([spec("a", 1), spec("x", 1)], [spec("b", 1), spec("y", 1)]),
        2: model([spec("b", 1), spec("skip", 1)], [spec("z", 1)]),
    }
    outputs = [TensorName("y"), TensorName("z"), TensorName("x")]
    found = crossings_of(layout, models, outputs, THIS_DEVICE)
    # An output that is an input crosses nothing.
    assert written(found) == [
        "o>0 x",
        "o>1 x",
        "0>1 a",
        "0>2 skip",
        "1>o y",
        "1>2 b",
        "2>o z",
    ]
    Division(crossings=found)


def test_values_pass_the_stages_between_where_devices_are_not_linked() -> None:
    layout = Layout(
        stages=(
            stage(0, 0, NEAR, 0, 1),
            stage(1, 0, THIS_DEVICE, 1, 2),
            stage(2, 0, FAR, 2, 3),
        ),
        shares=(1.0,),
    )
    models = {
        0: model([spec("x", 1)], [spec("a", 1), spec("skip", 1)]),
        1: model([spec("a", 1)], [spec("b", 1)]),
        2: model([spec("b", 1), spec("skip", 1)], [spec("z", 1)]),
    }
    found = crossings_of(layout, models, [TensorName("z")], THIS_DEVICE)
    assert written(found) == ["o>0 x", "0>1 a skip", "1>2 b skip", "2>o z"]


def test_what_may_be_left_out_crosses_nothing_and_a_stage_without_inputs_is_told_to_begin() -> None:
    layout = Layout(stages=(stage(0, 0, NEAR, 0, 1), stage(1, 0, THIS_DEVICE, 1, 2)), shares=(1.0,))
    models = {
        0: model([spec("w", 1, has_default=True)], [spec("a", 1)]),
        1: model([spec("a", 1)], [spec("z", 1)]),
    }
    found = crossings_of(layout, models, [TensorName("z")], THIS_DEVICE)
    assert written(found) == ["o>0", "0>1 a", "1>o z"]
    Division(crossings=found)


def test_replicas_have_crossings_of_their_own() -> None:
    layout = Layout(
        stages=(stage(0, 0, NEAR, 0, 2), stage(1, 1, THIS_DEVICE, 0, 2)), shares=(0.5, 0.5)
    )
    whole = model([spec("x", 1)], [spec("z", 1)])
    found = crossings_of(layout, {0: whole, 1: whole}, [TensorName("z")], THIS_DEVICE)
    assert written(found) == ["o>0 x", "o>1 x", "0>o z", "1>o z"]
    assert Division(crossings=found).routes() == (frozenset({0}), frozenset({1}))


def test_as_many_are_under_way_as_the_rate_and_the_stages_need() -> None:
    layout = Layout(
        stages=(
            stage(0, 0, NEAR, 0, 1),
            stage(1, 0, THIS_DEVICE, 1, 2),
            stage(2, 1, FAR, 0, 2),
        ),
        shares=(0.75, 0.25),
    )
    # 40 a second, of which 30 take the first route, each for 0.5 s.
    found = shares_of(layout, 40.0, 0.5, {1: 3})
    assert found == (
        RouteShare(number=0, share=0.75, most=15 + MORE_UNDER_WAY),
        RouteShare(number=1, share=0.25, most=5 + MORE_UNDER_WAY),
    )
    # Fewer than all that can run at once are never enough: one on each stage, three on the second.
    slow = shares_of(layout, 0.1, 0.5, {1: 3})
    assert [route.most for route in slow] == [4 + MORE_UNDER_WAY, 1 + MORE_UNDER_WAY]
    endless = shares_of(layout, float("inf"), 0.0, {})
    assert [route.most for route in endless] == [2 + MORE_UNDER_WAY, 1 + MORE_UNDER_WAY]
    assert shares_of(layout, 1e6, 10.0, {})[0].most == MAX_UNDER_WAY


def test_a_connection_has_room_for_all_that_may_be_under_way_and_an_eighth_more() -> None:
    layout = Layout(stages=(stage(0, 0, THIS_DEVICE, 0, 1), stage(1, 0, NEAR, 1, 2)), shares=(1.0,))
    many = 1 << 20  # elements of 4 bytes
    models = {
        0: model([spec("x", "N")], [spec("a", "N")], x=(3,)),
        1: model([spec("a", "N")], [spec("z", "N"), spec("fixed", 7)], a=(many,)),
    }
    outputs = [TensorName("z"), TensorName("fixed")]
    crossings = crossings_of(layout, models, outputs, THIS_DEVICE)
    routes = (RouteShare(number=0, share=1.0, most=5),)
    here = neighbours_of(THIS_DEVICE, layout, crossings, models, routes, THIS_DEVICE)
    there = neighbours_of(NEAR, layout, crossings, models, routes, THIS_DEVICE)
    # What z has is known only when it is computed.
    back = 5 * (HEAD_BYTES + UNKNOWN_BYTES + 7 * 4)
    onward = 5 * (HEAD_BYTES + many * 4)
    assert here == (Neighbour(device=NEAR, stages=(1,), window_bytes=-(-back * 8 // 7)),)
    assert there == (
        Neighbour(device=THIS_DEVICE, stages=(OWNER, 0), window_bytes=-(-onward * 8 // 7)),
    )


def test_a_small_connection_has_room_all_the_same() -> None:
    layout = Layout(stages=(stage(0, 0, NEAR, 0, 1), stage(1, 0, FAR, 1, 2)), shares=(1.0,))
    models = chain("x", "a", "z")
    crossings = crossings_of(
        layout, models, [TensorName("z")], THIS_DEVICE, lambda _one, _other: True
    )
    routes = (RouteShare(number=0, share=1.0, most=2),)
    found = neighbours_of(FAR, layout, crossings, models, routes, THIS_DEVICE)
    assert found == (
        Neighbour(device=THIS_DEVICE, stages=(OWNER,), window_bytes=LEAST_WINDOW_BYTES),
        Neighbour(device=NEAR, stages=(0,), window_bytes=LEAST_WINDOW_BYTES),
    )
