"""What the Client asks about plans over several devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from edge_agent.plans import DividedPlan, Target
from edge_agent.wire.arguments import (
    bounds_of,
    check_front,
    check_progress,
    flag_of,
    model_of,
    targets_of,
)
from edge_agent.wire.messages import AskDistributions, AskPlan, ClientMessage, Distributions, Plan

if TYPE_CHECKING:
    from edge_agent.distributions import Planned

M = TypeVar("M")


def unheard(_fraction: float, _what: str) -> None:
    """Takes how far something is where nobody wants to know."""


class PlanCalls(ABC):
    """A part of the Client."""

    @abstractmethod
    def _ask(
        self,
        message: ClientMessage,
        want: type[M],
        on_progress: Callable[[float, str], None] = unheard,
    ) -> M:
        """Ask the agent for an answer of that kind."""

    def divided(self, model: str) -> DividedPlan | None:
        """The last plan of a model over several devices that was tried, with what was measured and
        whether it serves; None: none was.

        Raises: as `plan`.
        """
        return self._ask(AskPlan(model=model_of("model", model)), Plan).divided

    def distributions(
        self,
        model: str,
        targets: Sequence[Target | str] = (),
        *,
        is_pareto: bool = False,
        bounds: Mapping[Target | str, float] | None = None,
        on_progress: Callable[[float, str], None] = unheard,
    ) -> Planned:
        """The best distribution of a loaded model for each target, over this device as it was
        measured and the peers that may work for it, with what each is predicted to give.

        The planner process of the agent works it out, beside what serves; nothing is changed.

        Args:
            model: the name under which it was loaded.
            targets: `latency`, `throughput`, `energy`, `memory`, `bytes`; (): all whose metric is
                known, which energy is not as long as nobody told what the device draws.
            is_pareto: also the Pareto set over the targets, of which there are two then, or more.
            bounds: limits by target, in seconds, requests per second, joules or bytes: at most so
                much, of the throughput at least.
            on_progress: takes how far it is, 0 to 1, and what comes next, each time that is news.

        Raises:
            UnknownModel: no model has that name, or it was unloaded meanwhile.
            BadRequest: a target or bound is wrong, the model was not measured, or it is not
                planned yet: `wait` for that.
            EdgeAgentError: its plan could not be made.
            Busy: others ask the planner, and as many wait for that as may: 4.
            DeadlineExceeded: planning took too long.
        """
        model = model_of("model", model)
        is_pareto = flag_of("is_pareto", is_pareto)
        check_progress(on_progress)
        wanted = targets_of(targets)
        check_front(wanted, is_pareto=is_pareto)
        message = AskDistributions(
            model=model,
            targets=wanted,
            bounds=bounds_of(bounds),
            is_pareto=is_pareto,
        )
        found = self._ask(message, Distributions, on_progress)
        # Only this needs it, and importing the Client should not take longer for that.
        from edge_agent.wire.routes import unpack

        return unpack(found.planned)
