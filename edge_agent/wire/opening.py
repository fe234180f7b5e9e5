"""What lets a worker open a model while the builder still checks it."""

from __future__ import annotations

from edge_agent.wire.parts import Message, SubgraphFile


class Staged(Message, frozen=True, tag="staged"):
    """The copy at this path is whole and names no other file: it may be opened while the builder
    checks it. It stays there until the builder, which asks before, is granted to move it."""

    path: str


class OpenAhead(Message, frozen=True, tag="open-ahead"):
    """To a worker: open a staged file, which the deployment that follows will name differently."""

    file: SubgraphFile


class OpenedAhead(Message, frozen=True, tag="opened-ahead"):
    """The worker uses the path of the staged file no more, whether it could be opened or not."""
