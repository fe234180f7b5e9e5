"""What an agent and a worker say to each other of connections of clients that the worker has for a
while, and of memory that clients share."""

from __future__ import annotations

from edge_agent.wire.parts import Message, Name, Names, Place, TensorHeads


class Tally(Message, frozen=True, tag="tally"):
    """Count in the memory whose descriptor comes with this what you answer on lent connections."""


class Lend(Message, frozen=True, tag="lend"):
    """A connection of a client, whose descriptor comes with this, for as long as the client asks
    for exactly this: the same model, heads, outputs and place as in its last requests."""

    connection: int
    """What it is called by until it is given back."""
    model: Name
    tensors: TensorHeads
    wanted: Names | None
    """The outputs as requests name them."""
    outputs: Names
    """The outputs to compute."""
    place: Place | None
    memory: int
    """The number of the memory where the place is; it came with a request before."""


class Recall(Message, frozen=True, tag="recall"):
    """Give this connection back as soon as the request under way on it is answered."""

    connection: int


class GiveBack(Message, frozen=True, tag="give-back"):
    """A lent connection is the agent's again; the payload was read from it and not understood, or
    is the rest of an answer that it did not take at once."""

    connection: int
    is_unsent: bool
    """Whether the payload is the rest of an answer."""


class Forget(Message, frozen=True, tag="forget"):
    """Nothing will have a place in the memory of this number any more."""

    memory: int
