"""Another epoch of a model: opened by the worker that serves, or by another one."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.agent import moving
from edge_agent.agent.lanes import Lane, Station
from edge_agent.agent.loaded import Loaded
from edge_agent.errors import EdgeAgentError, ModelQuarantined, StorageError, WorkerLost
from edge_agent.transport.local import ConnectionLost
from edge_agent.wire.messages import (
    Deployment,
    Failure,
    RunError,
)
from tests.agent.rig import WorkerEnd, X, wait_until
from tests.agent.test_controller import (
    SPECIAL,
    Models,
    is_ready,
    load,
    models,
    write,
)

__all__ = ["models"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR):
        yield


def loaded(models: Models, folder: Path, *, opens_aside: bool = True) -> Loaded:
    found = models.controller.load(load(write(folder / "m.onnx")))
    found.opens_aside = opens_aside
    return found


def deploy(models: Models, found: Loaded) -> None:
    models.controller.deploy_specialised(found, (SPECIAL,))


def ends(models: Models) -> list[WorkerEnd]:
    return models.workers.ends


def test_another_epoch_is_served_by_the_same_worker(models: Models, tmp_path: Path) -> None:
    found = loaded(models, tmp_path)
    (worker,) = models.workers.workers
    before = found.serve.epoch.number
    deploy(models, found)
    assert models.workers.workers == [worker]
    assert found.worker is worker
    assert found.serve.epoch.number > before
    assert found.serve.specialised == worker.serve.specialised == (SPECIAL,)
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    (end,) = ends(models)
    assert end.epoch == found.serve.epoch
    assert found.lane.restarts == 0


def test_where_opening_stops_other_threads_another_worker_takes_over(
    models: Models, tmp_path: Path
) -> None:
    found = loaded(models, tmp_path, opens_aside=False)
    deploy(models, found)
    assert len(models.workers.workers) == 2
    assert found.worker is models.workers.workers[1]


@pytest.mark.parametrize("code", ["storage", "model-refused", "runtime-unavailable"])
def test_an_epoch_that_no_worker_could_open_is_given_up(
    models: Models, tmp_path: Path, code: str
) -> None:
    def refuse(end: WorkerEnd, deployment: Deployment) -> None:
        end.send(RunError(deployment.epoch, -1, code, "it is damaged"))

    found = loaded(models, tmp_path)
    ends(models)[0].opens_beside = refuse
    before = found.serve
    with pytest.raises(EdgeAgentError, match="it is damaged"):
        deploy(models, found)
    assert found.serve == before
    assert len(models.workers.workers) == 1
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert ends(models)[0].epoch == before.epoch


def test_an_epoch_that_this_worker_could_not_open_is_opened_by_another(
    models: Models, tmp_path: Path
) -> None:
    def fail(end: WorkerEnd, deployment: Deployment) -> None:
        end.send(RunError(deployment.epoch, -1, "error", "MemoryError: no more"))

    found = loaded(models, tmp_path)
    ends(models)[0].opens_beside = fail
    deploy(models, found)
    assert found.worker is models.workers.workers[1]
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_worker_that_does_not_get_to_opening_is_replaced(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "BESIDE_TIMEOUT_S", 0.05)
    found = loaded(models, tmp_path)
    ends(models)[0].opens_beside = lambda _end, _deployment: None
    deploy(models, found)
    assert found.worker is models.workers.workers[1]
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_worker_that_dies_while_it_opens_serves_again_before_another_opens_it(
    models: Models, tmp_path: Path
) -> None:
    def die(_end: WorkerEnd, _deployment: Deployment) -> None:
        raise ConnectionLost("killed")

    found = loaded(models, tmp_path)
    before = found.serve
    ends(models)[0].opens_beside = die
    deploy(models, found)
    served = [worker.serve.epoch for worker in models.workers.workers]
    assert served == [before.epoch, before.epoch, found.serve.epoch]
    assert found.worker is models.workers.workers[2]
    assert found.lane.restarts == 1
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_plan_that_kills_every_worker_that_opens_it_leaves_the_old_one_serving(
    models: Models, tmp_path: Path
) -> None:
    def die(_end: WorkerEnd, _deployment: Deployment) -> None:
        raise ConnectionLost("killed")

    found = loaded(models, tmp_path)
    before = found.serve
    ends(models)[0].opens_beside = die
    models.workers.steps = [is_ready, WorkerEnd.close]
    with pytest.raises(WorkerLost):
        deploy(models, found)
    assert found.serve.epoch == before.epoch
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_worker_that_runs_what_nobody_awaits_is_replaced(models: Models, tmp_path: Path) -> None:
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold(end: WorkerEnd) -> None:
        end.say_ready()
        end.serve_in_thread(lambda _: (is_held.set(), may_go_on.wait(20.0)))

    models.workers.steps = [hold]
    found = loaded(models, tmp_path)
    client = models.rig.client()
    client.infer(deadline_s=0.05)
    assert is_held.wait(20.0)
    answer = client.answer()
    assert isinstance(answer, Failure)
    deploy(models, found)
    assert found.worker is models.workers.workers[1]
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    may_go_on.set()


def test_a_request_that_is_under_way_at_the_switch_has_its_answer(
    models: Models, tmp_path: Path
) -> None:
    is_held, may_go_on = threading.Event(), threading.Event()
    found = loaded(models, tmp_path)
    (end,) = ends(models)
    before = found.serve.epoch

    def ask_first(end: WorkerEnd, deployment: Deployment) -> None:
        end.say_ready_for(deployment)
        is_held.set()
        assert may_go_on.wait(20.0)

    end.opens_beside = ask_first
    moves = threading.Thread(target=deploy, args=(models, found))
    moves.start()
    assert is_held.wait(20.0)
    client = models.rig.client()
    client.infer("r")
    wait_until(lambda: models.rig.in_flight()[0] == 1, "it is in flight")
    moves.join(20.0)
    may_go_on.set()
    np.testing.assert_array_equal(client.y(), X * 2)
    assert found.serve.epoch != before
    wait_until(lambda: end.epoch == found.serve.epoch, "it was told to switch")


def test_the_worker_that_is_restarted_after_a_switch_serves_the_new_epoch(
    models: Models, tmp_path: Path
) -> None:
    found = loaded(models, tmp_path)
    deploy(models, found)
    after = found.serve.epoch
    ends(models)[0].stream.socket.shutdown(2)
    wait_until(lambda: found.lane.restarts == 1, "another one serves")
    assert models.workers.workers[1].serve.epoch == after
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_model_that_is_quarantined_while_its_worker_opens_is_not_moved(
    models: Models, tmp_path: Path
) -> None:
    def die(_end: WorkerEnd, _deployment: Deployment) -> None:
        models.rig.datapath.call(found.lane.isolate)
        raise ConnectionLost("killed")

    found = loaded(models, tmp_path)
    ends(models)[0].opens_beside = die
    with pytest.raises(WorkerLost):
        deploy(models, found)
    assert len(models.workers.workers) == 1
    with pytest.raises(ModelQuarantined):
        models.controller.replan("m")


def test_a_large_model_leaves_its_unpacked_worker(models: Models, tmp_path: Path) -> None:
    found = loaded(models, tmp_path)
    serve = replace(found.serve, epoch=models.controller.epoch(found.record.model))
    models.controller.moving.move(found, serve, may_be_beside=False)
    assert found.worker is models.workers.workers[1]


def test_what_cannot_be_moved_says_so(models: Models, tmp_path: Path) -> None:
    found = loaded(models, tmp_path, opens_aside=False)

    def refuse(end: WorkerEnd) -> None:
        end.send(RunError(end.epoch, -1, "storage", "it is damaged"))

    models.workers.steps = [refuse]
    with pytest.raises(StorageError, match="it is damaged"):
        deploy(models, found)
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_what_nobody_could_let_serve_is_discarded_by_the_worker_that_goes_on(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(end: WorkerEnd) -> None:
        end.send(RunError(end.epoch, -1, "storage", "it is damaged"))

    monkeypatch.setattr(moving, "BESIDE_TIMEOUT_S", 0.05)
    found = loaded(models, tmp_path)
    (end,) = ends(models)
    opened: list[Deployment] = []
    end.opens_beside = lambda _end, deployment: opened.append(deployment)
    models.workers.steps = [refuse]
    with pytest.raises(StorageError):
        deploy(models, found)
    wait_until(lambda: end.discarded, "the worker is told")
    assert end.discarded == [deployment.epoch for deployment in opened]
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_worker_that_is_caught_in_a_run_when_it_is_to_switch_is_replaced(
    models: Models, tmp_path: Path
) -> None:
    may_go_on = threading.Event()

    def hang(end: WorkerEnd, deployment: Deployment) -> None:
        client = models.rig.client()
        client.infer("expires", deadline_s=0.05)
        assert isinstance(client.answer(), Failure)
        end.say_ready_for(deployment)
        run, _ = end.next_run()
        may_go_on.wait(20.0)
        end.answer(run, X * 2)

    found = loaded(models, tmp_path)
    ends(models)[0].opens_beside = hang
    deploy(models, found)
    assert found.worker is models.workers.workers[1]
    assert ends(models)[1].epoch == found.serve.epoch
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    may_go_on.set()


def test_a_model_that_is_quarantined_while_another_worker_opens_is_so_on_disk(
    models: Models, tmp_path: Path
) -> None:
    found = loaded(models, tmp_path, opens_aside=False)

    def die(end: WorkerEnd) -> None:
        models.rig.datapath.call(lambda: [found.lane.died() for _ in range(2)])
        ends(models)[0].stream.socket.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: found.lane.quarantine, "it is quarantined")
        is_ready(end)

    models.workers.steps = [die]
    with pytest.raises(ModelQuarantined):
        deploy(models, found)
    assert found.lane.active is None
    assert models.workers.children[-1].is_ended

    def recorded() -> str | None:
        (record,), _ = models.stores.registry.load()
        return record.quarantined

    wait_until(recorded, "it is on record")


def test_a_model_both_of_whose_workers_die_at_the_cutover_is_served_again(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = loaded(models, tmp_path, opens_aside=False)
    cut_over = models.rig.datapath.cut_over
    is_first = threading.Event()

    def die(lane: Lane, station: Station) -> None:
        if not is_first.is_set():
            is_first.set()
            for end in reversed(ends(models)):  # the last to be noticed is waited for
                end.stream.socket.shutdown(socket.SHUT_RDWR)
            wait_until(lambda: found.lane.active is None, "they are dead")
        cut_over(lane, station)

    monkeypatch.setattr(models.rig.datapath, "cut_over", die)
    with pytest.raises(WorkerLost):
        deploy(models, found)
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert found.worker is models.workers.workers[2]
