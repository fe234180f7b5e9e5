"""Loading, replacing, planning again and unloading models while they are asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import psutil
import pytest

from edge_agent import clock
from edge_agent.agent.controller import FIRST_REQUEST_S
from edge_agent.agent.slices import SHORTEST_S, slice_s
from edge_agent.client import Client
from edge_agent.errors import Busy, DeadlineExceeded, UnknownModel, UsageError
from tests.system.conftest import StartAgent
from tests.system.made_models import (
    adding,
    convolving,
    count,
    counting,
    image,
    with_external_data,
    x,
)
from tests.system.running import (
    KNOWS_SLICES,
    Place,
    RunningAgent,
    stopped,
    wait_until,
    worker_pid,
)


@contextmanager
def asked_all_the_time(agent: RunningAgent, model: str, threads: int) -> Iterator[list[float]]:
    """Ask an `adding` from several threads; what it added, in the order of the answers."""
    added: list[float] = []
    is_enough = Event()

    def ask(client: Client) -> None:
        while not is_enough.is_set():
            added.append(float(client.infer(model, x(0.0))["y"][0, 0]))

    with agent.client() as client, ThreadPoolExecutor(threads) as pool:
        asking = [pool.submit(ask, client) for _ in range(threads)]
        try:
            yield added
        finally:
            is_enough.set()
        for answer in asking:
            answer.result(30)


@pytest.mark.long
def test_a_model_answers_as_soon_as_it_is_loaded_and_all_through_its_planning(
    start: StartAgent, tmp_path: Path
) -> None:
    with start().client() as client:
        client.load(convolving(tmp_path / "net.onnx"))
        first = client.infer("net", image())["y"]
        assert client.model("net").planning in ("waiting", "working")
        while client.model("net").planning in ("waiting", "working"):
            answer = client.infer("net", image())["y"]
            assert np.allclose(answer, first, rtol=1e-3, atol=1e-5)
        assert client.model("net").planning == "done"
        assert client.model("net").failed == 0


@pytest.mark.long
def test_a_model_replaced_under_its_name_answers_every_request_by_one_or_the_other(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    agent = start()
    with agent.client() as client:
        old = client.load(adding(tmp_path / "old.onnx", 1.0), "m")
        with asked_all_the_time(agent, "m", 2) as added:
            wait_until(lambda: len(added) > 20, "the old one answers")
            new = client.load(adding(tmp_path / "new.onnx", 2.0), "m")
            answered = len(added)
            wait_until(lambda: len(added) > answered + 20, "the new one answers")
        assert set(added) == {1.0, 2.0}
        # Two threads ask, so that the last old answer may come beside the first new one.
        assert set(added[answered + 2 :]) == {2.0}
        assert [m.model for m in client.models()] == [new.model]
        wait_until(lambda: not _stored(place, old.model), "nothing of the old one is stored")


def _stored(place: Place, model: str) -> list[str]:
    return [name for name in place.stored() if model in name]


@pytest.mark.long
@pytest.mark.usefixtures("planned")
def test_a_replan_goes_on_while_the_model_answers(start: StartAgent) -> None:
    agent = start()
    with agent.client() as client:
        before = client.model("add").epoch
        with asked_all_the_time(agent, "add", 1) as added:
            client.replan("add")
            wait_until(lambda: len(added) > 50, "it answers")
            with pytest.raises(Busy, match='"add" is being planned'):
                client.replan("add")
        assert client.wait("add", 30).planning == "done"
        assert client.model("add").epoch > before
        assert set(added) == {1.0}


@pytest.mark.usefixtures("planned")
def test_a_model_is_unloaded_after_what_is_in_flight_and_takes_nothing_more(
    start: StartAgent,
) -> None:
    agent = start()
    with agent.client() as client, ThreadPoolExecutor(2) as pool:
        with stopped(worker_pid(client, "add")):
            asked = pool.submit(client.infer, "add", x(1.0))
            wait_until(lambda: client.status().in_flight, "the request is in flight")
            unloading = pool.submit(client.unload, "add")
            wait_until(lambda: _is_unknown(client), "nothing more is taken")
            assert not unloading.done()
        assert asked.result(10)["y"].tolist() == [[2.0, 3.0, 4.0]]
        unloading.result(10)
        assert [m.name for m in client.models()] == ["net"]
        with pytest.raises(UnknownModel):
            client.unload("add")


def _is_unknown(client: Client) -> bool:
    try:
        client.infer("add", x(), deadline_s=0.05)
    except UnknownModel:
        return True
    except DeadlineExceeded:
        return False
    return False


def test_a_model_whose_run_nobody_awaits_any_more_is_unloaded_at_once(
    start: StartAgent, tmp_path: Path
) -> None:
    with start().client() as client:
        client.load(counting(tmp_path / "count.onnx"))
        pid = worker_pid(client, "count")
        with pytest.raises(DeadlineExceeded):
            client.infer("count", count(0, 10**12), deadline_s=0.1)
        client.unload("count")
        wait_until(lambda: not psutil.pid_exists(pid), "its worker is gone", 5.0)


@pytest.mark.long
def test_a_model_unloaded_while_it_is_planned_leaves_no_process_and_no_file(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    agent = start(config="[planning]\nprofile_s = 5\nverify_s = 5\n")
    with agent.client() as client:
        client.devices()
        client.load(convolving(tmp_path / "net.onnx"))
        wait_until(lambda: client.model("net").progress_fraction > 0.1, "it is measured")
        client.unload("net")
        wait_until(lambda: not agent.children(), "its processes are gone", 5.0)
        wait_until(lambda: place.stored() == [], "its files are gone", 5.0)


@pytest.mark.long
def test_several_models_are_loaded_at_once_and_each_answers_for_itself(
    start: StartAgent, tmp_path: Path
) -> None:
    with start().client() as client, ThreadPoolExecutor(3) as pool:
        paths = [adding(tmp_path / f"m{i}.onnx", i) for i in range(3)]
        list(pool.map(client.load, paths))
        assert [m.name for m in client.models()] == ["m0", "m1", "m2"]
        for i in range(3):
            assert client.infer(f"m{i}", x(0.0))["y"][0, 0] == i


@pytest.mark.long
def test_a_model_opened_beside_one_that_serves_does_not_serve_at_low_priority(
    start: StartAgent, tmp_path: Path
) -> None:
    with start().client() as client:
        for i in range(2):
            client.load(adding(tmp_path / f"m{i}.onnx", i))
            client.infer(f"m{i}", x(0.0))
        session = Path(f"/proc/{worker_pid(client, 'm1')}/autogroup")
        assert not session.exists() or session.read_text().strip().endswith(" nice 0")


def test_every_thread_that_serves_goes_first(start: StartAgent, tmp_path: Path) -> None:
    with start().client() as client:
        client.load(adding(tmp_path / "m.onnx", 1))
        client.infer("m", x(0.0))
        threads = os.listdir(f"/proc/{worker_pid(client, 'm')}/task")
        assert len(threads) > 1
        for thread in threads:
            assert not KNOWS_SLICES or slice_s(int(thread)) == pytest.approx(SHORTEST_S)


def test_a_model_with_external_data_is_loaded_and_answers(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    with start().client() as client:
        client.load(with_external_data(tmp_path / "m.onnx", "w.bin", write=True))
        assert client.infer("m", x(0.0))["y"].tolist() == [[1.0, 2.0, 3.0]]
        client.unload("m")
    assert place.stored() == []


def test_a_name_that_is_no_file_name_is_refused(start: StartAgent, tmp_path: Path) -> None:
    with start().client() as client:
        for name in ("../up", "", "a b", "x" * 65, ".hidden"):
            with pytest.raises(UsageError, match="model name: got"):
                client.load(adding(tmp_path / "m.onnx"), name)


def memory_bytes(agent: RunningAgent) -> tuple[int, int]:
    """Resident and proportional memory of the agent with all its children."""
    processes = [psutil.Process(agent.pid), *agent.children()]
    found = [p.memory_full_info() for p in processes]
    return sum(m.rss for m in found), sum(m.pss for m in found)


def check_that_cycles_give_memory_back(
    agent: RunningAgent, path: Path, cycles: int, *, planned: bool
) -> None:
    with agent.client() as client:
        client.devices()

        def cycle() -> None:
            client.load(path, wait=planned)
            for _ in range(5):
                client.infer("net", image(channels=64, size=56))
            client.unload("net")
            wait_until(lambda: not agent.children(), "all children are gone", 10.0)

        cycle()
        before = memory_bytes(agent)
        for _ in range(cycles):
            cycle()
        after = memory_bytes(agent)
    for had, has in zip(before, after, strict=True):
        assert has - had < 10 * 2**20


@pytest.mark.long
def test_unloading_gives_memory_back(start: StartAgent, tmp_path: Path) -> None:
    path = convolving(tmp_path / "net.onnx", channels=64, size=56)
    check_that_cycles_give_memory_back(start(), path, 3, planned=False)


@pytest.mark.alone
@pytest.mark.long
def test_unloading_twenty_times_gives_memory_back(start: StartAgent, tmp_path: Path) -> None:
    path = convolving(tmp_path / "net.onnx", channels=64, size=56)
    check_that_cycles_give_memory_back(start(), path, 20, planned=True)


@pytest.mark.alone
@pytest.mark.long
def test_models_that_come_and_go_while_another_is_planned_leave_nothing_behind(
    start: StartAgent, tmp_path: Path
) -> None:
    agent = start(config="[planning]\nprofile_s = 60\nverify_s = 60\n")
    add = adding(tmp_path / "add.onnx")
    of_agent = psutil.Process(agent.pid)

    def held() -> tuple[int, int, int]:
        return len(of_agent.children()), of_agent.num_threads(), of_agent.num_fds()

    with agent.client() as client:
        client.load(convolving(tmp_path / "net.onnx"))
        wait_until(lambda: client.model("net").planning == "working", "it is being planned")
        client.load(add, "come")
        client.unload("come")
        before = held()
        names = [f"come-{i}" for i in range(12)]
        for name in names:
            client.load(add, name)
        clock.sleep_s(FIRST_REQUEST_S + 0.5)
        for name in names:
            client.unload(name)
        most = tuple(count + 4 for count in before)
        wait_until(
            lambda: all(got <= want for got, want in zip(held(), most, strict=True)),
            f"no more than {most} children, threads and descriptors, {before} before",
        )
        assert client.model("net").planning == "working"
