"""One planner process at a time: started on demand, and no request costs another one its answer."""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from edge_agent.agent.hunger import Hunger
from edge_agent.agent.planners import Planner, Planners
from edge_agent.agent.processes import LEAST_NICENESS, NICENESS, Child
from edge_agent.agent.slices import LONGEST_S, slice_s
from edge_agent.config import Settings
from edge_agent.devices import THIS_DEVICE
from edge_agent.distributions import Distribution
from edge_agent.errors import (
    AgentUnavailable,
    BadRequest,
    Busy,
    DeadlineExceeded,
    EdgeAgentError,
    ProtocolError,
)
from edge_agent.planner.answering import answer
from edge_agent.planner.appraising import Wanted, answer_loaded
from edge_agent.planner.posing import pose
from edge_agent.plans import Target
from edge_agent.store.peer_times import PeerTimesStore
from edge_agent.store.profiled import ProfiledStore
from edge_agent.subgraphs import ModelId
from edge_agent.transport import local
from edge_agent.wire.messages import Codec, Distributions, Failure, Progress, decode
from edge_agent.wire.planning import FROM_PLANNER, PlanLoaded, PlanProblem
from edge_agent.wire.routes import unpack
from tests.planner import made_surroundings
from tests.planner.made_problems import SUMMARY, problem, profiled
from tests.planning.made_models import configuration, times
from tests.planning.made_profiles import board, processor
from tests.planning.oracle.problems_made import crowded_problem
from tests.system.running import KNOWS_SLICES, has_ended, stopped, wait_until

LATENCY = (Target.LATENCY,)
QUICK = PlanProblem(problem(), LATENCY)
CROWDED = crowded_problem(random.Random(1), segments=40, devices=6, room=1.2)
LONG = PlanProblem(CROWDED, (Target.THROUGHPUT,), effort=1e9)


def settings(root: Path) -> Settings:
    return Settings(socket=root / "s", state=root / "state", cache=root / "cache")


@pytest.fixture
def planners(tmp_path: Path) -> Iterator[Planners]:
    made = Planners(settings(tmp_path))
    yield made
    made.close()


def may_leave_idle() -> bool:
    """Whether this user may raise a priority: root may, if nothing took that from it."""
    with subprocess.Popen(["sleep", "9"]) as sleeping:
        os.sched_setscheduler(sleeping.pid, os.SCHED_IDLE, os.sched_param(0))
        try:
            os.sched_setscheduler(sleeping.pid, os.SCHED_OTHER, os.sched_param(0))
        except PermissionError:
            return False
        finally:
            sleeping.kill()
    return True


def policies(planners: Planners) -> set[int]:
    """Of the threads of the planner."""
    threads = os.listdir(f"/proc/{planners.pid}/task")
    return {os.sched_getscheduler(int(thread)) for thread in threads}


@contextmanager
def busy() -> Iterator[None]:
    """Two processes on each core that never wait, in sessions of their own."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    running = [
        subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, "-c", code], start_new_session=True
        )
        for core in os.sched_getaffinity(0)
        for _ in range(2)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def warm(planners: Planners) -> int:
    """The process id of the planner, which has answered."""
    planners.ask(QUICK)
    pid = planners.pid
    assert pid is not None
    return pid


@contextmanager
def asking(planners: Planners, limit_s: float | None = None) -> Iterator[Future[Distributions]]:
    """A request to a planner that does not move."""
    pid = warm(planners)
    with ThreadPoolExecutor(1) as pool, stopped(pid):
        yield pool.submit(planners.ask, QUICK, limit_s)


def test_an_answer_is_what_planning_gives_in_the_own_process(planners: Planners) -> None:
    targets = (Target.BYTES, Target.THROUGHPUT)
    found = planners.ask(PlanProblem(problem(), targets, is_pareto=True))
    got = unpack(found.planned)
    assert got == answer(problem(), targets, is_pareto=True)
    assert got.front


def test_one_process_answers_until_it_was_idle_for_a_while(tmp_path: Path) -> None:
    planners = Planners(settings(tmp_path), idle_s=0.3)
    assert planners.pid is None
    planners.ask(QUICK)
    pid = planners.pid
    planners.ask(QUICK)
    assert planners.pid == pid is not None
    process = psutil.Process(pid)
    wait_until(lambda: planners.pid is None, "it is idle")
    wait_until(lambda: has_ended(process), "its end")
    planners.ask(QUICK)
    assert planners.pid not in (pid, None)
    planners.close()


def test_it_runs_where_nobody_else_wants_the_processor(planners: Planners) -> None:
    pid = warm(planners)
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    session = Path(f"/proc/{pid}/autogroup")
    assert not session.exists() or session.read_text().strip().endswith(f" nice {LEAST_NICENESS}")
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "300"
    # One computes and one waits for the end of the agent.
    threads = os.listdir(f"/proc/{pid}/task")
    assert len(threads) == 2
    for thread in threads:
        assert not KNOWS_SLICES or slice_s(int(thread)) == pytest.approx(LONGEST_S)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("is_allowed", [True, False])
def test_where_others_take_the_whole_processor_it_competes_until_it_has_answered(
    planners: Planners, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold, it would take minutes to start."""
    may_raise = is_allowed and may_leave_idle()
    if not is_allowed:
        monkeypatch.setattr(Child, "give_way_less", lambda _: False)
    with busy(), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(planners.ask, QUICK, 60.0)
        wait_until(lambda: planners.pid, "it is started")
        first = planners.pid
        assert unpack(asked.result(60).planned) == answer(problem(), LATENCY)
    assert (planners.pid == first) == may_raise
    assert policies(planners) == {os.SCHED_IDLE}


