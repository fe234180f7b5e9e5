"""Agents of several devices that meet: real processes, the real command line."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from edge_agent import clock
from edge_agent.peers import check_key, device_id
from tests.system.conftest import MakePlace, StartAgent
from tests.system.running import Place, RunningAgent, run_command, stopped, wait_until

LISTEN = ("--listen", "tcp://127.0.0.1:0")


def peer_of(agent: RunningAgent, name: str) -> dict[str, Any]:
    """What the agent says of a peer."""
    found: dict[str, Any] = next(
        p for p in agent.command("peers", "--json").json["peers"] if p["name"] == name
    )
    return found


def until(agent: RunningAgent, name: str, state: str, timeout_s: float = 15.0) -> None:
    """Wait until the agent says that the peer is so."""
    with agent.client() as client:

        def is_so() -> bool:
            return any(
                status.peer.name == name and status.condition == state
                for status in client.peers().peers
            )

        wait_until(is_so, f"{name} is {state}", timeout_s)


def listening_ports(agent: RunningAgent) -> list[int]:
    """TCP ports at which its processes listen."""
    processes = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
    found = []
    for process in processes:
        connections = process.net_connections("tcp")
        found += [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
    return sorted(found)


def test_two_agents_meet_by_a_token_as_the_readme_says(
    start: StartAgent, elsewhere: MakePlace
) -> None:
    one = start(*LISTEN, "--name", "one")
    at = one.ready["listen"]
    invited = one.command("invite", "--ttl", "90s", "--json").json
    assert invited["ttl_s"] == 90
    two = start("--join", invited["token"], "--name", "two", at=elsewhere())
    until(one, "two", "up")
    until(two, "one", "up")
    there, here = one.command("peers", "--json").json, two.command("peers", "--json").json
    assert (there["name"], there["listen"], there["endpoints"]) == ("one", at, [at])
    assert (here["name"], here["listen"], here["endpoints"]) == ("two", None, [])
    key = check_key("key", here["key"])
    assert here["device"] == device_id(key)
    (peer,) = there["peers"]
    assert (peer["key"], peer["device"], peer["origin"]) == (key, device_id(key), "invited")
    assert peer["version"] == here["peers"][0]["version"] != ""
    assert here["peers"][0]["connected_at"] is not None
    # What people read.
    told = two.command("peers").out.splitlines()
    assert told[0] == f"this device: two ({device_id(key)}), does not listen"
    assert told[1].split() == [
        *("PEER", "DEVICE", "STATE", "FOR", "ROUND", "TRIP", "IN", "OUT", "VERSION", "AT")
    ]
    assert told[2].split()[:3] == ["one", there["device"], "up"]


@pytest.mark.long
def test_without_the_option_nothing_listens_and_with_it_one_port_and_two_for_each_peer(
    start: StartAgent, elsewhere: MakePlace
) -> None:
    one = start(*LISTEN, "--name", "one")
    two = start(at=elsewhere())
    port = int(one.ready["listen"].rpartition(":")[2])
    assert listening_ports(one) == [port]
    assert listening_ports(two) == []
    refused = two.command("invite")
    assert (refused.code, refused.out) == (2, "")
    assert (
        "does not listen for other devices: start it with `edge-agent serve --listen" in refused.err
    )
    token = one.command("invite").out.strip()
    joined = two.command("peer", "join", token)
    assert (joined.code, joined.err) == (0, "")
    until(two, "one", "up")
    # Its socket, and the one for content.
    assert len(listening_ports(one)) == 3
    assert listening_ports(two) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (
            ("--listen", "tcp://0.0.0.0"),
            2,
            '--listen: got "tcp://0.0.0.0", want tcp://ADDRESS:PORT',
        ),
        (("--listen", "tcp://pi.local:1"), 2, "want an IP address of this device to listen at"),
        (("--listen", "tcp://203.0.113.7:7600"), 2, "no network interface of this device has that"),
        (("--name", "a b"), 2, '--name: got "a b", want 1 to 64 of A-Z a-z 0-9'),
        (("--join", "edge1abcdefgh"), 2, "token: it is not whole, or has a wrong character"),
        (("--join", "hello"), 2, "token: that is no token; copy the whole line that `edge-agent"),
    ],
)
def test_what_cannot_be_is_told_and_leaves_nothing_running(
    place: Place, options: tuple[str, ...], code: int, told: str
) -> None:
    outcome = run_command(place, "serve", "--state", str(place.state), *options)
    assert (outcome.code, outcome.out) == (code, "")
    assert told in outcome.err
    assert "Traceback" not in outcome.err
    assert not place.socket.exists()


@pytest.mark.long
def test_an_address_that_is_taken_is_told(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        outcome = run_command(place, "serve", "--state", str(place.state), "--listen", at)
    assert outcome.code == 2
    assert f"cannot listen at {at}: another program listens there: stop that one" in outcome.err


@pytest.mark.long
def test_a_used_token_ends_the_start_of_another_device_and_not_of_the_same(
    start: StartAgent, elsewhere: MakePlace
) -> None:
    one = start(*LISTEN, "--name", "one")
    token = one.command("invite").out.strip()
    there = elsewhere()
    two = start("--join", token, "--name", "two", at=there)
    two.stop()
    # As a service whose unit file names the token.
    two = start("--join", token, "--name", "two", at=there)
    until(two, "one", "up")
    other = elsewhere()
    refused = run_command(other, "serve", "--state", str(other.state), "--join", token)
    assert refused.code == 17
    assert 'device "one": the token was used by device' in refused.err
    # Also while the device that it joined is off.
    one.stop()
    two.stop()
    two = start("--join", token, "--name", "two", at=there)
    assert peer_of(two, "one")["state"] == "gone"
    assert "it is a peer already, and this agent goes on without it" in two.place.log_text()


@pytest.mark.long
def test_a_killed_agent_is_missed_within_a_second_and_is_up_again_after_its_return(
    start: StartAgent, elsewhere: MakePlace
) -> None:
    place = elsewhere()
    one = start(*LISTEN, "--name", "one", at=place)
    two = start("--join", one.command("invite").out.strip(), "--name", "two")
    until(two, "one", "up")
    killed_s = clock.monotonic_s()
    one.kill()
    until(two, "one", "silent")
    # 1 s as it is set, and what asking for it takes.
    assert 0.5 < clock.monotonic_s() - killed_s < 2.0
    one = start("--listen", one.ready["listen"], "--name", "one", at=place)
    until(two, "one", "up")
    until(one, "two", "up")


@pytest.mark.long
def test_a_frozen_agent_is_silent_and_blames_nobody_when_it_wakes(
    start: StartAgent, elsewhere: MakePlace
) -> None:
    one = start(*LISTEN, "--name", "one")
    two = start("--join", one.command("invite").out.strip(), "--name", "two", at=elsewhere())
    until(one, "two", "up")
    with stopped(two.pid):
        until(one, "two", "silent")
    until(one, "two", "up")
    assert peer_of(two, "one")["state"] == "up"
    log = two.place.log_text()
    assert "is silent" not in log
    assert "is slow" not in log


@pytest.mark.long
def test_peers_are_renamed_and_removed_by_name_id_or_key(
    start: StartAgent, elsewhere: MakePlace
) -> None:
    one = start(*LISTEN, "--name", "one")
    two = start("--join", one.command("invite").out.strip(), "--name", "two", at=elsewhere())
    until(two, "one", "up")
    renamed = one.command("peer", "rename", "two", "kitchen", "--json")
    assert renamed.json["name"] == "kitchen"
    device, key = renamed.json["device"], renamed.json["key"]
    assert one.command("peer", "rename", device, "hall").out == f'peer "hall" ({device}): renamed\n'
    assert one.command("peer", "remove", key).out == f'peer "hall" ({device}): removed\n'
    until(two, "one", "gone")
    # At first it may only know that the connection is over.
    why = "it removed this device from its list"
    wait_until(lambda: peer_of(two, "one")["why"] == why, "it is told why")
    gone = one.command("peer", "remove", "hall")
    assert (gone.code, gone.out) == (16, "")
    assert gone.err == 'edge-agent peer: peer "hall" is not known; known: none\n'
    one.stop()
    # And none is known after the next start.
    one = start(*LISTEN, "--name", "one")
    assert one.command("peers", "--json").json["peers"] == []


@pytest.mark.long
def test_agents_meet_by_keys_that_people_copied(start: StartAgent, elsewhere: MakePlace) -> None:
    there, here = elsewhere(), elsewhere()
    keys = {
        place: run_command(place, "key", "show", "--state", str(place.state), "--json").json["key"]
        for place in (there, here)
    }
    one = start(*LISTEN, at=there)
    added = one.command("peer", "add", "due", keys[here])
    assert (added.code, added.err) == (0, "")
    config = f"[peers.uno]\nkey = '{keys[there]}'\nendpoints = ['{one.ready['listen']}']\n"
    two = start(at=here, config=config)
    until(one, "due", "up")
    until(two, "uno", "up")
    kept = two.command("peer", "remove", "uno")
    assert kept.code == 2
    assert 'peer "uno" stands in the config file: remove it there, and start the' in kept.err


@pytest.mark.long
def test_a_rotated_key_is_told_to_the_peers(start: StartAgent, elsewhere: MakePlace) -> None:
    one = start(*LISTEN, "--name", "one")
    two = start("--join", one.command("invite").out.strip(), "--name", "two", at=elsewhere())
    until(two, "one", "up")
    before = peer_of(two, "one")["key"]
    rotated = one.command("key", "rotate", "--json").json
    assert rotated["untold"] == []
    assert rotated["key"] != before
    wait_until(lambda: peer_of(two, "one")["key"] == rotated["key"], "the new key")
    until(two, "one", "up")
    until(one, "two", "up")
    assert one.command("key", "show", "--json", "--state", str(one.place.state)).json == {
        "device": rotated["device"],
        "key": rotated["key"],
    }
    two.stop()
    refused = one.command("key", "rotate")
    assert (refused.code, refused.out) == (18, "")
    assert "not told of a new key: two (it was stopped). Wait until they are up" in refused.err


@pytest.mark.long
def test_the_key_is_private_and_a_readable_one_is_refused(start: StartAgent, place: Place) -> None:
    one = start(*LISTEN)
    key = place.state / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    one.stop()
    key.chmod(0o640)
    refused = run_command(place, "serve", "--state", str(place.state), *LISTEN)
    assert refused.code == 12
    assert (
        f"{key}: got mode 0640, want 0600: others may know this device's secret key" in refused.err
    )
    # An agent that meets nobody needs none.
    start()


@pytest.mark.long
def test_no_secret_stands_in_the_log_or_in_what_children_are_told(
    start: StartAgent, elsewhere: MakePlace
) -> None:
    one = start(*LISTEN, "--name", "one", "--log-level", "debug")
    token = one.command("invite").out.strip()
    two = start("--join", token, "--name", "two", "--log-level", "debug", at=elsewhere())
    until(two, "one", "up")
    secret = Path(one.place.state / "key").read_text().partition('"secret":"')[2].partition('"')[0]
    assert len(secret) == 52
    for agent in (one, two):
        assert secret not in agent.place.log_text()
        assert token not in agent.place.log_text()
        for child in agent.children():
            assert secret not in " ".join(child.cmdline())
