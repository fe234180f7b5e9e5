"""What a worker runs for a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edge_agent import clock
from edge_agent.errors import DeadlineExceeded
from edge_agent.tensors import Arrays


class Runner(Protocol):
    """What a worker serves: all subgraphs of one epoch, safe to run from several threads."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Outputs by name for one set of inputs.

        Raises:
            EdgeAgentError: the run failed.
        """
        ...

    def pin_caller(self) -> None:
        """Bind the calling thread to the core that the sessions leave to their caller, if any."""
        ...


@dataclass(slots=True)
class Asked:
    """A request that somebody waits for. Make it before anybody can say that it is abandoned."""

    until_s: float | None = None
    """When its deadline passes, on this device's clock."""
    is_abandoned: bool = False
    run: int | None = None
    """Its number, while it is on a route."""

    @property
    def left_s(self) -> float | None:
        """Until its deadline; None: it has none."""
        return None if self.until_s is None else self.until_s - clock.monotonic_s()

    def check(self) -> None:
        """Raises: DeadlineExceeded: nobody waits for it any more."""
        if self.is_abandoned:
            raise DeadlineExceeded("nobody waits for it any more")
