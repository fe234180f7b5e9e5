"""Which shapes are specialised: against brute force, and without flapping."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning.specialise import ShapePolicy, choose_shapes
from edge_agent.tensors import ShapeSet

POLICY = ShapePolicy(most=2)


def s(size: int) -> ShapeSet:
    return ((1, size),)


def chosen(
    counts: Mapping[int, int],
    present: Sequence[int] = (),
    refused: Sequence[int] = (),
    policy: ShapePolicy = POLICY,
) -> list[int]:
    """`choose_shapes` with shapes named by their size."""
    got = choose_shapes(
        {s(k): n for k, n in counts.items()},
        [s(k) for k in present],
        {s(k) for k in refused},
        policy,
    )
    return [shapes[0][1] for shapes in got]


def test_the_most_asked_shapes_are_chosen_and_no_more_than_allowed() -> None:
    assert chosen({1: 100, 2: 300, 3: 200}) == [2, 3]


def test_nothing_is_chosen_when_it_is_switched_off() -> None:
    assert chosen({1: 1000}, [1], policy=ShapePolicy(most=0)) == []


def test_few_requests_change_nothing() -> None:
    assert chosen({1: 31}) == []
    assert chosen({1: 31}, [2]) == [2]
    assert chosen({1: 32}) == [1]


def test_a_shape_with_a_small_share_is_not_chosen() -> None:
    rare = dict.fromkeys(range(10, 20), 32)
    assert chosen({1: 40, **dict.fromkeys(range(10, 30), 31)}) == []
    assert chosen({1: 100, **rare}) == [1]


def test_one_that_is_there_stays_with_a_smaller_share_than_it_came_with() -> None:
    assert chosen({1: 30, 2: 970}, [1]) == [1, 2]
    assert chosen({1: 19, 2: 981}, [1]) == [2]
    assert chosen({2: 981}, [1]) == [2]


def test_one_gives_way_only_to_another_that_is_asked_twice_as_often() -> None:
    assert chosen({1: 200, 2: 300, 3: 399}, [1, 2]) == [1, 2]
    assert chosen({1: 200, 2: 300, 3: 400}, [1, 2]) == [2, 3]


def test_what_gained_nothing_is_not_chosen_again() -> None:
    assert chosen({1: 500, 2: 100}, refused=[1]) == [2]


def test_several_inputs_and_scalars_are_one_set_of_shapes() -> None:
    both: ShapeSet = ((1, 16), (), (0, 3))
    assert choose_shapes({both: 50}, (), (), POLICY) == (both,)


COUNTS = st.dictionaries(st.integers(1, 6), st.integers(0, 400), max_size=6)
PRESENT = st.lists(st.integers(1, 6), unique=True, max_size=3)
MOST = st.integers(0, 3)


@given(COUNTS, PRESENT, st.sets(st.integers(1, 6), max_size=2), MOST)
def test_choosing_again_changes_nothing(
    counts: dict[int, int], present: list[int], refused: set[int], most: int
) -> None:
    policy = replace(POLICY, most=most)
    once = chosen(counts, present, list(refused), policy)
    assert len(once) <= most
    assert len(set(once)) == len(once)
    assert chosen(counts, once, list(refused), policy) == once
    assert not (set(once) - set(present)) & refused


@given(COUNTS, PRESENT, st.randoms(use_true_random=False))
def test_the_order_of_the_counts_does_not_matter(
    counts: dict[int, int], present: list[int], rng: random.Random
) -> None:
    shuffled = list(counts.items())
    rng.shuffle(shuffled)
    assert chosen(dict(shuffled), present) == chosen(counts, present)


@given(COUNTS, PRESENT, MOST)
def test_it_is_the_best_set_that_nobody_outside_has_a_claim_on(
    counts: dict[int, int], present: list[int], most: int
) -> None:
    policy = replace(POLICY, most=most)
    total = sum(counts.values())
    if total < policy.least_requests:
        return
    kept = {k for k in present if counts.get(k, 0) >= policy.kept_share * total}
    least = max(policy.least_requests, policy.least_share * total)
    wanting = {k for k, n in counts.items() if n >= least} - kept

    def asked(k: int) -> int:
        return counts.get(k, 0)

    def is_settled(group: tuple[int, ...]) -> bool:
        outside = wanting - set(group)
        if len(group) < most:
            return not outside and kept <= set(group)
        weakest = min(map(asked, group), default=None)
        return weakest is None or all(asked(k) < 2 * weakest for k in outside)

    def rank(group: tuple[int, ...]) -> tuple[object, ...]:
        # As few come and go as possible; among those, the most asked serve.
        ordered = sorted(group, key=lambda k: (-asked(k), k))
        return (
            -len(kept & set(group)),
            [-asked(k) for k in ordered],
            ordered,
        )

    groups = [
        group
        for size in range(most + 1)
        for group in itertools.combinations(sorted(kept | wanting), size)
        if is_settled(group)
    ]
    best = min(groups, key=rank)
    assert set(chosen(counts, present, policy=policy)) == set(best)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_stream_of_a_fixed_mixture_settles(seed: int) -> None:
    """Counts over a decaying window, as a worker keeps them, of shapes around every limit."""
    rng = random.Random(seed)
    shares = {1: 0.3, 2: 0.25, 3: 0.22, 4: 0.11, 5: 0.1, 6: 0.02}
    counts: dict[int, int] = {}
    present: list[int] = []
    changes = 0
    for _ in range(300):
        for size in rng.choices(list(shares), list(shares.values()), k=100):
            counts[size] = counts.get(size, 0) + 1
        if sum(counts.values()) > 1000:
            counts = {k: n // 2 for k, n in counts.items()}
        wanted = chosen(counts, present, policy=ShapePolicy(most=4))
        changes += len(set(wanted) ^ set(present))
        present = wanted
    assert set(present) >= {1, 2, 3}
    assert changes <= 8
