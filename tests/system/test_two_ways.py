"""Two devices with two networks between them, a slow and a fast one: real agents in network
namespaces, which need root."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from lab.network import burst_bytes, queue_bytes
from lab.programs import call
from tests.system.conftest import MakePlace
from tests.system.running import QUICK_PLANS, RunningAgent, wait_until
from tests.system.test_peers import peer_of, until
from tests.tools.test_lab import missing

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.long,
    pytest.mark.alone,
]
SLOW, FAST = "10.214.1", "10.214.2"
RATES = {SLOW: 10e6, FAST: 100e6}
PORT = 7600


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Of two devices, .1 and .2 in each of the networks."""

    names: tuple[str, str]

    def set_link(self, network: str, state: str) -> None:
        """Plug the cable of that network in ("up") or out ("down")."""
        call("ip", "-n", self.names[0], "link", "set", _interface(network), state)


def _interface(network: str) -> str:
    return f"way{network[-1]}"


@pytest.fixture
def spaces() -> Iterator[Namespaces]:
    name = f"edgeways-{secrets.token_hex(4)}"
    found = Namespaces((f"{name}-1", f"{name}-2"))
    with ExitStack() as cleanup:
        for space in found.names:
            call("ip", "netns", "add", space)
            cleanup.callback(call, "ip", "netns", "del", space)
            call("ip", "-n", space, "link", "set", "lo", "up")
        for network, bits_per_s in RATES.items():
            device = _interface(network)
            one, two = found.names
            call(*f"ip -n {one} link add {device} type veth peer name {device} netns {two}".split())
            bucket = f"tbf rate {bits_per_s:.0f}bit burst {burst_bytes(bits_per_s)}"
            limit = f"limit {queue_bytes(bits_per_s, 0.0)}"
            for number, space in enumerate(found.names, 1):
                call(*f"ip -n {space} addr add {network}.{number}/24 dev {device}".split())
                call(*f"ip -n {space} link set {device} gso_max_size 65536 up".split())
                call(*f"tc -n {space} qdisc add dev {device} root {bucket} {limit}".split())
        yield found


def test_the_faster_network_is_used_and_the_other_one_when_it_is_cut(
    spaces: Namespaces, elsewhere: MakePlace
) -> None:
    with ExitStack() as cleanup:

        def begin(number: int, *options: str) -> RunningAgent:
            prefix = ("ip", "netns", "exec", spaces.names[number - 1])
            agent = RunningAgent(elsewhere(), options, QUICK_PLANS, prefix)
            cleanup.callback(agent.end)
            return agent

        one = begin(1, "--listen", f"tcp://0.0.0.0:{PORT}", "--name", "one")
        token = one.command("invite").out.strip()
        # They meet on the slow one, before somebody plugs in the cable.
        spaces.set_link(FAST, "down")
        two = begin(2, "--join", token, "--name", "two")
        until(two, "one", "up")
        spaces.set_link(FAST, "up")

        def is_at(network: str) -> bool:
            peer = peer_of(two, "one")
            at = peer["connected_at"] or ""
            return peer["state"] == "up" and at.startswith(f"tcp://{network}.1:")

        assert is_at(SLOW)
        wait_until(lambda: is_at(FAST), "the faster network", 40.0)

        def is_measured() -> bool:
            bytes_per_s = peer_of(two, "one")["receive_bytes_per_s"] or 0.0
            return bool(0.5 * RATES[FAST] < bytes_per_s * 8 < 1.5 * RATES[FAST])

        wait_until(is_measured, "its goodput", 20.0)
        spaces.set_link(FAST, "down")
        wait_until(lambda: is_at(SLOW), "the slower network", 40.0)
        assert peer_of(one, "two")["offences"] == peer_of(two, "one")["offences"] == 0
