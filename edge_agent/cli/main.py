"""`edge-agent`: which commands there are, and how each ends."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from edge_agent import __version__
from edge_agent.cli.shapes import spread_shapes
from edge_agent.errors import (
    AgentUnavailable,
    EdgeAgentError,
    StorageError,
    UnknownModel,
    UsageError,
)
from edge_agent.wire.tokens import without_tokens

EXIT_CODES = """\
exit codes: 0 done · 1 failed · 2 wrong request or usage · 3 unknown model · 4 model refused ·
5 model quarantined · 6 busy · 7 deadline exceeded · 8 no agent answers · 9 already running ·
10 ONNX Runtime unavailable · 11 run failed · 12 storage · 13 protocol · 16 unknown peer ·
17 refused by the other device · 18 other device lost · 130 interrupted"""


_LONG_WORD = re.compile(r"[A-Za-z0-9]{24,}")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong without the whole of a long word: it may be a token, or a part of one."""

    def error(self, message: str) -> NoReturn:
        super().error(_LONG_WORD.sub(lambda word: f"{word[0][:5]}…", message))


PART_OF: Final = {
    "serve": "serve",
    **dict.fromkeys(("load", "unload", "models", "status", "replan"), "models"),
    "devices": "devices",
    "plan": "plans",
    "infer": "infer",
    **dict.fromkeys(("key", "invite", "peers", "peer"), "peers"),
    "split": "split",
    "inspect": "inspect",
    "doctor": "doctor",
}
"""The module that has a command, in the order in which help lists them."""


def parser(command: str = "") -> argparse.ArgumentParser:
    """The whole command line; with the name of a command, that of this one alone: what the other
    ones import takes half of a second and more on a small device."""
    top = _Parser(
        prog="edge-agent",
        description="Runs any ONNX model on the compute units of this device, divided as it pays.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"edge-agent {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--socket", metavar="PATH", help="local socket of the agent")
    shared.add_argument("--config", metavar="FILE", help="settings file (TOML)")
    shared.add_argument("--json", action="store_true", help="print JSON")
    for part in dict.fromkeys([PART_OF[command]] if command in PART_OF else PART_OF.values()):
        import_module(f"edge_agent.cli.{part}").add_commands(commands, shared)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. A user's mistake gives a message, never a traceback."""
    _open_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    options = parser(given[0] if given else "").parse_args(list(spread_shapes(given)))
    try:
        _check_not_empty(options)
        code: int = options.run(options)
        sys.stdout.flush()
    except EdgeAgentError as error:
        what = without_tokens(str(error))
        print(f"edge-agent {options.command}: {what}{_hint(error, options)}", file=sys.stderr)
        return error.exit_code
    except MemoryError as error:
        print(
            f"edge-agent {options.command}: not enough memory ({error}): want smaller inputs",
            file=sys.stderr,
        )
        return UsageError.exit_code
    except KeyboardInterrupt:
        print(f"edge-agent {options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read standard output has enough, as with `| head`; what is left goes nowhere.
        _drop_output()
        return 1
    except OSError as error:
        where = error.filename or "standard output"
        print(f"edge-agent {options.command}: {where}: {error.strerror or error}", file=sys.stderr)
        if error.filename is None:
            _drop_output()
        return StorageError.exit_code
    return code


def _check_not_empty(options: argparse.Namespace) -> None:
    """Refuse empty texts, as a shell makes them of a variable that is not set: as a path, one
    would be this folder, and elsewhere mean the default. Raises: UsageError."""
    for name, value in vars(options).items():
        if value == "" or (isinstance(value, list) and "" in value):
            is_positional = name == "model" and not isinstance(value, list)
            is_positional = is_positional or (options.command == "peer" and name != "at")
            option = name.upper() if is_positional else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option}: got an empty text, want a name or value; give it one"
                f"{'' if is_positional else ', or leave the option out'}"
            )


def _hint(error: EdgeAgentError, options: argparse.Namespace) -> str:
    """What to do where a file was named, and the name of a loaded model is wanted."""
    model = getattr(options, "model", None)
    if not (isinstance(model, str) and Path(model).is_file()):
        return ""
    file = shlex.quote(model)
    hint = ""
    if isinstance(error, UnknownModel):
        hint = f"; it is a file: `edge-agent load {file}` loads it"
    if options.command == "plan" and isinstance(error, UnknownModel | AgentUnavailable):
        hint += f"; `edge-agent plan {file} --devices …` plans for devices, without an agent"
    return hint


def _drop_output() -> None:
    """What is left to be written goes nowhere, instead of failing again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_standard_streams() -> None:
    """One that is closed, as with `>&-`, goes nowhere; the next file to be opened would get its
    number, and what libraries print."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
