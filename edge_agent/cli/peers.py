"""`edge-agent key`, `invite`, `peers` and `peer`: which other devices this one trusts."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from edge_agent.cli.output import client_of, print_json, settings_of, token_of, told_if_slow
from edge_agent.cli.peer_tables import peer_json, peers_json, print_peers
from edge_agent.client import Client
from edge_agent.errors import AgentUnavailable, PeerLost, UsageError
from edge_agent.peers import KeyPair, Peer, PublicKey, device_id
from edge_agent.wire.about_peers import KeyRotated
from edge_agent.wire.tokens import read_token

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([a-z]?)")


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the commands about other devices."""
    _add_key(commands, shared)
    text = "print a token with which one other device may join this one"
    invite = commands.add_parser("invite", parents=[shared], help=text, description=text + ".")
    invite.add_argument(
        "--ttl",
        default="10m",
        metavar="TIME",
        help="how long it is good, e.g. 90s, 10m, 2h, 1d; a number alone is seconds",
    )
    invite.set_defaults(run=run_invite)
    text = "list the devices that this one trusts, and how they are"
    peers = commands.add_parser("peers", parents=[shared], help=text, description=text + ".")
    peers.set_defaults(run=run_peers)
    _add_peer(commands, shared)


def _add_key(commands: Any, shared: argparse.ArgumentParser) -> None:
    text = "show or replace the key by which other devices know this one"
    key = commands.add_parser("key", help=text, description=text + ".")
    actions = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "print the public key of this device, and its id; one is made if there is none"
    show = actions.add_parser("show", parents=[shared], help=text, description=text + ".")
    show.set_defaults(run=run_key_show)
    text = "make a new key, and tell the peers"
    rotate = actions.add_parser("rotate", parents=[shared], help=text, description=text + ".")
    rotate.add_argument(
        "--force", action="store_true", help="also if some peers cannot be told: they are named"
    )
    rotate.set_defaults(run=run_key_rotate)
    for action in (show, rotate):
        action.add_argument("--state", metavar="DIR", help="the agent's folder")


def _add_peer(commands: Any, shared: argparse.ArgumentParser) -> None:
    text = "change which devices this one trusts"
    peer = commands.add_parser("peer", help=text, description=text + ".")
    actions = peer.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, run: Any, text: str) -> Any:
        made = actions.add_parser(name, parents=[shared], help=text, description=text + ".")
        made.set_defaults(run=run)
        return made

    join = action("join", run_peer_join, "join the device on which `invite` printed this token")
    join.add_argument("token", metavar="TOKEN", help="- reads it from standard input")
    add = action(
        "add", run_peer_add, "trust the device that has this key; it has to trust this one, too"
    )
    add.add_argument("name", metavar="NAME", help="what it is called here")
    add.add_argument("key", metavar="KEY", help="as `edge-agent key show` prints there")
    add.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="tcp://ADDRESS:PORT",
        help="where its agent listens; may be given several times (default: it connects to us)",
    )
    remove = action(
        "remove", run_peer_remove, "trust a device no more, and end its connections at once"
    )
    remove.add_argument("name", metavar="PEER", help="its name, id or key")
    rename = action("rename", run_peer_rename, "call a device differently here")
    rename.add_argument("name", metavar="PEER", help="its name, id or key")
    rename.add_argument("to", metavar="NAME")


def parse_ttl(text: str) -> float:
    """How long `10m` is, in seconds. Raises: UsageError."""
    found = _WRITTEN.fullmatch(text)
    duration_s = 0.0
    if found is not None and found[2] in _UNITS_S:
        duration_s = float(found[1]) * _UNITS_S[found[2]]
    if duration_s <= 0:
        raise UsageError(f"--ttl {text}: want a time such as 90s, 10m, 2h or 1d")
    return duration_s


# ---- key


def run_key_show(options: argparse.Namespace) -> int:
    """`edge-agent key show`."""
    # Only this needs ZeroMQ; the other commands should start quickly.
    from edge_agent.agent.device_keys import own_keys
    from edge_agent.store.device_key import DeviceKeyStore

    store = DeviceKeyStore(settings_of(options).state)
    is_new = not store.path.exists()
    keys = own_keys(store)
    if is_new:
        print(f"made a key for this device: {store.path}", file=sys.stderr)
    _tell_key(keys.public, options)
    return 0


