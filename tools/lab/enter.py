"""Becomes a command inside a device: joins its groups and its network, then runs the command.

Started as a file, with nothing but the standard library, because every command of a lab waits for
it: enter.py NAMESPACE|- CORE|- GROUP… -- COMMAND [ARGUMENT…]. The process keeps its number.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET"""
NAMESPACES = Path("/run/netns")
NONE = "-"


OWN_NETWORK = Path("/proc/self/ns/net")


def join_network(file: Path) -> None:
    """Move this thread into the network namespace that this file stands for.

    Raises:
        OSError: there is none, or it may not.
    """
    namespace = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, NEW_NETWORK) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(file))
    finally:
        os.close(namespace)


def main(arguments: list[str]) -> int:
    """Run the command; returns only if it cannot be run."""
    namespace, core, *rest = arguments
    end = rest.index("--")
    groups, command = rest[:end], rest[end + 1 :]
    try:
        for group in groups:
            (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
        if core != NONE:
            os.sched_setaffinity(0, {int(core)})
        if namespace != NONE:
            join_network(NAMESPACES / namespace)
    except OSError as error:
        print(f"cannot enter the device: {error}: is the lab still up?", file=sys.stderr)
        return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
