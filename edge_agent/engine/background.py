"""How work beside serving gives way to it: what Linux does with the priority of a thread.

Measured while two threads kept both of two cores busy, loading ResNet-50 (compiled; from the
model): at normal priority in 0.1 s; 1.4 s, and runs beside it took 1.6 to 1.9 times as long. At
nice 10 in 0.2 to 0.6 s; 3 to 6 s, and runs beside it took as long as ever. Under SCHED_IDLE in 4 to
6 s; 36 to 95 s, for nothing more. So nice 10, which gets done on a busy device too, is used here.

That holds among threads of one session. Between sessions priority may not count at all: what a
whole process does about that is in `agent.processes`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

NICENESS: Final = 10


def give_way() -> None:
    """Lower the priority of the calling thread for the rest of its life."""
    own = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, own) < NICENESS:
        os.setpriority(os.PRIO_PROCESS, own, NICENESS)


class GiveWay:
    """An empty collection that lowers the priority of whoever iterates over it."""

    def __iter__(self) -> Iterator[str]:
        give_way()
        return iter(())


def run_in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, run in a new thread; what it raises is raised here."""
    results: list[T] = []
    errors: list[BaseException] = []

    def top() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=top, name="background")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
