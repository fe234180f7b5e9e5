"""Starting and stopping the agent: who may, how long it takes, and what becomes of requests."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edge_agent.client import Client
from edge_agent.errors import (
    AgentUnavailable,
    AlreadyRunning,
    DeadlineExceeded,
    StorageError,
    UsageError,
)
from tests.marks import marked_long
from tests.system.conftest import MakePlace, StartAgent
from tests.system.made_models import ITERATIONS_PER_S, adding, convolving, count, counting, image
from tests.system.raw import RawConnection
from tests.system.running import Place, has_ended, run_command, stopped, wait_until

STOP_S = 5.0


def test_the_ready_line_names_socket_and_process_and_the_socket_answers(
    start: StartAgent, place: Place
) -> None:
    agent = start()
    assert agent.ready == {"event": "ready", "socket": str(place.socket), "pid": agent.pid}
    with agent.client() as client:
        status = client.status()
    assert (status.pid, status.socket, status.state_folder) == (
        agent.pid,
        str(place.socket),
        str(place.state),
    )


def test_only_the_user_can_reach_the_socket_and_the_state(start: StartAgent, place: Place) -> None:
    start()
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (place.socket, place.socket.parent)}
    assert modes == {place.socket: 0o600, place.socket.parent: 0o700}
    assert stat.S_IMODE(place.state.stat().st_mode) == 0o700


def test_a_socket_folder_that_others_can_enter_is_refused(place: Place) -> None:
    place.socket.parent.mkdir(mode=0o755)
    ended = run_command(place, "serve", "--state", str(place.state))
    assert ended.code == UsageError.exit_code
    assert "got mode 0755, want 0700" in ended.err


def test_a_state_folder_that_cannot_be_made_is_named(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for state in (tmp_path / "file", tmp_path / "file" / "below"):
        ended = run_command(place, "serve", "--state", str(state))
        assert ended.code == StorageError.exit_code
        assert f"{state}: cannot create the folder" in ended.err
        assert "--state" in ended.err


def test_a_second_agent_at_the_same_socket_says_so_and_ends(
    start: StartAgent, place: Place
) -> None:
    agent = start()
    ended = run_command(place, "serve", "--state", str(place.folder / "other"))
    assert ended.code == AlreadyRunning.exit_code
    assert ended.out == ""
    assert f"{place.socket.parent}: is in use" in ended.err
    assert str(agent.pid) in ended.err
    with agent.client() as client:
        assert client.status().pid == agent.pid


def test_a_second_agent_on_the_same_state_says_so_and_ends(
    start: StartAgent, elsewhere: MakePlace, place: Place
) -> None:
    agent = start()
    ended = run_command(elsewhere(), "serve", "--state", str(place.state))
    assert ended.code == AlreadyRunning.exit_code
    assert f"{place.state}: is in use" in ended.err
    assert str(agent.pid) in ended.err


@pytest.mark.long
def test_two_agents_with_folders_of_their_own_do_not_meet(
    start: StartAgent, elsewhere: MakePlace, tmp_path: Path
) -> None:
    first, second = start(), start(at=elsewhere())
    with first.client() as one, second.client() as two:
        one.load(adding(tmp_path / "one.onnx"))
        assert [m.name for m in one.models()] == ["one"]
        assert two.models() == ()


def test_a_stale_socket_of_a_dead_agent_is_replaced(start: StartAgent, place: Place) -> None:
    start().kill()
    assert place.socket.is_socket()
    with Client(place.socket) as client, pytest.raises(AgentUnavailable, match="no agent answers"):
        client.models()
    agent = start()
    with agent.client() as client:
        assert client.status().pid == agent.pid
        assert client.status().incarnation == 2


def test_without_an_agent_a_command_says_how_to_start_one(place: Place) -> None:
    ended = run_command(place, "models")
    assert ended.code == AgentUnavailable.exit_code
    assert str(place.socket) in ended.err
    assert "edge-agent serve" in ended.err


@pytest.mark.parametrize("number", [signal.SIGTERM, *marked_long([signal.SIGINT])])
def test_told_to_stop_it_answers_what_is_in_flight_and_leaves_no_process(
    number: int, start: StartAgent, place: Place, tmp_path: Path
) -> None:
    agent = start()
    with agent.client() as client, ThreadPoolExecutor(1) as pool:
        client.load(counting(tmp_path / "count.onnx"))
        asked = pool.submit(client.infer, "count", count(3, ITERATIONS_PER_S))
        wait_until(lambda: client.status().in_flight, "the request is in flight")
        children = agent.children()
        assert agent.stop(number) < STOP_S
        assert asked.result()["total"] == 3 + ITERATIONS_PER_S
    assert all(map(has_ended, children))
    assert not place.socket.exists()


@pytest.mark.long
def test_told_to_stop_the_moment_it_is_ready_it_stops(start: StartAgent) -> None:
    for _ in range(4):
        assert start().stop() < STOP_S


@pytest.mark.alone
@pytest.mark.long
def test_what_takes_longer_than_a_stop_may_take_ends_too(start: StartAgent, tmp_path: Path) -> None:
    agent = start()
    with agent.client() as client, ThreadPoolExecutor(1) as pool:
        client.load(counting(tmp_path / "count.onnx"))
        forever = count(0, 10**12)
        asked = pool.submit(client.infer, "count", forever, deadline_s=4.8)
        wait_until(lambda: client.status().in_flight, "the request is in flight")
        assert agent.stop() < STOP_S
        with pytest.raises((AgentUnavailable, DeadlineExceeded)):
            asked.result()


@pytest.mark.alone
@pytest.mark.long
def test_it_stops_while_it_loads_and_plans(start: StartAgent, place: Place, tmp_path: Path) -> None:
    agent = start(config="")
    with agent.client() as client:
        client.load(convolving(tmp_path / "planned.onnx"))
        wait_until(lambda: client.model("planned").progress_fraction > 0.06, "it is measured")
        loading = subprocess.Popen(
            [
                *(sys.executable, "-m", "edge_agent.cli", "load"),
                *(str(convolving(tmp_path / "loading.onnx")), "--socket", str(place.socket)),
            ],
            env=place.environment,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: len(agent.children("edge_agent.builder")) > 1, "it is admitted")
            assert agent.stop() < STOP_S
            assert loading.wait(10) == AgentUnavailable.exit_code
        finally:
            loading.kill()
            loading.wait()
    again = start()
    with again.client() as client:
        assert "planned" in [m.name for m in client.models()]
        assert client.infer("planned", image())["y"].shape == (1, 32, 28, 28)


@pytest.mark.long
def test_an_agent_that_dies_while_a_model_is_staged_leaves_nothing_for_the_next_one(
    start: StartAgent, place: Place, tmp_path: Path
) -> None:
    agent = start()
    with agent.client() as client, ThreadPoolExecutor(1) as pool:
        client.devices()
        loading = pool.submit(client.load, adding(tmp_path / "add.onnx"))
        (worker,) = wait_until(lambda: agent.children("edge_agent.worker"), "its worker")
        with stopped(worker.pid):
            # The builder does not move the file while the worker may still be about to open it.
            wait_until(lambda: any(p.endswith(".onnx") for p in place.stored()), "it is staged")
            assert not any(p.startswith("models/") for p in place.stored())
            agent.kill()
        with pytest.raises(AgentUnavailable):
            loading.result(20)
    with start().client() as client:
        assert client.models() == ()
    assert place.stored() == []


def test_the_connection_of_a_client_that_went_silent_does_not_keep_it_from_stopping(
    start: StartAgent, place: Place
) -> None:
    agent = start()
    with RawConnection(place.socket) as raw:
        raw.send_bytes(RawConnection.prefix(100, 10**6))
        assert agent.stop() < STOP_S
