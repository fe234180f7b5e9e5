"""Starts the child processes of the agent, always by spawning, and ends them.

Priority alone is not enough for a child that gives way. Where Linux groups processes by session
(autogroup, which most distributions switch on), it shares the processor evenly between the
sessions, and priorities count only inside one; and every child has a session of its own. Measured
on two cores, a small model asked every 15 ms beside another process of nice 10 that runs
ResNet-50 on both, bound to the cores, how much longer a request took than alone (p95; p99;
largest of 800): 4.5; 7.2; 12.3 ms, and at nice 19 hardly less: 4.0; 5.8; 12.2 ms. With the session
at nice 10 too: 0.2; 3.1; 11.1 ms; at nice 19: 0.4; 2.2; 4.3 ms, but then plans take up to 1.4 times
as long and the largest delay beside a real build is no smaller. So a session gives way as its
processes do, and no further.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edge_agent import clock
from edge_agent.agent.slices import LONGEST_S, SHORTEST_S, set_slice
from edge_agent.transport import local

log = logging.getLogger(__name__)

END_S = 5.0
NICENESS = 10
"""Of children that give way to serving from their start; as `engine.background` has it."""
LEAST_NICENESS = 19
"""Of a child that gives way to everything."""
_NORMAL = 0
_SESSION_TRIES = 5
_RESTORING_TRIES = 100
"""A worker that was lowered while it opened a model must not serve so."""
_SESSION_PAUSE_S = 0.1
"""Of ordinary users, Linux lets one in 100 ms change a session, on the whole device."""
_CLEARED_PREFIXES = ("ORT_", "MLAS_")
"""Environment variables of ONNX Runtime: ORT_LOAD_CONFIG_FROM_MODEL lets a model set the options
of its session (threads, a profile written to a file), others change all sessions unseen."""


_EXPENDABLE = 300
"""Added to how gladly the kernel ends a child when memory runs out (of 1000): a model that takes
too much costs its own process, whose work is done again, and not the agent."""


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""numpy's own threads are not used, and would cost memory in every child."""
_ARENAS = {"MALLOC_ARENA_MAX": "2"}
"""Between glibc's heaps, which are eight for each core, what one epoch gave back does not serve the
next. Measured on ResNet-50, own memory of a worker at first and after 20 epochs in place: 56 and
72 MiB; with two heaps 56 and 56 MiB."""


def child_environment() -> dict[str, str]:
    """The environment for a child: ours, without what would configure ONNX Runtime."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_CLEARED_PREFIXES)}
    return kept | {"ORT_DISABLE_TELEMETRY": "1", **_ONE_THREAD, **_ARENAS}


def set_session(
    file: Path,
    niceness: int,
    tries: int = _SESSION_TRIES,
    write: Callable[[Path, str], object] = Path.write_text,
    sleep_s: Callable[[float], None] = clock.sleep_s,
) -> None:
    """Set the priority of the session that `file` stands for, where the kernel has such."""
    for _ in range(tries):
        try:
            write(file, str(niceness))
        except BlockingIOError:
            sleep_s(_SESSION_PAUSE_S)
        except OSError:
            return  # then priorities count between sessions too
        else:
            return
    log.warning("%s could not be set to %d: what serves may be slower", file, niceness)


class Child:
    """A child process and the stream to it. When the stream closes, the child ends by itself."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        """Start `python -m module FD ARGUMENTS`, where FD is the child's end of the stream."""
        self.stream, theirs = local.pair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                # Ctrl-C in a terminal is for the agent, which ends them; and `give_way` is then
                # for the child's session, not for the agent's.
                start_new_session=True,
            )

        self._is_lowered = False
        # It may have ended already; and a kernel without this setting ends the largest.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(str(_EXPENDABLE))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def _session(self) -> Path:
        return Path(f"/proc/{self.pid}/autogroup")

    def give_way(self) -> None:
        """Lower its priority, with that of every thread it will have, and that of its session.

        From outside, so that the start of Python and its imports, a third of a second, count too.
        """
        if os.getpriority(os.PRIO_PROCESS, self.pid) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, self.pid, NICENESS)
        self.lower_session()

    def give_way_to_all(self) -> None:
        """Let it run only where nobody else wants the processor, with every thread it will have;
        at the lowest priority where the kernel allows no more. Its session follows."""
        self._set_slice(LONGEST_S)
        for thread in self._threads():
            try:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            except ProcessLookupError:
                continue
            except OSError:
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, thread, LEAST_NICENESS)
        set_session(self._session, LEAST_NICENESS)

    def give_way_less(self) -> bool:
        """After `give_way_to_all`, let it have its share again, as after `give_way`, with every
        thread that it has; whether the kernel allows it, as it does for root and few others."""
        niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
        for thread in self._threads():
            try:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
            except PermissionError:
                return False
            except ProcessLookupError:
                continue
        set_session(self._session, NICENESS)
        return True

    def _threads(self) -> Iterator[int]:
        """Each thread that it has, and that begins meanwhile."""
        known: set[int] = set()
        while True:
            try:
                found = {int(name) for name in os.listdir(f"/proc/{self.pid}/task")} - known
            except OSError:  # it has ended
                return
            if not found:
                return
            known |= found
            yield from sorted(found)

    def go_first(self) -> None:
        """Let it have the processor as soon as it wakes up, with every thread it will have; that
        does not give it more of it."""
        self._set_slice(SHORTEST_S)

    def _set_slice(self, seconds: float) -> None:
        with contextlib.suppress(OSError):  # it has ended, or the kernel's usual slice must do
            set_slice(self.pid, seconds)

    def lower_session(self) -> None:
        """Lower the priority of its session alone, until `restore_session`."""
        self._is_lowered = True
        set_session(self._session, NICENESS)

    def restore_session(self) -> None:
        """Give a session that was lowered its normal priority back."""
        if self._is_lowered:
            self._is_lowered = False
            set_session(self._session, _NORMAL, _RESTORING_TRIES)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def release(self) -> None:
        """End the stream, on which the child ends by itself, for all who share it."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()

    def end(self, grace_s: float = END_S) -> None:
        """End the stream, wait, and kill what does not end by itself."""
        self.release()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            log.warning("process %d did not end within %.1f s and is killed", self.pid, grace_s)
            self.process.kill()
            self.process.wait()

    def how_it_ended(self) -> str:
        """The end of a dead process in words."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"
