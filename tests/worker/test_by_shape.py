"""Counting shapes in bounded room, and picking what a request runs on."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.errors import RunFailed
from edge_agent.tensors import Arrays, ShapeSet
from edge_agent.wire.parts import (
    MAX_COUNTED_SHAPES,
    ShapeCount,
)
from edge_agent.worker.by_shape import REPORT_S, WINDOW, ByShape, Choice, ShapeCounter

WAIT_S = 10.0


def s(size: int) -> ShapeSet:
    return ((1, size),)


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(counter: ShapeCounter) -> dict[ShapeSet, int]:
    news = counter.news()
    assert news is not None
    return {c.shapes: c.count for c in news}


@given(st.lists(st.integers(0, 200), max_size=WINDOW - 1))
def test_no_count_is_too_low_and_none_too_high_by_more_than_its_share(sizes: list[int]) -> None:
    counter = ShapeCounter(())
    for size in sizes:
        counter.count(s(size))
    if not sizes:
        return
    got, true = told(counter), Counter(sizes)
    assert len(got) <= MAX_COUNTED_SHAPES
    assert sum(got.values()) == len(sizes)
    for shapes, count in got.items():
        often = true[shapes[0][1]]
        assert often <= count <= often + len(sizes) / MAX_COUNTED_SHAPES
    for size, often in true.items():
        assert often <= len(sizes) / MAX_COUNTED_SHAPES or s(size) in got


def test_older_requests_fade() -> None:
    counter = ShapeCounter(())
    for _ in range(WINDOW):
        counter.count(s(1))
    for _ in range(3 * WINDOW):
        counter.count(s(2))
    got = told(counter)
    assert sum(got.values()) < WINDOW
    assert got.get(s(1), 0) < 0.05 * sum(got.values())


def test_it_goes_on_from_what_was_counted_before() -> None:
    counter = ShapeCounter((ShapeCount(s(1), 30),))
    for _ in range(10):
        counter.count(s(1))
    assert told(counter) == {s(1): 40}


def test_news_are_told_once_and_not_again_before_they_changed_much() -> None:
    time = Time()
    counter = ShapeCounter((), time)
    assert counter.wait_s() is None
    counter.count(s(1))
    assert counter.wait_s() == pytest.approx(REPORT_S)
    time.now_s += REPORT_S
    assert counter.wait_s() == 0.0
    assert counter.news() == (ShapeCount(s(1), 1),)
    assert counter.wait_s() is None
    for _ in range(999):
        counter.count(s(1))
    time.now_s += REPORT_S
    assert told(counter) == {s(1): 1000}
    counter.count(s(1))
    time.now_s += REPORT_S
    assert counter.wait_s() == 0.0
    assert counter.news() is None
    for _ in range(10):
        counter.count(s(1))
        counter.count(s(2))
    assert counter.news() is None
    for _ in range(40):
        counter.count(s(2))
    assert counter.news() is not None


def test_several_threads_lose_no_count() -> None:
    counter = ShapeCounter(())

    def count(size: int) -> None:
        for _ in range(200):
            counter.count(s(size))

    threads = [threading.Thread(target=count, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told(counter) == {s(0): 400, s(1): 400}


class Named:
    """Answers with its name; fails when told to, waits for others when told to."""

    def __init__(self, name: str, core: int | None = None) -> None:
        self.name = name
        self.core = core
        self.error: RunFailed | None = None
        self.together: threading.Barrier | None = None
        self.cores: list[set[int]] = []
        self.running = 0
        self.most = 0

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:  # noqa: ARG002
        self.running += 1
        self.most = max(self.most, self.running)
        self.cores.append(os.sched_getaffinity(0))
        try:
            if self.together is not None:
                self.together.wait(WAIT_S)
            if self.error is not None:
                raise self.error
            return {"name": np.array(self.name)}
        finally:
            self.running -= 1


def feeds(*shapes: tuple[int, ...]) -> Arrays:
    return {f"x{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}


def picked(runner: ByShape, *shapes: tuple[int, ...]) -> str:
    return str(runner.run(feeds(*shapes), ["name"])["name"])


def by_shape(
    general: Named, specialised: dict[ShapeSet, Named], counter: ShapeCounter | None = None
) -> ByShape:
    inputs = ["x0", "x1"] if any(len(k) > 1 for k in specialised) else ["x0"]
    choices = {shapes: Choice(runner, None) for shapes, runner in specialised.items()}
    return ByShape(inputs, Choice(general, None), choices, counter)


def test_a_request_runs_on_what_was_made_for_its_shapes_else_on_the_general_one() -> None:
    counter = ShapeCounter(())
    runner = by_shape(Named("general"), {s(1): Named("one"), s(2): Named("two")}, counter)
    assert [picked(runner, shape) for shape in ((1, 1), (1, 2), (1, 3), (2, 1), ())] == [
        *("one", "two", "general", "general", "general")
    ]
    assert told(counter) == {s(1): 1, s(2): 1, s(3): 1, ((2, 1),): 1, ((),): 1}


def test_the_shapes_of_all_inputs_decide_in_the_order_of_the_model() -> None:
    runner = by_shape(Named("general"), {((1, 2), (0, 3)): Named("both")})
    assert picked(runner, (1, 2), (0, 3)) == "both"
    assert picked(runner, (0, 3), (1, 2)) == "general"
    turned = dict(reversed(feeds((1, 2), (0, 3)).items()))
    assert str(runner.run(turned, ["name"])["name"]) == "both"


def test_a_request_with_more_inputs_than_need_be_runs_on_the_general_chain() -> None:
    counter = ShapeCounter(())
    runner = by_shape(Named("general"), {s(1): Named("one")}, counter)
    assert picked(runner, (1, 1), (3,)) == "general"
    assert counter.wait_s() is None


def test_two_threads_pick_for_themselves_at_the_same_time() -> None:
    general, one = Named("general"), Named("one")
    general.together = one.together = threading.Barrier(2)
    runner = by_shape(general, {s(1): one})
    got: dict[int, list[str]] = {1: [], 3: []}

    def ask(size: int) -> None:
        for _ in range(50):
            got[size].append(picked(runner, (1, size)))

    threads = [threading.Thread(target=ask, args=(size,)) for size in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {1: ["one"] * 50, 3: ["general"] * 50}


def test_one_that_fails_where_the_general_one_does_not_is_given_up() -> None:
    general, one = Named("general"), Named("one")
    runner = by_shape(general, {s(1): one})
    one.error = RunFailed("only here")
    assert picked(runner, (1, 1)) == "general"
    one.error = None
    assert picked(runner, (1, 1)) == "general"


def test_one_that_fails_where_the_general_one_does_too_is_kept() -> None:
    general, one = Named("general"), Named("one")
    runner = by_shape(general, {s(1): one})
    one.error = general.error = RunFailed("index out of range")
    with pytest.raises(RunFailed, match="index out of range"):
        picked(runner, (1, 1))
    one.error = general.error = None
    assert picked(runner, (1, 1)) == "one"


def test_no_more_run_at_once_than_were_planned_for() -> None:
    general, one = Named("general"), Named("one")
    choices = {s(1): Choice(one, threading.Semaphore(1))}
    runner = ByShape(["x0"], Choice(general, None), choices, None)
    general.together = threading.Barrier(4)
    rng = random.Random(0)

    def ask() -> None:
        picked(runner, (1, 3))  # all four at once
        for _ in range(20):
            picked(runner, (1, 1))
            if rng.random() < 0.1:
                os.sched_yield()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (general.most, one.most) == (4, 1)


def test_a_caller_is_bound_where_it_belongs_and_let_go_for_what_belongs_nowhere() -> None:
    anywhere = os.sched_getaffinity(0)
    core = min(anywhere)
    general, one = Named("general"), Named("one", core)
    runner = by_shape(general, {s(1): one})

    def ask() -> None:
        for size in (3, 1, 1, 3):
            picked(runner, (1, size))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert general.cores == [anywhere, anywhere]
    assert one.cores == [{core}, {core}]
