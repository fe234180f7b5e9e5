"""`edge-agent serve`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import replace
from typing import Any

import msgspec

from edge_agent.cli.output import settings_of


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
    serve.set_defaults(run=run)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, want a whole number of at least 1")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    # Only this command needs the agent; the others should start quickly.
    from edge_agent.agent.daemon import serve

    settings = settings_of(options)
    if options.max_requests is not None:
        limits = replace(settings.limits, max_requests_in_flight=options.max_requests)
        settings = replace(settings, limits=limits)
    logging.basicConfig(
        stream=sys.stderr,
        level=(options.log_level or settings.log_level.value).upper(),
        format="%(asctime)s %(levelname)s %(message)s",
    )

    def ready() -> None:
        if options.json:
            line = {"event": "ready", "socket": str(settings.socket), "pid": os.getpid()}
            text = msgspec.json.encode(line).decode()
        else:
            text = f"edge-agent is ready: socket {settings.socket}, pid {os.getpid()}"
        print(text, flush=True)

    serve(settings, ready)
    logging.shutdown()
    # Control threads may still wait for children that were told to end; nothing of theirs is
    # left to do, and joining them could outlast the time that a stop may take.
    os._exit(0)
