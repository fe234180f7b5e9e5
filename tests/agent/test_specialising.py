"""Which specialisations are made, kept and served, with builders and a controller in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import pytest

from edge_agent.agent.builders import Builder
from edge_agent.agent.lanes import Lane
from edge_agent.agent.loaded import Loaded, Planning, ShapeWork
from edge_agent.agent.probing import Prober
from edge_agent.agent.specialising import Specialiser
from edge_agent.agent.turns import Turn
from edge_agent.agent.workers import Serve
from edge_agent.config import Settings, Specialising
from edge_agent.devices import Device, Layout
from edge_agent.errors import (
    BuilderLost,
    Busy,
    EdgeAgentError,
    InputMismatch,
    RunFailed,
    StorageError,
)
from edge_agent.plans import ExecutionPlan, Target
from edge_agent.store.registry import LoadedModel
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Shape, ShapeSet, TensorName
from edge_agent.wire.messages import (
    Build,
    Built,
    PlanInMaking,
)
from edge_agent.wire.parts import (
    Banned,
    ShapeCount,
    Specialised,
    SubgraphFile,
)
from tests.agent.made_lanes import epoch, spec
from tests.agent.rig import wait_until
from tests.builder.made_units import GPU, OTHER
from tests.made_plans import PLAN

MODEL = ModelId("m")
X = TensorName("x")
FILE = SubgraphFile(path="/c/graph.onnx", level="none", threads=1, is_plain=False)
ON_GPU = msgspec.structs.replace(FILE, unit=GPU, use=OTHER.use(Layout.NATIVE, 0))
BANNED = Banned(GPU, "the worker died again and again")


def plan_of(shapes: tuple[tuple[TensorName, Shape], ...], *, special: bool = True) -> ExecutionPlan:
    return replace(PLAN, shapes=shapes, is_specialised=special)


def counts(**often: int) -> tuple[ShapeCount, ...]:
    """`counts(a1x2=40)`: x was asked as 1x2 forty times."""
    return tuple(
        ShapeCount((tuple(map(int, name[1:].split("x"))),), count) for name, count in often.items()
    )


A, B, C = ((1, 2),), ((2, 2),), ((3, 2),)


class FakeBuilder:
    """Says what the test wants said, when it wants it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.is_killed = threading.Event()

    def build(
        self,
        message: Build,
        on_progress: Callable[[float, str], None],
        wait_for_grant: Callable[[], None],
    ) -> Built:
        shapes = tuple(shape for _, shape in message.shapes)
        self.bench.built.append(shapes)
        self.bench.messages.append(message)
        on_progress(0.5, "measuring")
        wait_for_grant()
        while not self.bench.go_on.wait(0.01):
            if self.is_killed.is_set():
                raise BuilderLost("stopped")
        error = self.bench.errors.get(shapes)
        if error is not None:
            raise error
        file = FILE
        if shapes in self.bench.on_gpu and not message.banned:
            file = ON_GPU
            self.bench.when_made(shapes)
        return Built(
            plan=plan_of(message.shapes),
            device=DEVICE,
            subgraphs=() if shapes in self.bench.useless else (file,),
            instances=1,
            pinned_cores=(),
            inputs=(),
            outputs=(),
        )

    def kill(self) -> None:
        self.is_killed.set()

    def close(self) -> None:
        self.bench.closed += 1


DEVICE = Device(
    hostname="h",
    processor="p",
    cores=(0,),
    memory_bytes=1,
    runtime_version="1.32.0",
    runtime_build="onnxruntime",
    units=(),
)


