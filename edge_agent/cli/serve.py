"""`edge-agent serve`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent import config
from edge_agent.cli.output import settings_of, token_of
from edge_agent.endpoints import parse_listen
from edge_agent.peers import check_device_name
from edge_agent.wire.tokens import read_token

if TYPE_CHECKING:
    from edge_agent.agent.peering import Peering


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `serve`."""
    serve = commands.add_parser(
        "serve",
        parents=[shared],
        help="start the agent of this device",
        description="Start the agent. Prints one line when it is ready; SIGTERM or Ctrl-C ends it "
        "after what is in flight.",
    )
    serve.add_argument("--state", metavar="DIR", help="folder for models, plans and profiles")
    serve.add_argument("--max-requests", type=_count, metavar="N", help="requests in flight")
    serve.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="what goes to stderr"
    )
    serve.add_argument(
        "--listen",
        metavar="tcp://ADDRESS:PORT",
        help="let the agents of other devices connect here, if they were invited or added; "
        "0.0.0.0 is every IPv4 address of this device (default: nothing listens)",
    )
    serve.add_argument(
        "--join",
        metavar="TOKEN",
        help="first join the device on which `edge-agent invite` printed this token; - reads it "
        "from standard input",
    )
    serve.add_argument(
        "--name", help="what other devices call this one when they meet it (default: its hostname)"
    )
    serve.set_defaults(run=run)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, want a whole number of at least 1")
    return int(text)


def _peering(options: argparse.Namespace, settings: config.Peering) -> config.Peering:
    if options.listen is not None:
        settings = replace(settings, listen=parse_listen("--listen", options.listen))
    if options.name is not None:
        settings = replace(settings, name=check_device_name("--name", options.name))
    return settings


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    # Only this command needs the agent; the others should start quickly.
    from edge_agent.agent.daemon import serve

    settings = settings_of(options)
    if options.max_requests is not None:
        limits = replace(settings.limits, max_requests_in_flight=options.max_requests)
        settings = replace(settings, limits=limits)
    settings = replace(settings, peering=_peering(options, settings.peering))
    token = None if options.join is None else token_of(options.join)
    if token is not None:
        read_token(token)
    logging.basicConfig(
        stream=sys.stderr,
        level=(options.log_level or settings.log_level.value).upper(),
        format="%(asctime)s %(levelname)s %(message)s",
    )

    def ready(peering: Peering) -> None:
        at = peering.listens_at
        if options.json:
            line = {"event": "ready", "socket": str(settings.socket), "pid": os.getpid()}
            line |= {} if at is None else {"listen": str(at)}
            text = msgspec.json.encode(line).decode()
        else:
            text = f"edge-agent is ready: socket {settings.socket}, pid {os.getpid()}"
            text += "" if at is None else f", listening at {at}"
        print(text, flush=True)

    serve(settings, ready, token)
    logging.shutdown()
    # Control threads may still wait for children that were told to end; nothing of theirs is
    # left to do, and joining them could outlast the time that a stop may take.
    os._exit(0)