@pytest.mark.long
def test_every_thread_of_one_that_starves_competes_and_then_gives_way_again(
    planners: Planners, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may_leave_idle():
        pytest.skip("this user may not raise a priority")
    pid = warm(planners)
    monkeypatch.setattr(Hunger, "is_starving", lambda _: True)
    competes = threading.Event()

    def note(told: Progress) -> None:
        if told.what == "planning, beside others that take the whole processor":
            competes.set()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            planners.ask, PlanProblem(CROWDED, (Target.THROUGHPUT,), effort=2e6), 60.0, note
        )
        assert competes.wait(30)
        assert planners.pid == pid
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        # One computes, one waits for the end of the agent, and one tells how far it is.
        assert len(threads) == 3
        assert policies(planners) == {os.SCHED_OTHER}
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {NICENESS}
        assert asked.result(60)
    assert planners.pid == pid
    assert policies(planners) == {os.SCHED_IDLE}


@pytest.mark.long
def test_one_that_has_computed_for_long_is_replaced_only_after_a_while(
    planners: Planners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "give_way_less", lambda _: False)
    monkeypatch.setattr(Hunger, "spent_s", 5.0)
    starved = warm(planners)
    windows: list[int] = []

    def is_starving(hunger: Hunger) -> bool:
        hunger.windows += 1
        windows.append(hunger.windows)
        if hunger.windows == 2:
            psutil.Process(starved).resume()
        return True

    monkeypatch.setattr(Hunger, "is_starving", is_starving)
    with stopped(starved):
        found = planners.ask(QUICK, 20.0)
    assert unpack(found.planned) == answer(problem(), LATENCY)
    assert windows == [1, 2]
    assert planners.pid == starved


@pytest.mark.long
def test_one_that_starves_and_may_not_compete_is_replaced(
    planners: Planners, monkeypatch: pytest.MonkeyPatch
) -> None:
    starved = warm(planners)
    monkeypatch.setattr(Child, "give_way_less", lambda _: False)
    monkeypatch.setattr(Hunger, "is_starving", lambda _: True)
    competing = []
    gives_way = Child.give_way

    def give_way(child: Child) -> None:
        competing.append(child.pid)
        gives_way(child)

    monkeypatch.setattr(Child, "give_way", give_way)
    asked = PlanProblem(problem(), LATENCY, is_pareto=True)
    told: list[str] = []
    with stopped(starved):
        found = planners.ask(asked, 20.0, lambda progress: told.append(progress.what))
    assert unpack(found.planned) == answer(problem(), LATENCY, is_pareto=True)
    wait_until(lambda: not psutil.pid_exists(starved), "the end of the one that starved")
    assert competing == [planners.pid]
    assert told[0] == "planning, beside others that take the whole processor"
    assert policies(planners) == {os.SCHED_IDLE}
    # It answers what it is asked, and not what the other one was.
    assert unpack(planners.ask(QUICK).planned) == answer(problem(), LATENCY)


