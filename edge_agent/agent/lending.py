"""Connections of clients that are lent to a worker: it answers what its client asks again and
again, and the agent is out of the way.

Two of the four times that a request wakes a process are saved so, and half of the code that it
runs through, which a model of some size has driven out of the processor's caches. A loan takes a
request and its bytes of the limits for as long as it lasts. If the worker dies, the agent cannot
know what came on the connection: it closes it, and the client sends its request again. Only the
data thread uses this.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

from edge_agent.agent.connections import Enclosed
from edge_agent.agent.lanes import Limits, Station
from edge_agent.errors import Busy, ProtocolError
from edge_agent.transport.memory import Descriptor, OwnMemory, SharedMemory
from edge_agent.transport.tally import TALLY_BYTES, Tally
from edge_agent.wire.lending import Lend, Recall
from edge_agent.wire.lending import Tally as KeepTally
from edge_agent.wire.messages import (
    Infer,
    Message,
)
from edge_agent.wire.parts import (
    Names,
    Place,
    TensorHeads,
)

ASKED_ALIKE = 2
"""How often a client has to ask the same before its connection is lent."""
MOST_ASKED_ALIKE = 64
"""And at most, if it asked for something else each time that the connection had been lent."""
_SHARE = 2
"""Loans take at most one in so many of the requests and bytes of the limits."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What two requests have in common if a worker may answer both without the agent."""

    model: str
    tensors: TensorHeads
    wanted: Names | None
    place: Place | None

    @classmethod
    def of(cls, message: Infer) -> Asked:
        """What a request asks for."""
        return cls(message.model, message.tensors, message.outputs, message.place)


class Lendable(Protocol):
    """A connection of a client, as whoever lends it sees it."""

    fd: int
    memory: SharedMemory | None

    def given_back(self, payload: bytes, *, is_unsent: bool, is_recalled: bool) -> None:
        """It is the agent's again; `payload` was read from it, or is to be sent first."""
        ...

    def lost(self) -> None:
        """Its worker died, and nobody knows what came on it."""
        ...


class Borrower(Protocol):
    """A worker, as whoever lends to it sees it."""

    station: Station
    takes_connections: bool
    loans: dict[int, Loan]
    has_mapped: dict[int, int]

    def tell(self, message: Message, enclosed: Enclosed | None = None) -> None:
        """Send it a message."""
        ...


@dataclass(slots=True, eq=False)
class Loan:
    """A connection that is lent."""

    number: int
    worker: Borrower
    connection: Lendable | None
    """None when the client has closed it and the worker has not given it back."""
    size_bytes: int
    is_recalled: bool = False


class Lending:
    """All loans."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._numbers = itertools.count(1)
        self.requests = 0
        """How many requests of the limits loans hold, and how many bytes."""
        self.bytes = 0

    def lend(
        self, worker: Borrower, connection: Lendable, asked: Asked, outputs: Names, size_bytes: int
    ) -> Loan | None:
        """Lend a connection on which nothing is under way; None if that cannot be done."""
        memory = connection.memory if asked.place is not None else None
        if not worker.takes_connections or not self._has_room(size_bytes):
            return None
        if memory and asked.place and worker.has_mapped.get(memory.number, 0) < asked.place.end:
            return None
        try:
            self._tally(worker)
            enclosed = Descriptor(connection.fd)
            self._limits.take(size_bytes)
        except (OSError, Busy):
            return None
        self.requests += 1
        self.bytes += size_bytes
        worker.station.lent += 1
        loan = Loan(next(self._numbers), worker, connection, size_bytes)
        worker.loans[loan.number] = loan
        message = Lend(
            connection=loan.number,
            model=asked.model,
            tensors=asked.tensors,
            wanted=asked.wanted,
            outputs=outputs,
            place=asked.place,
            memory=memory.number if memory else 0,
        )
        worker.tell(message, enclosed)
        return loan

    def _has_room(self, size_bytes: int) -> bool:
        limits = self._limits
        return (
            _SHARE * (self.requests + 1) <= limits.max_requests
            and _SHARE * (self.bytes + size_bytes) <= limits.max_bytes
        )

    def _tally(self, worker: Borrower) -> None:
        if worker.station.tally is None:
            memory = OwnMemory(TALLY_BYTES)
            worker.station.tally = Tally(memory.view)
            worker.tell(KeepTally(), memory)

    def recall(self, worker: Borrower) -> None:
        """Ask for everything back that was lent to a worker."""
        for loan in worker.loans.values():
            if not loan.is_recalled:
                loan.is_recalled = True
                worker.tell(Recall(loan.number))

    def closed(self, loan: Loan) -> None:
        """The client has closed a lent connection."""
        loan.connection = None
        loan.worker.station.abandoned += 1
        self._give_back(loan)
        if not loan.is_recalled:
            loan.is_recalled = True
            loan.worker.tell(Recall(loan.number))

    def given_back(self, worker: Borrower, number: int, payload: bytes, *, is_unsent: bool) -> None:
        """A worker gave a connection back.

        Raises:
            ProtocolError: it has none of that number.
        """
        loan = worker.loans.pop(number, None)
        if loan is None:
            raise ProtocolError(f"worker gave back connection {number}, which it does not have")
        connection, loan.connection = loan.connection, None
        if connection is None:
            worker.station.abandoned -= 1
            return
        self._give_back(loan)
        connection.given_back(payload, is_unsent=is_unsent, is_recalled=loan.is_recalled)

    def lost(self, worker: Borrower) -> None:
        """A worker died with what was lent to it, or does not give it back."""
        loans, worker.loans = worker.loans, {}
        for loan in loans.values():
            connection, loan.connection = loan.connection, None
            if connection is not None:
                self._give_back(loan)
                connection.lost()

    def _give_back(self, loan: Loan) -> None:
        loan.worker.station.lent -= 1
        self.requests -= 1
        self.bytes -= loan.size_bytes
        self._limits.give_back(loan.size_bytes)