class Bench:
    """A specialiser, and a host that does what a controller does."""

    def __init__(self, most: int = 2) -> None:
        settings = Settings(
            socket=Path("/s"),
            state=Path("/st"),
            cache=Path("/c"),
            specialising=Specialising(most_shapes=most),
        )
        self.building = Turn()
        self.prober = Prober(settings)
        self.prober.learn(DEVICE)
        self.built: list[ShapeSet] = []
        self.messages: list[Build] = []
        self.errors: dict[ShapeSet, EdgeAgentError] = {}
        self.useless: set[ShapeSet] = set()
        self.on_gpu: set[ShapeSet] = set()
        """Whose subgraphs are on a unit beside the processor, unless one is banned."""
        self.when_made: Callable[[ShapeSet], None] = lambda _: None
        """Called when such a one was made, before it is known to the agent."""
        self.go_on = threading.Event()
        self.go_on.set()
        self.deployed: list[set[ShapeSet]] = []
        self.cannot_deploy: EdgeAgentError | None = None
        self.kept = 0
        self.closed = 0
        self.specialiser = Specialiser(
            settings, self, self, lambda _settings: cast(Builder, FakeBuilder(self))
        )
        record = LoadedModel(
            name="m",
            model=MODEL,
            target=Target.LATENCY,
            threads=1,
            shapes=(),
            loaded_at_s=0.0,
            source="/m.onnx",
        )
        lane = Lane("m", (spec("x", "N", 2),), (spec("y", "N", 2),))
        serve = Serve(epoch=epoch(), subgraphs=(FILE,), instances=1)
        self.loaded = Loaded(record=record, lane=lane, serve=serve)
        self.loaded.plan = plan_of(((X, (9, 2)),), special=False)
        self.loaded.planning = Planning("done", 1.0, "done")

    # ---- as host and traffic

    def quiet_for_s(self) -> float:
        return 1.0

    def is_over(self, loaded: Loaded) -> bool:
        return loaded.is_gone.is_set()

    def deploy_specialised(self, loaded: Loaded, specialised: tuple[Specialised, ...]) -> None:
        if self.cannot_deploy is not None:
            raise self.cannot_deploy
        self.deployed.append({s.shapes for s in specialised})
        loaded.serve = Serve(epoch=epoch(), subgraphs=(FILE,), instances=1, specialised=specialised)

    def keep_on(self, loaded: Loaded) -> None:  # noqa: ARG002
        self.kept += 1

    def sweep_after_builder(self) -> None:
        return

    # ---- what tests do and see

    def ask(self, **often: int) -> None:
        """The worker tells these counts; returns when all that follows is done."""
        self.specialiser.counted(self.loaded, counts(**often))
        self.settle()

    def settle(self) -> None:
        wait_until(lambda: not self.is_busy, "the specialiser has nothing more to do")

    @property
    def is_busy(self) -> bool:
        return any(t.name == "build-shapes-m" for t in threading.enumerate())

    def serving(self) -> set[ShapeSet]:
        return {s.shapes for s in self.loaded.serve.specialised}

    def reason(self, shapes: ShapeSet) -> str:
        (found,) = (s for s in self.loaded.specialisations if s.shapes == shapes)
        return found.reason


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loaded.is_gone.set()
    made.specialiser.stop(made.loaded)
    made.settle()


def test_what_is_asked_often_is_planned_for_itself_and_served_by_one_new_worker(
    bench: Bench,
) -> None:
    bench.ask(x1x2=60, x2x2=40)
    assert bench.built == [A, B]
    assert bench.deployed == [{A, B}]
    assert bench.messages[0].shapes == ((X, (1, 2)),)
    assert bench.messages[0].general is not None
    assert bench.messages[0].general.subgraphs == (FILE,)
    assert bench.closed == 1
    assert bench.kept == 1
    bench.ask(x1x2=60, x2x2=40)
    assert len(bench.built) == 2


def test_there_are_never_more_than_the_setting_allows(bench: Bench) -> None:
    bench.ask(x1x2=60, x2x2=50, x3x2=40)
    assert bench.serving() == {A, B}
    bench.ask(x1x2=60, x2x2=50, x3x2=100)
    assert bench.serving() == {A, C}
    assert bench.deployed == [{A, B}, {A, C}]


def test_what_nobody_asks_any_more_goes(bench: Bench) -> None:
    bench.ask(x1x2=60, x2x2=40)
    bench.ask(x2x2=100)
    assert bench.serving() == {B}
    assert len(bench.built) == 2


def test_what_gains_nothing_is_remembered_and_not_tried_again(bench: Bench) -> None:
    bench.useless = {A}
    bench.ask(x1x2=60)
    bench.ask(x1x2=100)
    assert bench.built == [A]
    assert bench.deployed == []
    assert bench.reason(A) == "it is faster"


def test_what_could_not_be_planned_is_remembered_and_told(bench: Bench) -> None:
    bench.errors = {A: RunFailed("it failed"), B: BuilderLost("signal 11")}
    bench.ask(x1x2=60, x2x2=50)
    bench.ask(x1x2=60, x2x2=50)
    assert bench.built == [A, B]
    assert bench.reason(A) == "it failed"
    assert bench.reason(B) == "the builder died (signal 11)"
    assert bench.deployed == []


def test_what_cannot_be_opened_leaves_what_serves_and_is_not_tried_again(bench: Bench) -> None:
    bench.ask(x1x2=60)
    bench.cannot_deploy = StorageError("the disk is full")
    bench.ask(x1x2=60, x2x2=50)
    assert bench.serving() == {A}
    assert bench.reason(B) == "not opened: the disk is full"
    bench.ask(x1x2=60, x2x2=50)
    assert bench.built == [A, B]


