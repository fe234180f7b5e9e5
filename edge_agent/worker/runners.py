"""What a worker runs for a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
