"""Problems made up at random: small ones that can be enumerated, and middle ones.

Everything comes from the `random.Random` that is given: a seeded one for many quick cases, or one
that hypothesis draws, so that what fails is made small.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.plans import Bound, Target
from edge_agent.problems import (
    DeviceStatistics,
    Link,
    PlannedDevice,
    PlannedUnit,
    Problem,
    SegmentPin,
)
from edge_agent.profiles import HOST_UNIT, Configuration, SegmentTimes
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.summaries import Branch, CutPoint, Fork, ModelSummary, Segment, SharedInput
from edge_agent.tensors import TensorName, WireType
from tests.planning.oracle.numbers_made import KINDS, Numbers
from tests.planning.oracle.routes_made import random_route, route_bound

MOST_COMBINATIONS = 1300
"""Of configurations over the segments of a small problem; fewer with tight memory or forks."""
MOST_COMBINATIONS_HARDER = 260
MOST_COMBINATIONS_HARDEST = 81
NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")


def small_problems() -> st.SearchStrategy[Problem]:
    """Problems of 2 to 6 segments on 1 to 4 devices."""
    return st.randoms(use_true_random=False).map(small_problem)


def small_problem(rng: random.Random, kinds: Sequence[str] = KINDS) -> Problem:
    """2 to 6 segments, 1 to 4 devices, 1 to 3 configurations each, and now and then everything
    that a problem can have."""
    numbers = Numbers.pick(rng, kinds)
    count = rng.choice((2, 2, 3, 3, 3, 4, 4, 5, 6))
    is_tight = rng.random() < 0.3
    forks = rng.choice((1, 1, 2)) if rng.random() < 0.3 else 0
    most = (MOST_COMBINATIONS, MOST_COMBINATIONS_HARDER, MOST_COMBINATIONS_HARDEST)[
        min(is_tight + forks, 2)
    ]
    summary = _summary(rng, numbers, count, forks=forks)
    devices = [
        _device(rng, numbers, summary, NAMES[i], most_configurations=3)
        for i in range(rng.choice((1, 2, 2, 3, 3, 4, 4)))
    ]
    while sum(len(d.times) for d in devices) ** count > most:
        fullest = max(range(len(devices)), key=lambda i: len(devices[i].times))
        if len(devices[fullest].times) > 1 or len(devices) < 2:
            times = list(devices[fullest].times)
            times.pop(rng.randrange(len(times)))
            devices[fullest] = replace(devices[fullest], times=tuple(times))
        else:
            devices.pop()
    return _around(rng, numbers, summary, devices, is_tight=is_tight)


def plain_problem(
    rng: random.Random, *, segments: int, devices: int, configurations: int = 2, forks: int = 0
) -> Problem:
    """A chain, or one with forks, on unequal devices that all reach each other, with nothing to
    keep to."""
    numbers = Numbers.pick(rng, kinds=("few", "smooth"))
    summary = _summary(rng, numbers, segments, forks=forks, is_plain=True)
    made = [
        _device(rng, numbers, summary, NAMES[i], most_configurations=configurations, is_plain=True)
        for i in range(devices)
    ]
    return Problem(
        summary=summary,
        devices=tuple(made),
        owner=made[0].id,
        links=_links(rng, numbers, made, is_plain=True),
        input_bytes=numbers.size(rng),
        output_bytes=numbers.size(rng),
    )


def middle_problem(rng: random.Random, *, is_tight: bool = False) -> Problem:
    """As real ones are: 10 to 40 segments, 3 to 8 devices; memory that binds when tight, and then
    of a size that can still be solved exactly."""
    most = (12, 4) if is_tight else (40, 8)
    problem = plain_problem(rng, segments=rng.randint(10, most[0]), devices=rng.randint(3, most[1]))
    if not is_tight:
        return problem
    budget = round(sum(s.weight_bytes for s in problem.summary.segments) * rng.uniform(0.4, 0.9))
    devices = tuple(replace(device, memory_bytes=budget) for device in problem.devices)
    return replace(problem, devices=devices)


def crowded_problem(
    rng: random.Random, *, segments: int, devices: int, room: float, configurations: int = 2
) -> Problem:
    """A chain for which the memory of all devices together is about `room` times the weights."""
    made = plain_problem(rng, segments=segments, devices=devices, configurations=configurations)
    total = sum(s.weight_bytes for s in made.summary.segments)
    most = max(s.working_bytes for s in made.summary.segments)
    return replace(
        made,
        devices=tuple(
            replace(d, memory_bytes=round(total * room / devices * rng.uniform(0.7, 1.3) + most))
            for d in made.devices
        ),
    )


def crowded_route_problem(rng: random.Random) -> Problem:
    """A chain that one route has to run, over several memories of which none holds all of it."""
    segments, devices = rng.randint(12, 20), rng.randint(4, 6)
    made = crowded_problem(rng, segments=segments, devices=devices, room=rng.choice((1.3, 2.0)))
    return replace(made, most_routes=1)


def _summary(
    rng: random.Random, numbers: Numbers, count: int, *, forks: int, is_plain: bool = False
) -> ModelSummary:
    segments = [
        Segment(
            index=i,
            start=2 * i,
            stop=2 * i + 2,
            operators=(("Conv", 2),),
            operations=1000,
            activation_bytes=1000,
            weight_bytes=numbers.weight(rng),
            parallel_operations=1000,
            working_bytes=numbers.size(rng),
            unread_bytes=0 if is_plain or rng.random() < 0.8 else numbers.weight(rng),
        )
        for i in range(count)
    ]
    cuts = []
    for i in range(count - 1):
        is_unknown = not is_plain and rng.random() < 0.05
        keeps_a_sequence = not is_plain and rng.random() < 0.05
        cuts.append(
            CutPoint(
                position=2 * i + 2,
                crossing=(),
                crossing_bytes=None if is_unknown else numbers.size(rng),
                others=((TensorName("list"), "seq(tensor(float))"),) if keeps_a_sequence else (),
            )
        )
    summary = ModelSummary(
        model=ModelId("5d" * 32),
        inputs=(),
        outputs=(),
        shapes=(),
        nodes=2 * count,
        segments=tuple(segments),
        cuts=tuple(cuts),
        weight_bytes=sum(s.weight_bytes for s in segments),
    )
    return _with_forks(rng, numbers, summary, forks) if forks else summary


def _with_forks(
    rng: random.Random, numbers: Numbers, summary: ModelSummary, wanted: int
) -> ModelSummary:
    count = len(summary.segments)
    cuts = list(summary.cuts)
    forks: list[Fork] = []
    start = 0
    for _ in range(wanted):
        start += rng.choice((0, 1)) if count - start > 2 else 0
        stop = start + rng.choice((1, 2, 2, 3))
        if stop > count:
            break
        for boundary in {start, stop} - {0, count}:
            # A fork is found only between cuts at which everything can be sent.
            size = cuts[boundary - 1].crossing_bytes
            known = numbers.size(rng) if size is None else size
            cuts[boundary - 1] = replace(cuts[boundary - 1], crossing_bytes=known, others=())
        before = cuts[start - 1].crossing_bytes if start else numbers.size(rng)
        after = cuts[stop - 1].crossing_bytes if stop < count else numbers.size(rng)
        assert before is not None
        assert after is not None
        forks.append(_fork(rng, summary.segments[start:stop], before, after))
        start = stop
    return replace(summary, cuts=tuple(cuts), forks=tuple(forks))


def _fork(rng: random.Random, inside: Sequence[Segment], before: int, after: int) -> Fork:
    """Branches that own whole segments where there are enough, else shares of each."""
    count = 2 if rng.random() < 0.9 else 3
    if len(inside) >= count and rng.random() < 0.6:
        owners = [*range(count), *(rng.randrange(count) for _ in inside[count:])]
        rng.shuffle(owners)
        work = [[1.0 if owner == b else 0.0 for owner in owners] for b in range(count)]
    else:
        shares = [(0.5, 0.5), (0.25, 0.75)] if count == 2 else [(0.25, 0.25, 0.5)]
        columns = [rng.choice(shares) for _ in inside]
        work = [[column[b] for column in columns] for b in range(count)]
    branches = tuple(
        Branch(
            nodes=tuple(range(2 * inside[0].start + b, 2 * inside[-1].stop, count)),
            input_bytes=rng.choice((before, before, before // count)),
            output_bytes=after // count,
            work=tuple(work[b]),
            weight_bytes=round(
                sum(w * s.weight_bytes for w, s in zip(work[b], inside, strict=True))
            ),
            working_bytes=max(
                round(w * s.working_bytes) for w, s in zip(work[b], inside, strict=True)
            ),
        )
        for b in range(count)
    )
    segments = SegmentRange(start=inside[0].index, stop=inside[-1].index + 1)
    shared: tuple[SharedInput, ...] = ()
    if rng.random() < 0.5:
        most = min(branch.input_bytes for branch in branches)
        size = rng.choice((most, most // 2))
        shared = (SharedInput(size_bytes=size, branches=tuple(range(count))),)
    return Fork(segments=segments, branches=branches, shared=shared)


def _device(
    rng: random.Random,
    numbers: Numbers,
    summary: ModelSummary,
    name: str,
    *,
    most_configurations: int,
    is_plain: bool = False,
) -> PlannedDevice:
    cores = rng.choice((1, 2, 4))
    units = [_unit(rng, numbers, HOST_UNIT)]
    offered = [
        Configuration(unit=HOST_UNIT, layout=layout, threads=threads, instances=instances)
        for layout in (Layout.NCHW, Layout.NHWC, Layout.NHWC)
        for threads, instances in ((1, 1), (cores, 1), (1, cores))
    ]
    if rng.random() < 0.5:
        gpu = UnitId("gpu0")
        own = numbers.memory(rng, summary.weight_bytes) if rng.random() < 0.4 else None
        units.append(replace(_unit(rng, numbers, gpu), memory_bytes=None if is_plain else own))
        offered += [
            Configuration(unit=gpu, layout=layout, threads=0, is_half=half, falls_back=falls)
            for layout, half in (
                (Layout.NATIVE, False),
                (Layout.NATIVE, True),
                (Layout.NHWC, False),
            )
            for falls in ((False,) if is_plain else (False, False, False, True))
        ] * 2
        if not is_plain and rng.random() < 0.1:
            units[1] = replace(units[1], banned_because="the user said so")
    if is_plain:
        offered = [c for c in offered if c.instances == 1]
    chosen: list[Configuration] = []
    for _ in range(rng.randint(1, most_configurations)):
        which = rng.choice(offered)
        if which not in chosen:
            chosen.append(which)
    if not is_plain and rng.random() < 0.04:
        chosen = []
    speed = rng.choice((0.5, 1.0, 1.0, 2.0, 4.0))
    costs_processor_time = rng.random() < 0.5
    return PlannedDevice(
        id=DeviceId(name),
        units=tuple(units),
        times=tuple(
            _times(rng, numbers, summary, which, speed, is_plain=is_plain) for which in chosen
        ),
        memory_bytes=10**15,
        cores=cores,
        send_s_per_byte=numbers.processor_s_per_byte(rng) if costs_processor_time else 0.0,
        receive_s_per_byte=numbers.processor_s_per_byte(rng) if costs_processor_time else 0.0,
        most_crossing_bytes=numbers.size(rng) if not is_plain and rng.random() < 0.06 else None,
    )


def _unit(rng: random.Random, numbers: Numbers, which: UnitId) -> PlannedUnit:
    idle_w = numbers.watts(rng)
    return PlannedUnit(id=which, idle_w=idle_w, busy_w=idle_w + numbers.watts(rng))


def _times(
    rng: random.Random,
    numbers: Numbers,
    summary: ModelSummary,
    which: Configuration,
    speed: float,
    *,
    is_plain: bool,
) -> SegmentTimes:
    count = len(summary.segments)
    refused: tuple[int, ...] = ()
    if not is_plain and not which.falls_back and rng.random() < 0.08:
        refused = tuple(sorted(rng.sample(range(count), rng.choice((1, 1, min(2, count - 1))))))
    border = numbers.border_s_per_byte(rng)
    return SegmentTimes(
        configuration=which,
        segment_s=tuple(
            0.0 if i in refused else numbers.seconds(rng) * speed for i in range(count)
        ),
        overhead_s=rng.choice((0.0, 0.1, 0.5)) * numbers.seconds(rng),
        border_s_per_byte=border,
        error_fraction=rng.choice((0.0, 0.05)),
        is_divisible=is_plain or rng.random() > 0.06,
        refused=refused,
        turn_s_per_byte=border * rng.choice((0.0, 0.5, 1.0))
        if which.layout is Layout.NHWC
        else 0.0,
    )


def _links(
    rng: random.Random, numbers: Numbers, devices: Sequence[PlannedDevice], *, is_plain: bool
) -> tuple[Link, ...]:
    shared = rng.random() < 0.3
    found = []
    for source in devices:
        for target in devices:
            if source is target or (not is_plain and rng.random() < 0.1):
                continue
            found.append(
                Link(
                    source=source.id,
                    target=target.id,
                    latency_s=numbers.link_latency_s(rng),
                    goodput_bytes_per_s=numbers.goodput(rng),
                    medium="air" if shared and rng.random() < 0.8 else "",
                    joules_per_byte=numbers.joules_per_byte(rng),
                )
            )
    return tuple(found if is_plain else map(_narrowed, found))


def _narrowed(link: Link) -> Link:
    """One link in four carries values in fewer bits; drawn apart from all the rest."""
    rng = random.Random(f"{link}")
    if rng.random() < 0.75:
        return link
    return replace(
        link,
        wire=WireType.FP16,
        ratio=rng.choice((0.25, 0.5, 0.9)),
        narrow_s_per_byte=rng.uniform(0.0, 1e-9),
        widen_s_per_byte=rng.uniform(0.0, 1e-9),
    )


def _around(
    rng: random.Random,
    numbers: Numbers,
    summary: ModelSummary,
    devices: Sequence[PlannedDevice],
    *,
    is_tight: bool,
) -> Problem:
    if is_tight:
        devices = [
            replace(device, memory_bytes=numbers.memory(rng, summary.weight_bytes))
            for device in devices
        ]
    problem = Problem(
        summary=summary,
        devices=tuple(devices),
        owner=rng.choice(devices).id,
        links=_links(rng, numbers, devices, is_plain=False),
        statistics=tuple(
            _statistics(rng, numbers, summary, device, is_tight=is_tight)
            for device in devices
            if rng.random() < 0.25
        ),
        pins=_pins(rng, summary, devices),
        input_bytes=None if rng.random() < 0.04 else numbers.size(rng),
        output_bytes=None if rng.random() < 0.04 else numbers.size(rng),
        chunk_bytes=rng.choice((1 << 20, 1 << 20, 1000, 1)),
        most_routes=rng.choice((None, None, None, None, None, None, None, 1, 2)),
        with_branches=rng.random() < 0.9,
    )
    combinations = sum(len(d.times) for d in devices) ** len(summary.segments)
    if problem.most_routes == 2 and (combinations > 64 or summary.forks):
        problem = replace(problem, most_routes=None)
    return replace(problem, bounds=_bounds(rng, numbers, problem))


def _statistics(
    rng: random.Random,
    numbers: Numbers,
    summary: ModelSummary,
    device: PlannedDevice,
    *,
    is_tight: bool,
) -> DeviceStatistics:
    slowed = [unit.id for unit in device.units if rng.random() < 0.3]
    free = numbers.memory(rng, summary.weight_bytes) if is_tight and rng.random() < 0.5 else None
    return DeviceStatistics(
        device=device.id,
        load_fraction=rng.choice((0.0, 0.25, 0.5, 0.9, 1.0)),
        free_memory_bytes=free,
        speed_fraction=rng.choice((1.0, 1.0, 0.5)),
        battery_fraction=rng.choice((None, None, None, 0.1, 0.2, 0.9)),
        slowdowns=tuple((unit, rng.choice((0.5, 1.0, 2.0, 10.0))) for unit in slowed),
    )


def _pins(
    rng: random.Random, summary: ModelSummary, devices: Sequence[PlannedDevice]
) -> tuple[SegmentPin, ...]:
    if rng.random() > 0.1:
        return ()
    found = []
    for _ in range(rng.choice((1, 1, 2))):
        device = rng.choice([d for d in devices if d.times] or devices)
        found.append(
            SegmentPin(
                segment=rng.randrange(len(summary.segments)),
                device=device.id,
                unit=rng.choice((None, *(t.configuration.unit for t in device.times))),
                pattern="node*",
            )
        )
    return tuple(found)


def _bounds(rng: random.Random, numbers: Numbers, problem: Problem) -> tuple[Bound, ...]:
    if rng.random() > 0.4:
        return ()
    found = []
    # Bounds on the throughput make mixtures of what is otherwise one route.
    targets = set(rng.sample(list(Target), rng.choice((1, 1, 2))))
    if rng.random() < 0.4:
        targets.add(Target.THROUGHPUT)
    for target in sorted(targets):
        route = random_route(rng, problem)
        limit = numbers.seconds(rng) if route is None else route_bound(rng, problem, route, target)
        found.append(Bound(target=target, limit=limit))
    return tuple(found)
