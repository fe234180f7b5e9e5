"""A loaded model is planned for each target by a process of its own, while requests flow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import msgspec
import psutil
import pytest

from edge_agent.agent.planners import MOST_WAITING
from edge_agent.client import Client
from edge_agent.distributions import Distribution
from edge_agent.errors import Busy
from tests.system.conftest import StartAgent
from tests.system.made_models import image
from tests.system.raw import RawConnection
from tests.system.running import RunningAgent, has_ended, stopped, wait_until

pytestmark = pytest.mark.usefixtures("planned")

TARGETS = ("latency", "throughput", "memory", "bytes")


@contextmanager
def asking(agent: RunningAgent) -> Iterator[subprocess.Popen[str]]:
    """`edge-agent plan net --target latency`, connected."""
    command = [sys.executable, "-m", "edge_agent.cli", "plan", "net", "--target", "latency"]
    with (
        agent.client() as client,
        subprocess.Popen(
            [*command, "--socket", str(agent.place.socket)],
            env=agent.place.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as begun,
    ):
        try:
            before = client.status().connections
            wait_until(lambda: client.status().connections > before, "it asks")
            yield begun
        finally:
            begun.kill()


def planner_of(agent: RunningAgent) -> psutil.Process:
    """The planner, after it has answered once."""
    with agent.client() as client:
        client.distributions("net", ["latency"])
    (found,) = agent.children("edge_agent.planner")
    return found


@pytest.mark.long
def test_each_target_has_a_distribution_and_the_command_shows_it(
    start: StartAgent,
) -> None:
    agent = start()
    with agent.client() as client:
        plain_s = client.plan("net").plain_s
        planned = client.distributions("net", TARGETS, is_pareto=True)
    assert not planned.knows_energy
    assert [[one.device for one in told.alone] for told in planned.appraisals] == [["local"]] * 4
    assert (planned.notes, planned.names) == ((), ())
    found = [one for one in planned.best if isinstance(one, Distribution)]
    assert [one.target for one in found] == list(TARGETS)
    for one in found:
        best = one.metrics.cost(one.target)
        assert best == min(other.metrics.cost(one.target) for other in (*found, *planned.front))
        assert best in {other.metrics.cost(one.target) for other in planned.front}
    latency, *_, wire = found
    (route,) = latency.routes
    assert {step.device for step in route.steps} == {"local"}
    assert wire.metrics.wire_bytes == 0
    assert plain_s is not None
    # Both were measured of this model, of which a plan is no slower than its whole.
    assert plain_s / 5 < latency.metrics.latency_s < 5 * plain_s

    asked = [part for target in TARGETS for part in ("--target", target)]
    told = agent.command("plan", "net", *asked, "--pareto", "--json")
    assert told.code == 0, told.err
    shown = json.loads(msgspec.json.encode(planned)) | {"is_energy_modelled": True}
    assert told.json == shown
    text = agent.command("plan", "net", *asked)
    assert text.code == 0, text.err
    for target in TARGETS:
        assert f"\n{target} " in text.out
    bounded = agent.command("plan", "net", "--target", "latency", "--bound", "memory=1kB")
    assert bounded.code == 1
    assert "memory" in bounded.err + bounded.out


@pytest.mark.long
def test_requests_flow_while_the_planner_does_not_move(start: StartAgent) -> None:
    agent = start()
    with (
        agent.client() as client,
        stopped(planner_of(agent).pid) as planner,
        asking(agent) as begun,
    ):
        for _ in range(20):
            client.infer("net", image())
        assert begun.poll() is None
        planner.resume()
        out, err = begun.communicate(timeout=30)
    assert (begun.returncode, "latency" in out) == (0, True), err


@pytest.mark.long
def test_what_is_planned_for_clients_that_left_holds_nobody_up(start: StartAgent) -> None:
    agent = start()
    ask = {"kind": "distributions", "model": "net"}
    with stopped(planner_of(agent).pid) as planner, agent.client() as client:
        with ExitStack() as connected:
            for _ in range(1 + MOST_WAITING):
                connected.enter_context(RawConnection(agent.place.socket)).send(ask)
            wait_until(partial(is_busy, client), "all places of the planner are taken")
        wait_until(lambda: has_ended(planner), "the planner of nobody's question is ended")
        assert client.distributions("net", ["latency"]).best
    assert agent.children("edge_agent.planner")


def is_busy(client: Client) -> bool:
    """Whether the agent takes no more questions to its planner."""
    try:
        client.distributions("net", ["bytes"])
    except Busy:
        return True
    return False


@pytest.mark.long
def test_who_asked_is_told_that_the_planner_was_killed(
    start: StartAgent,
) -> None:
    agent = start()
    with stopped(planner_of(agent).pid) as planner, asking(agent) as begun:
        planner.kill()
        _, err = begun.communicate(timeout=30)
    assert begun.returncode == 1
    assert err == "edge-agent plan: the planner died (signal 9): ask again\n"
    assert planner_of(agent).pid != planner.pid
