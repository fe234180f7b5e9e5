"""Which inputs a model is measured and compared on: what a user gave, then what is made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edge_agent.builder.given import GivenSample, fitting, stored_samples
from edge_agent.builder.made_up import SAMPLE_RUN_S, Samples, find_samples
from edge_agent.config import Settings
from edge_agent.engine.session import Session
from edge_agent.store.samples import SampleStore
from edge_agent.subgraphs import SampleSetId
from edge_agent.tensors import Shape, TensorName
from edge_agent.wire.parts import Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Where samples of one model come from."""

    settings: Settings
    shapes: Shapes
    """Of inputs, as the user fixed them."""
    samples: SampleSetId | None
    """What the user gave."""

    def find(
        self,
        session: Session,
        fixed: Mapping[TensorName, Shape],
        grant: Callable[[], None] = lambda: None,
    ) -> tuple[Samples | None, int]:
        """Inputs that the model in `session` runs on, None if none is found, and how many of them
        were given; `fixed` are the shapes that the model declares, of which the session does not
        tell scalars.

        Raises: ModelRefused: it does not run on one that was given.
        """
        untold = (spec.name for spec in session.inputs if spec.dims is None)
        wanted = {name: fixed[name] for name in untold if name in fixed}
        wanted |= dict(self.shapes)
        stored: tuple[GivenSample, ...] = ()
        if self.samples is not None:
            stored = stored_samples(SampleStore(self.settings.state), self.samples)
        given, shapes = fitting(session, stored, wanted, SAMPLE_RUN_S, grant)
        made_up = find_samples(session, shapes, self.settings.limits.max_request_bytes)
        if not given:
            return made_up, 0
        more = () if made_up is None else made_up.arrays
        return Samples(arrays=(*given, *more), shapes=shapes), len(given)