@pytest.mark.long
def test_nobody_is_left_when_a_request_is_given_up_while_its_planner_starves(
    planners: Planners, monkeypatch: pytest.MonkeyPatch
) -> None:
    starved = warm(planners)
    is_unwanted = threading.Event()

    def starves(_: Hunger) -> bool:
        is_unwanted.set()
        planners.look_again()
        return True

    monkeypatch.setattr(Child, "give_way_less", lambda _: False)
    monkeypatch.setattr(Hunger, "is_starving", starves)
    with stopped(starved), pytest.raises(EdgeAgentError, match="nobody wants it"):
        planners.ask(QUICK, 20.0, is_unwanted=is_unwanted.is_set)
    assert planners.pid is None
    assert not psutil.pid_exists(starved)
    monkeypatch.undo()
    assert unpack(planners.ask(QUICK).planned) == answer(problem(), LATENCY)
    assert planners.pid != starved


def test_a_planner_that_is_killed_costs_its_request_alone(planners: Planners) -> None:
    with asking(planners) as asked:
        pid = planners.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EdgeAgentError, match=r"the planner died \(signal 9\): ask again"):
            asked.result()
    assert unpack(planners.ask(QUICK).planned).best
    assert planners.pid != pid


def test_a_planner_that_died_while_nobody_asked_costs_nothing(planners: Planners) -> None:
    pid = warm(planners)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert unpack(planners.ask(QUICK).planned).best


@pytest.mark.long
def test_a_planner_that_hangs_is_ended_after_its_time(planners: Planners) -> None:
    with asking(planners, limit_s=0.2) as asked:
        pid = planners.pid
        with pytest.raises(DeadlineExceeded, match=r"longer than 0.2 s.*\(it did not begin\)"):
            asked.result()
        assert pid is not None
        assert not psutil.pid_exists(pid)
    assert unpack(planners.ask(QUICK).planned).best


def test_what_a_planner_refuses_costs_it_nothing(planners: Planners) -> None:
    with pytest.raises(BadRequest, match="what a, b draws"):
        planners.ask(PlanProblem(problem(), (Target.ENERGY,)))
    pid = planners.pid
    assert unpack(planners.ask(QUICK).planned).best
    assert planners.pid == pid is not None


def test_a_loaded_model_is_read_by_the_planner(planners: Planners, tmp_path: Path) -> None:
    ask = PlanLoaded(name="m", model=SUMMARY.model, targets=LATENCY)
    with pytest.raises(BadRequest, match="edge-agent replan m"):
        planners.ask(ask)
    model = profiled()
    model = replace(model, profile=replace(model.profile, disturbed_fraction=0.75))
    ProfiledStore(tmp_path / "state").save("m", model)
    got = planners.ask(ask)
    want = answer_loaded(pose(model, is_for_throughput=False), Wanted(targets=LATENCY, effort=None))
    assert unpack(got.planned) == replace(want, disturbed_fraction=0.75)
    (appraisal,) = want.appraisals
    assert [one.device for one in appraisal.alone] == [THIS_DEVICE]
    with pytest.raises(BadRequest, match="of another model"):
        planners.ask(PlanLoaded(name="m", model=ModelId("x"), targets=LATENCY))


def test_what_peers_measured_is_read_by_the_planner(planners: Planners, tmp_path: Path) -> None:
    model = made_surroundings.loaded()
    name, model_id = "m", model.summary.model
    ProfiledStore(tmp_path / "state").save(name, model)
    peers = [
        made_surroundings.peer(made_surroundings.PI, "pi", board()),
        made_surroundings.peer(made_surroundings.BOX, "box", board(processor(2.0))),
    ]
    around = made_surroundings.around(*peers)
    ask = PlanLoaded(
        name=name, model=model_id, around=around, targets=(Target.THROUGHPUT, Target.LATENCY)
    )
    wanted = Wanted(targets=ask.targets)
    assert unpack(planners.ask(ask).planned) == answer_loaded(pose(model, around), wanted)
    measured = made_surroundings.stage(0, times(configuration(threads=4), (1e-6,) * 4))
    PeerTimesStore(tmp_path / "state").add(name, model_id, made_surroundings.PI, measured)
    got = unpack(planners.ask(ask).planned)
    assert got == answer_loaded(pose(model, around, {made_surroundings.PI: [measured]}), wanted)
    _, quickest = got.best
    assert isinstance(quickest, Distribution)
    assert {part.device for part in quickest.routes[0].parts()} >= {made_surroundings.PI}
    assert got.names == ((made_surroundings.PI, "pi"), (made_surroundings.BOX, "box"))


