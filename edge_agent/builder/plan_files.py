"""What a worker opens of a plan: files that are in the pool, each with how it is opened."""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec import structs

from edge_agent.builder.benches import Slices
from edge_agent.builder.workshop import NO_NAMES, Names, Workshop
from edge_agent.devices import ComputeUnit, Device, Keeping, Layout, ProviderUse
from edge_agent.engine.session import OptimisationLevel
from edge_agent.errors import ModelRefused, RunFailed, RuntimeUnavailable
from edge_agent.plans import CandidatePlan, ChosenSubgraph
from edge_agent.profiles import HOST_UNIT
from edge_agent.subgraphs import SegmentRange
from edge_agent.wire.messages import Build
from edge_agent.wire.parts import SubgraphFile

log = logging.getLogger(__name__)


class PlanFiles:
    """Makes them for one model."""

    def __init__(
        self,
        message: Build,
        workshop: Workshop,
        device: Device,
        device_key: str,
        slices: Slices,
        run_limit_s: float,
    ) -> None:
        """A run on a unit beside the processor that takes longer than `run_limit_s` is taken for
        hung."""
        self._message = message
        self._workshop = workshop
        self._units = {unit.id: unit for unit in device.units}
        self._device_key = device_key
        self._slices = slices
        self._run_limit_s = run_limit_s

    def files(
        self, chosen: CandidatePlan | None, last: Names = NO_NAMES
    ) -> tuple[SubgraphFile, ...]:
        """The files of a plan; of plain ONNX Runtime if it is None. Values in `last` cross between
        its subgraphs channels-last.

        Raises: ModelRefused, RuntimeUnavailable, StorageError.
        """
        if chosen is None and self._message.general is not None:
            return (self._model_file(),)  # as it was measured: with open dimensions
        if chosen is None:
            return (self._plain_file(),)
        return tuple(self._file(s, last) for s in chosen.subgraphs)

    def _file(self, chosen: ChosenSubgraph, last: Names) -> SubgraphFile:
        workshop, configuration = self._workshop, chosen.configuration
        layout, threads, unit = configuration.layout, configuration.threads, configuration.unit
        if unit == HOST_UNIT:
            graph = workshop.compiled(chosen.segments, layout, last)
            file = self._compiled_file(graph, threads, is_plain=False)
            return structs.replace(file, at_once=configuration.instances)
        use = self._units[unit].use(layout, threads)
        is_half = configuration.is_half
        kept = None
        if not configuration.falls_back:
            kept = self._form(chosen, self._units[unit], use, last)
        return SubgraphFile(
            path=str(kept or workshop.kept(chosen.segments, is_half=is_half, last=last)),
            level=(OptimisationLevel.NONE if kept else OptimisationLevel.ALL).value,
            threads=threads or 1,
            is_plain=False,
            compiled_for=self._device_key,
            unit=unit,
            use=use,
            falls_back=configuration.falls_back,
            resource=configuration.resource,
            at_once=configuration.instances,
            run_limit_s=self._run_limit_s,
        )

    def _form(
        self, chosen: ChosenSubgraph, unit: ComputeUnit, use: ProviderUse, last: Names
    ) -> Path | None:
        """What the unit made of a subgraph, so that it is opened quickly; None if it keeps none."""
        is_banned = any(b.unit == unit.id and b.is_keeping for b in self._message.banned)
        if is_banned or unit.keeps is Keeping.NOTHING:
            return None
        try:
            with self._slices.trying([unit.id], is_keeping=True):
                return self._workshop.on_unit(
                    chosen.segments, unit, use, is_half=chosen.configuration.is_half, last=last
                )
        except (ModelRefused, RunFailed, RuntimeUnavailable) as error:
            log.info("%s keeps nothing: %s", unit.id, error)
            return None

    def _plain_file(self) -> SubgraphFile:
        """The whole model, compiled where that is possible: equal, and opened much quicker."""
        whole = SegmentRange(start=0, stop=len(self._workshop.summary.segments))
        try:
            graph = self._workshop.compiled(whole, Layout.BLOCKED)
        except (ModelRefused, RuntimeUnavailable) as error:
            log.info("it is opened from the model each time: %s", error)
            return self._model_file()
        return self._compiled_file(graph, self._message.threads, is_plain=True)

    def _model_file(self) -> SubgraphFile:
        return SubgraphFile(
            path=str(self._workshop.graph.path),
            level=OptimisationLevel.ALL.value,
            threads=self._message.threads,
            is_plain=True,
        )

    def _compiled_file(self, graph: Path, threads: int | None, *, is_plain: bool) -> SubgraphFile:
        return SubgraphFile(
            path=str(graph),
            level=OptimisationLevel.NONE.value,
            threads=threads,
            is_plain=is_plain,
            compiled_for=self._device_key,
        )