def test_what_was_made_while_its_unit_killed_the_worker_is_made_again(bench: Bench) -> None:
    bench.on_gpu = {A}

    def dies(_: ShapeSet) -> None:
        bench.loaded.banned = (BANNED,)

    bench.when_made = dies
    bench.ask(x1x2=60)
    assert bench.built == [A, A]
    assert [m.banned for m in bench.messages] == [(), (BANNED,)]
    assert [s.subgraphs for s in bench.loaded.serve.specialised] == [(FILE,)]


def test_what_was_made_before_its_unit_killed_the_worker_is_not_opened(bench: Bench) -> None:
    bench.on_gpu = {A, B}

    def dies_of_the_one_before(shapes: ShapeSet) -> None:
        if shapes == B:
            bench.loaded.banned = (BANNED,)

    bench.when_made = dies_of_the_one_before
    bench.ask(x1x2=60, x2x2=50)
    assert bench.built == [A, B, B]
    assert bench.deployed == [{B}]
    assert bench.reason(A) == "the worker died of its units"


def test_shapes_that_change_in_the_middle_are_dealt_with_before_it_ends(bench: Bench) -> None:
    bench.go_on.clear()
    bench.specialiser.counted(bench.loaded, counts(x1x2=60))
    wait_until(lambda: bench.built == [A], "the first is being built")
    bench.specialiser.counted(bench.loaded, counts(x1x2=60, x2x2=60))
    bench.go_on.set()
    bench.settle()
    assert bench.built == [A, B]
    assert bench.serving() == {A, B}


def test_stopping_ends_it_at_once_and_what_is_left_is_made_later(bench: Bench) -> None:
    bench.go_on.clear()
    bench.specialiser.counted(bench.loaded, counts(x1x2=60))
    wait_until(lambda: bench.built == [A], "it is being built")
    bench.loaded.planning = Planning("waiting", 0.0, "planned again")
    bench.specialiser.stop(bench.loaded)
    bench.settle()
    assert bench.loaded.specialisations == ()
    bench.go_on.set()
    bench.loaded.planning = Planning("done", 1.0, "done")
    bench.specialiser.consider(bench.loaded)
    bench.settle()
    assert bench.serving() == {A}


def test_who_is_stopped_does_not_wait_for_its_turn(bench: Bench) -> None:
    with bench.building.held(lambda: False):
        bench.specialiser.counted(bench.loaded, counts(x1x2=60))
        wait_until(lambda: bench.is_busy, "it waits for its turn")
        bench.loaded.is_gone.set()
        bench.specialiser.stop(bench.loaded)
        bench.settle()
    assert bench.built == []


def test_a_model_that_is_gone_is_not_worked_on(bench: Bench) -> None:
    bench.go_on.clear()
    bench.specialiser.counted(bench.loaded, counts(x1x2=60))
    wait_until(lambda: bench.built == [A], "it is being built")
    bench.loaded.is_gone.set()
    bench.specialiser.stop(bench.loaded)
    bench.settle()
    assert bench.deployed == []
    bench.ask(x1x2=100)
    assert bench.built == [A]


def test_builds_take_turns(bench: Bench) -> None:
    with bench.building.held(lambda: False):
        bench.specialiser.counted(bench.loaded, counts(x1x2=60))
        wait_until(lambda: bench.is_busy, "it waits for its turn")
        assert bench.built == []
    bench.settle()
    assert bench.serving() == {A}


def test_after_a_new_general_plan_they_serve_on_and_are_measured_again(bench: Bench) -> None:
    bench.useless = {B}
    bench.ask(x1x2=60, x2x2=60)
    bench.specialiser.begin_anew(bench.loaded)
    assert bench.serving() == {A}
    bench.useless = {A}
    bench.specialiser.consider(bench.loaded)
    bench.settle()
    assert bench.built == [A, B, A, B]
    assert [m.is_fresh for m in bench.messages] == [False, False, True, True]
    assert bench.serving() == {B}


def test_without_a_general_plan_there_is_nothing_to_compare_with(bench: Bench) -> None:
    bench.loaded.plan = None
    bench.ask(x1x2=60)
    assert bench.built == []


def test_counts_of_another_number_of_inputs_are_left_out(bench: Bench) -> None:
    bench.specialiser.counted(bench.loaded, (ShapeCount(((1,), (2,)), 100),))
    bench.settle()
    assert bench.loaded.counted == ()


@pytest.mark.parametrize(
    ("most", "dim", "counted"), [(0, "N", False), (1, "N", True), (1, 5, False)]
)
def test_only_open_dimensions_are_counted_and_only_if_it_is_on(
    most: int, dim: int | str, counted: bool
) -> None:
    lane = Lane("m", (spec("x", dim, 2),), ())
    assert Bench(most).specialiser.counts(lane) is counted


