"""What a worker counts, as the agent reads it through memory of its own."""

from __future__ import annotations

import os

from edge_agent import clock
from edge_agent.transport.memory import OwnMemory, mapped
from edge_agent.transport.tally import TALLY_BYTES, Tally


def both_ends() -> tuple[Tally, Tally]:
    """Of the writer and of the reader, over different mappings of the same memory."""
    memory = OwnMemory(TALLY_BYTES)
    return Tally(mapped(os.dup(memory.fd), TALLY_BYTES)), Tally(memory.view)


def test_a_new_tally_has_counted_nothing() -> None:
    _, read = both_ends()
    assert (read.running, read.answered, read.failed, read.answered_at_s) == (0, 0, 0, 0.0)


def test_the_reader_sees_what_runs_what_was_answered_and_what_failed() -> None:
    written, read = both_ends()
    for _ in range(5):
        written.take()
    assert read.running == 5
    before_s = clock.monotonic_s()
    written.settle(is_answered=True)
    written.settle(is_answered=True)
    written.settle(is_answered=False)
    assert (read.running, read.answered, read.failed) == (2, 2, 1)
    assert before_s - 1e-6 <= read.answered_at_s <= clock.monotonic_s()


def test_a_reader_between_two_writes_sees_no_negative_count() -> None:
    written, read = both_ends()
    written.settle(is_answered=True)
    assert read.running == 0