def test_only_so_many_requests_wait(tmp_path: Path) -> None:
    planners = Planners(settings(tmp_path), most_waiting=1)
    try:
        with asking(planners) as first, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(planners.ask, QUICK)
            wait_until(lambda: planners.asked == 2, "both ask")
            with pytest.raises(Busy, match="2 requests to the planner are waited for"):
                planners.ask(QUICK)
            pid = planners.pid
            assert pid is not None
            psutil.Process(pid).resume()
            assert unpack(first.result().planned).best
            assert unpack(waiting.result().planned).best
    finally:
        planners.close()


def test_who_waits_when_the_agent_ends_is_told(planners: Planners) -> None:
    with asking(planners) as first, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(planners.ask, QUICK)
        wait_until(lambda: planners.asked == 2, "both ask")
        planners.close()
        for asked in (first, waiting):
            with pytest.raises(AgentUnavailable, match="the agent is stopping"):
                asked.result()
    with pytest.raises(AgentUnavailable):
        planners.ask(QUICK)
    assert planners.pid is None


def test_a_planner_ends_in_the_middle_of_its_work_when_nobody_is_left(tmp_path: Path) -> None:
    planner = Planner(settings(tmp_path))
    process = psutil.Process(planner.pid)
    has_begun = threading.Event()
    asked = threading.Thread(target=lambda: _lost(planner, has_begun))
    asked.start()
    assert has_begun.wait(10.0)
    planner.release()
    wait_until(lambda: has_ended(process), "its end")
    asked.join()
    planner.end()


def _lost(planner: Planner, has_begun: threading.Event) -> None:
    with pytest.raises(local.ConnectionLost):
        planner.ask(LONG, 60.0, lambda _: has_begun.set())


def test_what_takes_long_tells_how_far_it_is(planners: Planners) -> None:
    told: queue.Queue[Progress] = queue.Queue()
    asked = PlanProblem(CROWDED, (Target.BYTES, Target.THROUGHPUT), effort=1e9)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(planners.ask, asked, report=told.put)
        found = told.get(timeout=30.0)
        while found.what != "the best for throughput":
            found = told.get(timeout=30.0)
        assert found.fraction == 0.5
        planners.close()
        with pytest.raises(AgentUnavailable):
            answered.result()


def test_what_nobody_wants_any_more_is_given_up(planners: Planners) -> None:
    has_begun, is_unwanted = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            planners.ask,
            LONG,
            report=lambda _: has_begun.set(),
            is_unwanted=is_unwanted.is_set,
        )
        assert has_begun.wait(30.0)
        pid = planners.pid
        planners.look_again()
        assert planners.pid == pid is not None
        is_unwanted.set()
        planners.look_again()
        with pytest.raises(EdgeAgentError, match="given up: nobody wants it"):
            asked.result(10.0)
    assert not psutil.pid_exists(pid)
    planners.look_again()
    assert unpack(planners.ask(QUICK).planned).best


def test_what_nobody_wants_any_more_leaves_the_queue(planners: Planners) -> None:
    has_begun, is_unwanted = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(planners.ask, LONG, report=lambda _: has_begun.set())
        assert has_begun.wait(30.0)
        pid = planners.pid
        second = pool.submit(planners.ask, QUICK, is_unwanted=is_unwanted.is_set)
        wait_until(lambda: planners.asked == 2, "the second waits")
        is_unwanted.set()
        planners.look_again()
        with pytest.raises(EdgeAgentError, match="given up: nobody wants it"):
            second.result(10.0)
        assert planners.pid == pid
        assert not first.done()
        planners.close()
        with pytest.raises(AgentUnavailable):
            first.result(10.0)


def test_what_is_unwanted_before_its_turn_starts_no_planner(planners: Planners) -> None:
    with pytest.raises(EdgeAgentError, match="given up: nobody wants it"):
        planners.ask(QUICK, is_unwanted=lambda: True)
    assert planners.pid is None


def test_of_what_is_answered_at_once_nothing_is_told(planners: Planners) -> None:
    told: list[Progress] = []
    for _ in range(5):
        planners.ask(QUICK, report=told.append)
    assert len(told) < 5


def test_bytes_that_are_no_request_are_answered_with_an_error(tmp_path: Path) -> None:
    planner, codec = Planner(settings(tmp_path)), Codec()
    try:
        for raw in (b"", b"\xff" * 40, b"\x91" * 5000, codec.encode(Failure(None, "x", "y"))):
            planner.stream.send(raw)
            told = decode(FROM_PLANNER, planner.stream.receive()[0])
            assert isinstance(told, Failure)
            assert told.code == ProtocolError.code
        assert unpack(planner.ask(QUICK, 60.0, lambda _: None).planned).best
    finally:
        planner.end()