def test_models_with_very_many_inputs_are_not_counted() -> None:
    inputs = tuple(spec(f"x{i}", "N") for i in range(65))
    specialiser = Bench(4).specialiser
    assert specialiser.counts(Lane("m", inputs[:64], ()))
    assert not specialiser.counts(Lane("m", inputs, ()))


def answer(bench: Bench, shape: Shape) -> ExecutionPlan:
    """The plan for a shape of x, asked for until it is there."""
    found: list[ExecutionPlan] = []

    def is_there() -> bool:
        got = bench.specialiser.plan_for(bench.loaded, {X: shape})
        if isinstance(got, ExecutionPlan):
            found.append(got)
        return bool(found)

    wait_until(is_there, "the plan is made")
    return found[0]


def test_a_shape_that_a_user_asks_about_is_planned_once_and_not_deployed(bench: Bench) -> None:
    first = bench.specialiser.plan_for(bench.loaded, {X: (5, 2)})
    assert isinstance(first, PlanInMaking)
    assert answer(bench, (5, 2)).shapes == ((X, (5, 2)),)
    assert answer(bench, (5, 2)).is_specialised
    bench.settle()
    assert bench.built == [((5, 2),)]
    assert bench.deployed == []
    assert bench.loaded.specialisations == ()


def test_the_plans_that_are_known_are_told_at_once(bench: Bench) -> None:
    bench.ask(x1x2=60)
    assert bench.specialiser.plan_for(bench.loaded, {X: (9, 2)}) is bench.loaded.plan
    got = bench.specialiser.plan_for(bench.loaded, {X: (1, 2)})
    assert got is bench.loaded.specialisations[0].plan
    assert bench.built == [A]


def test_what_fails_is_told_once_and_tried_again_when_asked_again(bench: Bench) -> None:
    bench.errors = {A: RunFailed("it failed")}
    with pytest.raises(RunFailed, match="it failed"):
        answer(bench, (1, 2))
    bench.errors = {}
    assert answer(bench, (1, 2)).is_specialised


def test_a_shape_that_contradicts_the_model_is_refused(bench: Bench) -> None:
    with pytest.raises(InputMismatch, match="want float32"):
        bench.specialiser.plan_for(bench.loaded, {X: (1, 3)})
    with pytest.raises(InputMismatch, match='got a shape for "w"'):
        bench.specialiser.plan_for(bench.loaded, {TensorName("w"): (1,)})


def test_only_so_many_shapes_are_waited_for(bench: Bench) -> None:
    with bench.building.held(lambda: False):
        for size in range(10, 26):
            bench.specialiser.plan_for(bench.loaded, {X: (size, 2)})
        bench.specialiser.plan_for(bench.loaded, {X: (10, 2)})
        with pytest.raises(Busy, match="16 sets of shapes are waited for"):
            bench.specialiser.plan_for(bench.loaded, {X: (26, 2)})


def test_a_user_who_waits_goes_before_what_is_counted(bench: Bench) -> None:
    with bench.building.held(lambda: False):
        bench.specialiser.counted(bench.loaded, counts(x1x2=60))
        bench.specialiser.plan_for(bench.loaded, {X: (5, 2)})
    bench.settle()
    assert bench.built == [((5, 2),), A]


def test_what_gained_nothing_is_forgotten_when_there_is_too_much_of_it(bench: Bench) -> None:
    for size in range(1, 20):
        shapes = ((size, 2),)
        bench.useless.add(shapes)
        bench.specialiser.counted(bench.loaded, (ShapeCount(shapes, 100),))
        wait_until(
            lambda shapes=shapes: shapes in bench.built and not bench.is_busy, "it was tried"
        )
    assert len(bench.loaded.specialisations) == 16


def test_what_is_counted_while_the_thread_ends_is_made_too(bench: Bench) -> None:
    has_work = bench.specialiser._has_work
    told: list[bool] = []

    class Changing:
        """Tells of another shape at the moment at which the thread has found nothing to do."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.is_last = False

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()
            if self.is_last:
                self.is_last = False
                told.append(True)
                bench.specialiser.counted(bench.loaded, counts(x1x2=60, x2x2=60))

    changing = Changing()
    bench.loaded.shape_work.changing = cast(threading.Lock, changing)

    def looked(loaded: Loaded, work: ShapeWork) -> bool:
        found = has_work(loaded, work)
        if threading.current_thread().name.startswith("build-shapes") and not found and not told:
            changing.is_last = True
        return found

    bench.specialiser._has_work = looked  # type: ignore[method-assign]
    bench.ask(x1x2=60)
    assert told
    assert bench.built == [A, B]