def _tell_key(key: PublicKey, options: argparse.Namespace) -> None:
    if options.json:
        print_json({"device": device_id(key), "key": key})
    else:
        print(f"device  {device_id(key)}\nkey     {key}")


def run_key_rotate(options: argparse.Namespace) -> int:
    """`edge-agent key rotate`."""
    try:
        waiting = told_if_slow("waiting for peers to note the new key, for 3 s at most")
        with Client(settings_of(options).socket) as client, waiting:
            rotated = client.rotate_key(force=options.force)
    except AgentUnavailable:
        rotated = _rotate_alone(options)
    if options.json:
        print_json({"device": device_id(rotated.key), "key": rotated.key, "untold": rotated.untold})
    else:
        _tell_key(rotated.key, options)
    for name in rotated.untold:
        print(
            f'peer "{name}" does not know the new key: there, `edge-agent peer remove` the old '
            "device and `edge-agent peer add` it with this key",
            file=sys.stderr,
        )
    return 0


def _rotate_alone(options: argparse.Namespace) -> KeyRotated:
    """Without an agent, which would have to open its sockets anew, and can tell nobody."""
    from edge_agent.agent.device_keys import replace_keys
    from edge_agent.store.device_key import DeviceKeyStore
    from edge_agent.store.lock import FolderLock
    from edge_agent.store.peers import PeerStore
    from edge_agent.transport.curve import make_keys

    settings = settings_of(options)
    with FolderLock(settings.state):
        peers = (*settings.peers, *PeerStore(settings.state).load())
        untold = tuple(sorted(peer.name for peer in peers))
        if untold and not options.force:
            raise PeerLost(
                f"the agent does not run, so that nobody can tell {', '.join(untold)} of a new "
                "key: start it first, or give --force and add the new key there by hand"
            )
        made: KeyPair = make_keys()
        replace_keys(DeviceKeyStore(settings.state), made)
    return KeyRotated(key=made.public, untold=untold)


# ---- invite and join


def run_invite(options: argparse.Namespace) -> int:
    """`edge-agent invite`."""
    ttl_s = parse_ttl(options.ttl)
    with client_of(options) as client:
        token = client.invite(ttl_s)
    if options.json:
        print_json({"token": token, "ttl_s": ttl_s})
        return 0
    print(
        f"good for {options.ttl}, once; on the other device: edge-agent serve --join TOKEN, or "
        "edge-agent peer join TOKEN where an agent runs",
        file=sys.stderr,
    )
    print(token)
    return 0


def run_peer_join(options: argparse.Namespace) -> int:
    """`edge-agent peer join`."""
    token = token_of(options.token)
    found = read_token(token)
    places = ", ".join(map(str, found.endpoints))
    asking = f'asking device "{found.name}" at {places}, for 10 s at most'
    with client_of(options) as client, told_if_slow(asking):
        peer = client.join(token)
    return _tell_peer(peer, "joined", options)


# ---- peers


def run_peers(options: argparse.Namespace) -> int:
    """`edge-agent peers`."""
    with client_of(options) as client:
        found = client.peers()
    if options.json:
        print_json(peers_json(found))
    else:
        print_peers(found)
    return 0


def run_peer_add(options: argparse.Namespace) -> int:
    """`edge-agent peer add`."""
    with client_of(options) as client:
        peer = client.add_peer(options.name, options.key, options.at)
    return _tell_peer(peer, "trusted from now on", options)


def run_peer_remove(options: argparse.Namespace) -> int:
    """`edge-agent peer remove`."""
    with client_of(options) as client:
        peer = client.remove_peer(options.name)
    return _tell_peer(peer, "removed", options)


def run_peer_rename(options: argparse.Namespace) -> int:
    """`edge-agent peer rename`."""
    with client_of(options) as client:
        peer = client.rename_peer(options.name, options.to)
    return _tell_peer(peer, "renamed", options)


def _tell_peer(peer: Peer, what: str, options: argparse.Namespace) -> int:
    if options.json:
        print_json(peer_json(peer))
    else:
        print(f'peer "{peer.name}" ({peer.id}): {what}')
    return 0
