"""A divided model gives what the whole one gives, whatever happens on the way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from edge_agent import clock
from edge_agent.engine.cancel import Cancellation
from edge_agent.errors import DeadlineExceeded, PeerLost, RunFailed
from edge_agent.tensors import Arrays
from edge_agent.worker.runners import Asked
from edge_agent.worker.stages import StageRunner
from edge_agent.worker.streams import Stream
from tests.system.running import wait_until
from tests.worker.made_stages import (
    EPOCH,
    HOME,
    Computing,
    Divided,
    Whole,
    crossings,
    divided,
)

X = np.arange(60_000, dtype=np.float32).reshape(300, 200)

CHAIN = crossings("o>0 x", "0>1 a", "1>2 b", "2>o z")
CHAIN_STAGES = {
    0: Computing(lambda f: {"a": f["x"] + 1}),
    1: Computing(lambda f: {"b": f["a"] * 2}),
    2: Computing(lambda f: {"z": f["b"] - 3}),
}
CHAIN_PLACES = {0: "one", 1: "two", 2: "three"}

FORK = crossings("o>0 x", "0>1 a", "0>2 a", "o>2 y", "1>3 b", "2>3 c", "3>o z")
FORK_STAGES = {
    0: Computing(lambda f: {"a": f["x"] + 1}),
    1: Computing(lambda f: {"b": f["a"] * 2}),
    2: Computing(lambda f: {"c": np.subtract(f["a"], f["y"])}),
    3: Computing(lambda f: {"z": np.add(f["b"], f["c"])}),
}


def chain_whole(feeds: Arrays) -> Arrays:
    return {"z": (feeds["x"] + 1) * 2 - 3, "x": feeds["x"]}


def ask(made: Divided, x: np.ndarray, until_s: float | None = None) -> np.ndarray:
    return made.runner.run({"x": x}, ["z"], Asked(until_s))["z"]


def until_free(made: Divided) -> None:
    """Wait until everything that came was given back."""
    for place in made.places.values():
        for stream in place.neighbours.values():
            wait_until(partial(_is_free, stream), "the window is free")


def _is_free(stream: Stream) -> bool:
    return stream.inflow.held_bytes == 0


def ask_many(made: Divided, count: int, clients: int = 8) -> None:
    """From several clients, each of which compares what it gets with what it asked."""

    def client(number: int) -> None:
        for i in range(count // clients):
            x = X + np.float32(1000 * number + i)
            np.testing.assert_array_equal(ask(made, x), chain_whole({"x": x})["z"])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))


def test_a_chain_over_three_devices_gives_what_the_whole_gives() -> None:
    with divided(CHAIN, CHAIN_PLACES, CHAIN_STAGES, Whole(chain_whole)) as made:
        ask_many(made, 160)
        assert made.runner.run_again == 0
        until_free(made)


def test_the_owner_may_have_stages_too_and_a_device_several() -> None:
    places = {0: HOME, 1: "two", 2: HOME}
    with divided(CHAIN, places, CHAIN_STAGES, Whole(chain_whole)) as made:
        ask_many(made, 80)
        assert set(made.places) == {HOME, "two"}
    places = {0: "two", 1: HOME, 2: "two"}
    with divided(CHAIN, places, CHAIN_STAGES, Whole(chain_whole)) as made:
        ask_many(made, 80)


def test_branches_on_several_devices_come_together_by_run() -> None:
    """With windows that hold little more than a message, and runs that overtake each other."""
    places = {0: "one", 1: "two", 2: "three", 3: "one"}

    def slow_at_times(compute: Callable[[Arrays], Arrays], every: int) -> Computing:
        def run(feeds: Arrays) -> Arrays:
            if int(feeds["a"][0, 0]) % every == 0:
                clock.sleep_s(0.01)
            return compute(feeds)

        return Computing(run)

    runners = FORK_STAGES | {
        1: slow_at_times(lambda f: {"b": f["a"] * 2}, 3),
        2: slow_at_times(lambda f: {"c": np.subtract(f["a"], f["y"])}, 2),
    }
    window_bytes = 3 * (X.nbytes + 4096) * 2
    with divided(
        FORK, places, runners, None, most=3, instances=2, window_bytes=window_bytes
    ) as made:

        def client(number: int) -> None:
            for i in range(15):
                x, y = X + np.float32(100 * number + i), X * np.float32(number)
                got = made.runner.run({"x": x, "y": y}, ["z"])["z"]
                np.testing.assert_array_equal(got, (x + 1) * 2 + ((x + 1) - y))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(client, range(6)))


def test_replicas_get_their_shares_and_whoever_is_free_gets_more() -> None:
    division = crossings("o>0 x", "0>o z", "o>1 x", "1>o z")
    asked: Counter[int] = Counter()

    def replica(number: int, takes_s: float) -> Computing:
        def run(feeds: Arrays) -> Arrays:
            asked[number] += 1
            clock.sleep_s(takes_s)
            return chain_whole(feeds)

        return Computing(run)

    runners = {0: replica(0, 0.0), 1: replica(1, 0.0)}
    places = {0: "one", 1: "two"}
    with divided(division, places, runners, None, shares=(3.0, 1.0), most=8) as made:
        ask_many(made, 80, clients=1)
    assert asked == {0: 60, 1: 20}
    asked.clear()
    # One that holds on to what it has gets no more than it may have under way.
    runners = {0: replica(0, 0.2), 1: replica(1, 0.0)}
    with divided(division, places, runners, None, shares=(3.0, 1.0), most=1) as made:
        ask_many(made, 40, clients=4)
    assert asked[1] > asked[0]


@pytest.mark.parametrize("place", ["one", "two", "three"])
def test_what_was_on_a_device_that_is_lost_is_run_by_the_owner(place: str) -> None:
    begun, may_go_on = threading.Semaphore(0), threading.Event()

    def held(compute: Callable[[Arrays], Arrays]) -> Computing:
        def run(feeds: Arrays) -> Arrays:
            begun.release()
            may_go_on.wait(20)
            return compute(feeds)

        return Computing(run)

    stage = {"one": 0, "two": 1, "three": 2}[place]
    runners = CHAIN_STAGES | {stage: held(CHAIN_STAGES[stage].compute)}
    whole = Whole(chain_whole)
    with divided(CHAIN, CHAIN_PLACES, runners, whole) as made, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, made, X + np.float32(i)) for i in range(4)]
        begun.acquire(timeout=10)
        made.cut(place)
        if place == "two":
            # The owner is no neighbour of it: the agents tell.
            wait_until(lambda: made.places["one"].broken, "its neighbour notices")
            made.runner.route_is_lost(0, "two is gone")
        for i, answer in enumerate(asked):
            x = X + np.float32(i)
            np.testing.assert_array_equal(answer.result(10), chain_whole({"x": x})["z"])
        assert whole.runs == made.runner.run_again == 4
        made.runner.route_is_lost(0, f"{place} is gone")
        np.testing.assert_array_equal(ask(made, X), chain_whole({"x": X})["z"])
        assert whole.runs == 5
        may_go_on.set()


def test_without_a_place_for_the_whole_model_a_lost_run_is_an_error() -> None:
    with divided(CHAIN, CHAIN_PLACES, CHAIN_STAGES, None) as made:
        np.testing.assert_array_equal(ask(made, X), chain_whole({"x": X})["z"])
        made.runner.route_is_lost(0, "two is gone")
        with pytest.raises(PeerLost, match="two is gone, and the model does not fit into this"):
            ask(made, X)


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_run_in_which_a_stage_fails_is_run_by_the_owner_if_it_can(stage: int, fits: bool) -> None:
    def failing(feeds: Arrays) -> Arrays:
        if int(next(iter(feeds.values()))[0, 0]) % 2:
            raise RunFailed("odd")
        return CHAIN_STAGES[stage].compute(feeds)

    whole = Whole(chain_whole)
    runners = CHAIN_STAGES | {stage: Computing(failing)}
    with divided(CHAIN, CHAIN_PLACES, runners, whole if fits else None) as made:
        # Doubling makes all that comes to stage 2 even.
        fails = {0: (1, 3, 5, 7), 1: (0, 2, 4, 6), 2: ()}[stage]
        for i in range(8):
            x = X + np.float32(i)
            if i in fails and not fits:
                with pytest.raises(RunFailed, match=r"^odd$"):
                    ask(made, x)
            else:
                np.testing.assert_array_equal(ask(made, x), chain_whole({"x": x})["z"])
        assert whole.runs == made.runner.run_again == (len(fails) if fits else 0)
        assert all(route.under_way == 0 for route in made.routes)
        assert made.runner.has_route


def test_what_fails_on_the_owner_too_is_told_as_it_fails_there() -> None:
    def failing(_feeds: Arrays) -> Arrays:
        raise RunFailed("there")

    def failing_here(_feeds: Arrays) -> Arrays:
        raise RunFailed("here")

    runners = CHAIN_STAGES | {1: Computing(failing)}
    with (
        divided(CHAIN, CHAIN_PLACES, runners, Whole(failing_here)) as made,
        pytest.raises(RunFailed, match=r"^here$"),
    ):
        ask(made, X)


def test_a_deadline_ends_a_run_everywhere() -> None:
    waited: list[str] = []
    has_begun = threading.Event()

    class Patient:
        def run(self, _feeds: Arrays, _outputs: Sequence[str], cancel: Cancellation) -> Arrays:
            has_begun.set()
            until_s = clock.monotonic_s() + 10
            while not cancel.is_cancelled:
                assert clock.monotonic_s() < until_s, "nobody told it"
                clock.sleep_s(0.002)
            waited.append("ended")
            cancel.check()
            raise AssertionError("it was cancelled")

    runners: dict[int, StageRunner] = {**CHAIN_STAGES, 1: Patient()}
    with divided(CHAIN, CHAIN_PLACES, runners, Whole(chain_whole)) as made:
        started_s = clock.monotonic_s()
        with pytest.raises(DeadlineExceeded):
            ask(made, X, started_s + 0.2)
        assert 0.2 <= clock.monotonic_s() - started_s < 1.0
        assert has_begun.is_set()
        wait_until(lambda: waited, "the stage ends")
        until_free(made)
        assert made.routes[0].under_way == 0


def test_an_abandoned_request_ends_wherever_it_is() -> None:
    has_begun = threading.Event()

    class Patient:
        def run(self, _feeds: Arrays, _outputs: Sequence[str], cancel: Cancellation) -> Arrays:
            has_begun.set()
            wait_until(lambda: cancel.is_cancelled, "somebody tells it")
            cancel.check()
            raise AssertionError("it was cancelled")

    runners: dict[int, StageRunner] = {**CHAIN_STAGES, 1: Patient()}
    with (
        divided(CHAIN, CHAIN_PLACES, runners, None, most=1) as made,
        ThreadPoolExecutor(2) as pool,
    ):
        run = partial(made.runner.run, {"x": X}, ["z"])
        early, under_way, waiting = Asked(), Asked(), Asked()
        made.runner.abandon(early)
        with pytest.raises(DeadlineExceeded, match="nobody waits for it"):
            run(early)
        assert made.routes[0].begun == 0
        first = pool.submit(run, under_way)
        assert has_begun.wait(10)
        second = pool.submit(run, waiting)
        made.runner.abandon(waiting)  # before or after it began to wait for the route
        with pytest.raises(DeadlineExceeded, match="nobody waits for it"):
            second.result(10)
        assert made.routes[0].under_way == 1
        made.runner.abandon(under_way)
        with pytest.raises(DeadlineExceeded, match="nobody waits for it"):
            first.result(10)
        until_free(made)
        assert made.routes[0].under_way == 0
        # That it has ended is no news then.
        made.runner.abandon(under_way)


def test_a_run_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    with divided(CHAIN, CHAIN_PLACES, CHAIN_STAGES, None) as made:
        stages = made.places[HOME].stages
        stages.cancel(7)
        stages.begin(7, 0, {"x": X}, None)
        ask(made, X)
        assert stages._routes == {}


def test_a_run_whose_time_is_over_when_it_arrives_is_not_computed() -> None:
    computed: list[int] = []

    def first(feeds: Arrays) -> Arrays:
        computed.append(0)
        clock.sleep_s(0.1)
        return {"a": feeds["x"] + 1}

    def second(feeds: Arrays) -> Arrays:
        computed.append(1)
        return {"b": feeds["a"] * 2}

    runners = CHAIN_STAGES | {0: Computing(first), 1: Computing(second)}
    with divided(CHAIN, CHAIN_PLACES, runners, None) as made:
        with pytest.raises(DeadlineExceeded):
            ask(made, X, clock.monotonic_s() + 0.05)
        wait_until(lambda: 0 in computed, "the first stage began")
        # It is asked again, so that what is left of the first run has had its turn.
        ask(made, X)
        assert computed.count(1) == 1


def test_a_device_of_another_epoch_computes_nothing_and_the_owner_runs_it_again() -> None:
    whole = Whole(chain_whole)
    stale = {"one": replace(EPOCH, number=2)}
    with divided(CHAIN, CHAIN_PLACES, CHAIN_STAGES, whole, epochs=stale) as made:
        np.testing.assert_array_equal(ask(made, X), chain_whole({"x": X})["z"])
        assert whole.runs == made.runner.run_again == 1
        assert made.places["one"].stages.counters["messages of another epoch"] >= 1


def test_no_more_runs_are_under_way_than_a_route_takes() -> None:
    most: list[int] = []
    under_way: Counter[str] = Counter()
    counting = threading.Lock()

    def count(feeds: Arrays) -> Arrays:
        with counting:
            under_way["now"] += 1
            most.append(under_way["now"])
        clock.sleep_s(0.005)
        with counting:
            under_way["now"] -= 1
        return {"a": feeds["x"] + 1}

    runners = CHAIN_STAGES | {0: Computing(count)}
    with divided(CHAIN, CHAIN_PLACES, runners, None, most=2, instances=4) as made:
        ask_many(made, 40)
    assert max(most) == 2


def test_an_output_that_is_an_input_crosses_nothing() -> None:
    with divided(CHAIN, CHAIN_PLACES, CHAIN_STAGES, None) as made:
        found = made.runner.run({"x": X}, ["x", "z"])
        assert found["x"] is X
        np.testing.assert_array_equal(found["z"], chain_whole({"x": X})["z"])
