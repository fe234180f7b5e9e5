"""A model divided over agents of several devices: real processes, real sockets, right answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edge_agent.client import Client
from edge_agent.plans import DividedPlan
from edge_agent.tensors import Arrays, WireType
from edge_agent.wire.parts import ModelState
from tests.disks import resize, small_disk
from tests.system.conftest import _place
from tests.system.made_models import convolving, multiplying
from tests.system.running import QUICK_PLANS, RunningAgent, wait_until

LISTEN = ("--listen", "tcp://127.0.0.1:0")
DIVIDED_S = 240.0


def joined(
    stack: ExitStack,
    *names: str,
    states: Mapping[str, Path] | None = None,
    settings: Mapping[str, str] | None = None,
) -> list[RunningAgent]:
    """Agents at places of their own, each joined to all before it; `states` are folders of some,
    `settings` more of their config files."""
    agents: list[RunningAgent] = []
    for name in names:
        place = _place(stack, (states or {}).get(name))
        tokens = [a.command("invite", "--json").json["token"] for a in agents]
        options = (*LISTEN, "--name", name)
        options += ("--join", tokens[0]) if tokens else ()
        agent = RunningAgent(place, options, QUICK_PLANS + (settings or {}).get(name, ""))
        stack.callback(agent.end)
        for token in tokens[1:]:
            with agent.client() as client:
                client.join(token)
        agents.append(agent)
    for agent in agents:
        with agent.client() as client:
            wait_until(lambda: _all_known(client, len(names) - 1), "all profiles", 120.0)
    return agents


@dataclass(frozen=True, slots=True)
class Three:
    """`home` and `near` allow streams that are not encrypted, `wary` does not."""

    home: RunningAgent
    near: RunningAgent
    wary: RunningAgent


@contextmanager
def three_agents() -> Iterator[Three]:
    """Agents that know each other."""
    plain = "[peering]\nplaintext_streams = true\n"
    with ExitStack() as stack:
        settings = {"home": plain, "near": plain}
        yield Three(*joined(stack, "home", "near", "wary", settings=settings))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convolving(tmp_path_factory.mktemp("models") / "net.onnx")


def _all_known(client: Client, count: int) -> bool:
    peers = client.peers().peers
    return len(peers) == count and all(p.profile is not None and p.links is not None for p in peers)


def divided(
    client: Client, path: Path, name: str, *over: str, wire: str | None = None
) -> DividedPlan:
    """Load it over these devices; the plan that serves."""
    state: ModelState = client.load(
        path, name, over=over, wire=wire, wait=True, timeout_s=DIVIDED_S
    )
    assert (state.dividing, state.dividing_progress) == ("done", "done")
    assert state.divided
    plan = client.divided(name)
    assert plan is not None
    assert plan.is_used
    return plan


@pytest.mark.long
def test_a_divided_model_gives_what_the_whole_gives_also_when_a_device_is_killed(
    path: Path,
) -> None:
    with ExitStack() as stack:
        home, near = joined(stack, "home", "near")
        with home.client() as client:
            client.load(path, "whole", over=(), wait=True, timeout_s=DIVIDED_S)
            plan = divided(client, path, "net", "near")
            assert {stage.name for stage in plan.stages} == {"home", "near"}
            feeds = inputs_of(client, "net") * 4
            want = [client.infer("whole", given) for given in feeds]
            check(ask(client, feeds), want)
            with ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(client.infer, "net", given) for given in feeds]
                os.kill(near.pid, signal.SIGKILL)
                check([one.result() for one in asked], want)
            wait_until(lambda: not client.model("net").divided, "home serves alone")
            left = client.divided("net")
            assert left is not None
            assert not left.is_used
            assert "near" in left.reason
            check(ask(client, feeds), want)


@pytest.mark.long
def test_a_model_is_divided_though_its_peer_is_new_and_again_after_both_were_away(
    path: Path,
) -> None:
    with ExitStack() as stack:
        places = [_place(stack, None) for _ in range(2)]

        def start(number: int, *options: str) -> RunningAgent:
            agent = RunningAgent(
                places[number], ("--name", ("home", "near")[number], *options), QUICK_PLANS
            )
            stack.callback(agent.end)
            return agent

        home = start(0, *LISTEN)
        at = home.ready["listen"]
        near = start(1, "--join", home.command("invite", "--json").json["token"])
        with home.client() as client:
            # Nobody waited until it is known what the other one can do.
            divided(client, path, "net", "near")
            feeds = inputs_of(client, "net")[:4]
            want = ask(client, feeds)
        renamed = home.command("peer", "rename", "near", "home")
        assert (renamed.code, renamed.out) == (2, "")
        assert '"home" is the name of this device' in renamed.err
        assert home.command("peer", "rename", "near", "far").code == 0
        for agent in (near, home):
            agent.stop()
        home = start(0, "--listen", at)
        with home.client() as client:
            wait_until(lambda: client.model("net").dividing == "waiting", "it waits")
            assert client.model("net").dividing_progress == 'waiting for "far"'
            check(ask(client, feeds), want)
            wait_until(lambda: client.model("net").dividing == "failed", "it gives up", 60.0)
            told = client.model("net").dividing_progress
            assert told == 'peer "far" is not there: it is tried again when that changes'
            start(1)
            wait_until(lambda: client.model("net").divided, "it is divided again", DIVIDED_S)
            check(ask(client, feeds), want)


@pytest.mark.long
def test_a_host_without_room_on_its_disk_says_so_and_serves_when_there_is_some(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "disk", 16 << 20))
        home, near = joined(stack, "home", "near", states={"near": disk / "state"})
        path = multiplying(tmp_path / "net.onnx")
        with home.client() as client:
            state = client.load(path, "net", over=["near"], wait=True, timeout_s=DIVIDED_S)
            assert (state.planning, state.dividing) == ("done", "failed")
            assert state.dividing_progress.startswith("near: ")
            assert "free some space there" in state.dividing_progress
            feeds = inputs_of(client, "net")[:4]
            want = ask(client, feeds)
            resize(disk, 400 << 20)
            client.replan("net")
            state = client.wait("net", DIVIDED_S)
            assert (state.dividing, state.dividing_progress) == ("done", "done")
            assert state.divided
            check(ask(client, feeds), want)
        with near.client() as client:
            (peer,) = client.peers().peers
            assert peer.offences == 0


@pytest.mark.long
def test_a_host_that_may_keep_less_than_a_stage_says_what_to_raise(path: Path) -> None:
    with ExitStack() as stack:
        settings = {"near": "[limits]\nmax_hosted_bytes = 1000\n"}
        home, _near = joined(stack, "home", "near", settings=settings)
        with home.client() as client:
            state = client.load(path, "net", over=["near"], wait=True, timeout_s=DIVIDED_S)
            assert (state.planning, state.dividing) == ("done", "failed")
            assert state.dividing_progress.startswith("near: ")
            assert "want at most 1000" in state.dividing_progress
            assert "raise max_hosted_bytes in the settings" in state.dividing_progress
            (peer,) = client.peers().peers
            assert peer.offences == 0
            assert ask(client, inputs_of(client, "net")[:4])


@pytest.mark.long
def test_tensors_cross_as_devices_and_users_allow_it(path: Path) -> None:
    with three_agents() as three:
        _unencrypted_only_if_both_devices_say_so(three, path)
        _in_fewer_bits_if_the_answers_allow_it(three, path)


def _unencrypted_only_if_both_devices_say_so(three: Three, path: Path) -> None:
    with three.home.client() as client:
        client.load(path, "whole", over=(), wait=True, timeout_s=DIVIDED_S)
        plan = divided(client, path, "net", "near")
        assert not plan.is_encrypted
        assert "UNENCRYPTED" in three.home.command("plan", "net").out
        feeds = inputs_of(client, "net")[:8]
        check(ask(client, feeds), [client.infer("whole", given) for given in feeds])
        state = client.load(path, "other", over=["wary"], wait=True, timeout_s=DIVIDED_S)
        assert state.dividing == "failed"
        assert "wary: tensors are to cross unencrypted, which this device does not allow" in (
            state.dividing_progress
        )
    # One that says nothing of it encrypts, whatever the others say.
    with three.wary.client() as client:
        assert divided(client, path, "net", "near").is_encrypted
    assert "UNENCRYPTED" in three.home.place.log.read_text()


def _in_fewer_bits_if_the_answers_allow_it(three: Three, path: Path) -> None:
    home = three.home
    with home.client() as client:
        client.load(path, "whole", over=(), wait=True, timeout_s=DIVIDED_S)
        plan = divided(client, path, "net", "near", wire="fp16")
        assert plan.wire_refused == ""
        assert {sent.wire for sent in plan.sent_as} == {WireType.FP16}
        assert ": sent as fp16" in home.command("plan", "net").out
        feeds = inputs_of(client, "net")
        want = [client.infer("whole", given) for given in feeds]
        differences = [
            np.abs(one[name] - array).max() / np.abs(array).max()
            for one, wanted in zip(ask(client, feeds), want, strict=True)
            for name, array in wanted.items()
        ]
        # As halves are: neither equal, nor far off.
        assert 1e-6 < max(differences) < 1e-2
        plan = divided(client, path, "net", "near", wire="int8=1e-6")
        assert plan.sent_as == ()
        assert "of its range, want 1e-06" in plan.wire_refused
        told = home.command("plan", "net").out
        assert f"tensors are sent as they are: in fewer bits, {plan.wire_refused}" in told
        check(ask(client, feeds), want)


def ask(client: Client, feeds: Sequence[Arrays]) -> list[Arrays]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda given: client.infer("net", given), feeds))


def check(answers: Sequence[Arrays], wanted: Sequence[Arrays]) -> None:
    for answer, want in zip(answers, wanted, strict=True):
        assert answer.keys() == want.keys()
        for name, array in want.items():
            np.testing.assert_allclose(answer[name], array, rtol=1e-4, atol=1e-5)


def inputs_of(client: Client, name: str) -> list[Arrays]:
    state = client.model(name)
    shapes = dict(state.shapes)
    rng = np.random.default_rng(0)
    return [
        {
            spec.name: rng.standard_normal(shapes[spec.name]).astype(np.float32)
            for spec in state.inputs
        }
        for _ in range(32)
    ]
