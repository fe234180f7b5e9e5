"""Both ends of what goes from one worker to another, with nothing in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_agent.wire.frames import Buffer
from edge_agent.wire.streaming import Credit, StreamCodec
from edge_agent.worker.flows import Arrived, Inflow, Outflow, Parts, Steering, cost_bytes
from tests.wire.made_streams import is_all_same, tensors_of

CODEC = StreamCodec()


def cost_of(values: dict[str, Any]) -> int:
    """What a message with these values costs of a window."""
    return cost_bytes(tensors_of(values)[0].tensors)


def part_of(data: Buffer, *, off_by: int = 0) -> memoryview:
    """A copy in memory of its own that begins so many bytes behind a multiple of 64."""
    raw = np.frombuffer(data, np.uint8)
    room = np.empty(raw.size + 128, np.uint8)
    start = -room.__array_interface__["data"][0] % 64 + off_by
    room[start : start + raw.size] = raw
    return room[start : start + raw.size].data


def parts_of(sent: Parts) -> list[memoryview]:
    """What the other side gets."""
    return [part_of(part) for part in sent.parts]


class Line:
    """One way of a stream. What is put here arrives, as far as `run` lets it."""

    def __init__(self, window_bytes: int, chunk_bytes: int = 1 << 20) -> None:
        self.outflow = Outflow(CODEC, chunk_bytes)
        self.inflow = Inflow(CODEC, window_bytes)
        self.outflow.open(window_bytes)
        self.window_bytes = window_bytes
        self.held: deque[Arrived] = deque()
        """What arrived and was not released."""
        self.arrived: list[Arrived] = []
        self.steered: list[Steering] = []
        self._values: dict[int, dict[str, Any]] = {}

    def put(self, values: dict[str, Any]) -> int:
        """Send these; the number of the run."""
        run = len(self._values)
        self._values[run] = values
        self.outflow.put(*tensors_of(values, run))
        return run

    def step(self) -> bool:
        """Have one message of ZeroMQ arrive, if one can leave."""
        sent = self.outflow.next()
        if sent is not None:
            self.take(parts_of(sent))
        return sent is not None

    def take(self, parts: Sequence[memoryview]) -> None:
        """This came. What arrives is what was put, and in its order."""
        for found in self.inflow.take(parts):
            if not isinstance(found, Arrived):
                self.steered.append(found)
                continue
            run = found.message.run
            assert is_all_same(self._values[run], found.arrays)
            assert found.cost_bytes == cost_of(self._values[run])
            assert not self.arrived or self.arrived[-1].message.run < run
            self.arrived.append(found)
            self.held.append(found)
        assert sum(one.cost_bytes for one in self.held) <= self.inflow.held_bytes
        assert 0 <= self.inflow.held_bytes <= self.window_bytes

    def release(self, at: int = 0) -> None:
        """What arrived so many before the last one that is held is no longer needed."""
        found = self.held[at]
        del self.held[at]
        self.inflow.release(found.cost_bytes)

    def credit(self) -> bool:
        """Tell the sender of it, if there is something to tell."""
        credit = self.inflow.credit()
        if credit is not None:
            self._roundtrip(credit)
        return credit is not None

    def _roundtrip(self, credit: Credit) -> None:
        ((message, _),) = CODEC.decode(memoryview(CODEC.message(credit)))
        assert message == credit
        self.outflow.grant(credit.granted_bytes)

    def run(self) -> None:
        """Go on while something can leave, with all the credit there is."""
        while self.step() or self.credit():
            pass

    def drain(self) -> None:
        """Have all of it arrive and be released."""
        self.run()
        while self.held:
            self.release()
            self.run()
        assert self.outflow.waiting == 0, "it is stuck"
        assert self.inflow.held_bytes == 0

    def is_whole_again(self) -> bool:
        """Whether the sender may send as much as in the beginning, to the byte."""
        before = len(self.arrived)
        filling = {
            "x": np.zeros(self.window_bytes - cost_of({"x": np.zeros(0, np.uint8)}), np.uint8)
        }
        assert cost_of(filling) == self.window_bytes
        self.put(filling)
        while self.step():
            pass
        return len(self.arrived) == before + 1
