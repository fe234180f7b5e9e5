"""Pieces of one model: cut out, rewritten for a layout, compiled; and the values between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edge_agent.builder.compiler import Compiler
from edge_agent.devices import ComputeUnit, Layout, ProviderUse
from edge_agent.engine.compiled_form import write_optimised
from edge_agent.engine.half import to_half
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused, RuntimeUnavailable
from edge_agent.model.borders import (
    Neighbour,
    count_transposes,
    crossing_value,
    is_crossing,
    last_between,
    write_last,
)
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.model.half import write_half
from edge_agent.model.interface import read_interface
from edge_agent.model.naming import write_named
from edge_agent.model.nhwc import DISABLED_OPTIMIZERS, NhwcRewrite, rewrite_nhwc
from edge_agent.plans import ChosenSubgraph
from edge_agent.profiles import HOST_UNIT, Configuration
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import ModelSummary
from edge_agent.tensors import Arrays, TensorName, ValueSpecs

Names = frozenset[TensorName]
NO_NAMES: Names = frozenset()
Values = dict[str, Any]
"""Arrays, and values of ONNX Runtime for what is no tensor, by name."""
LEVELS = {
    Layout.NCHW: OptimisationLevel.EXTENDED,
    Layout.BLOCKED: OptimisationLevel.ALL,
    Layout.NHWC: OptimisationLevel.ALL,
}


class Workshop:
    """Makes what is asked for once."""

    def __init__(
        self,
        graph: ModelGraph,
        summary: ModelSummary,
        specs: ValueSpecs,
        compiler: Compiler,
        *,
        is_large: bool = False,
        is_fixed: bool = False,
    ) -> None:
        """`is_large` says that no session may hold a second copy of the weights; `is_fixed`, that
        what is made need only run with the shapes that `specs` tell."""
        self.is_fixed = is_fixed or all(spec.is_static for spec in summary.inputs)
        """Whether all inputs have one size."""
        self._is_fixed = is_fixed
        self.graph = graph
        self.summary = summary
        self.is_large = is_large
        self.specs = specs
        self._compiler = compiler
        self._extracted: dict[tuple[SegmentRange, Names], Path] = {}
        self._rewritten: dict[Path, tuple[Path, NhwcRewrite]] = {}
        """Where the NHWC form of a source is, and what it is."""
        self._compiled: dict[tuple[Path, Layout], Path] = {}
        self._halved: dict[Path, Path | str] = {}
        """The float16 form of a source, or why there is none."""
        self._kept: dict[tuple[Path, bool], Path] = {}
        self._counted: dict[tuple[Path, ProviderUse], int] = {}
        self._values: dict[int, Values] = {}
        self._named: tuple[Path, tuple[str, ...]] | None = None

    def nodes(self, segments: SegmentRange) -> tuple[int, int]:
        """The nodes [start, stop) of a run of segments."""
        parts = self.summary.segments
        return parts[segments.start].start, parts[segments.stop - 1].stop

    def source(self, segments: SegmentRange, last: Names = NO_NAMES) -> Path:
        """The run of segments as a model file of its own; values in `last` cross channels-last.

        Raises:
            ModelRefused: it cannot be cut out.
            StorageError: it cannot be written.
        """
        key = (segments, last)
        if key not in self._extracted:
            self._extracted[key] = self._turned(*key) if last else self._cut_out(segments)
        return self._extracted[key]

    def _cut_out(self, segments: SegmentRange) -> Path:
        start, stop = self.nodes(segments)
        path = self._compiler.draft(f"{start}-{stop}.onnx")
        extract(self.graph, start, stop, path, self.specs, is_fixed=self._is_fixed)
        return path

    def _turned(self, segments: SegmentRange, last: Names) -> Path:
        source = self.source(segments)
        interface = read_interface(source)
        touched = last & {TensorName(v.name) for v in (*interface.inputs, *interface.outputs)}
        if touched != last:
            return self.source(segments, touched)
        path = source.with_name(f"{source.stem}.last{len(self._extracted)}.onnx")
        write_last(source, path, last)
        return path

    def last_between(
        self,
        subgraphs: Sequence[ChosenSubgraph],
        use: Callable[[Configuration], ProviderUse | None],
    ) -> Names:
        """The values that cross between subgraphs of a division channels-last, because both sides
        compute so and fewer transposes are left then. `use` tells on which provider a
        configuration runs; None for that of the processor.

        Raises: ModelRefused: a part cannot be cut out; StorageError.
        """
        neighbours = [
            Neighbour(
                start=start,
                stop=stop,
                is_last=s.configuration.layout is Layout.NHWC,
                moves_bytes=s.configuration.unit == HOST_UNIT,
            )
            for s in subgraphs
            for start, stop in (self.nodes(s.segments),)
        ]
        found = last_between(self.graph, neighbours, self.specs)
        last = frozenset(n for n in found if self._saves(subgraphs, frozenset({n}), use))
        return last if last and self._saves(subgraphs, last, use) else NO_NAMES

    def _saves(
        self,
        subgraphs: Sequence[ChosenSubgraph],
        last: Names,
        use: Callable[[Configuration], ProviderUse | None],
    ) -> bool:
        """Whether there are fewer transposes where `last` cross channels-last: not if the values
        are in the usual order inside, too."""
        saved = 0
        for s in subgraphs:
            before, after = self.source(s.segments), self.source(s.segments, last)
            if before != after:
                if not self.has_form(s.segments, s.configuration, last):
                    return False
                provider = use(s.configuration)
                if provider is not None and self.is_large:
                    return False  # all of its weights would be written once more to count
                try:
                    saved += self._transposes(before, provider) - self._transposes(after, provider)
                except (ModelRefused, RuntimeUnavailable):
                    return False
        return saved > 0

    def _transposes(self, source: Path, provider: ProviderUse | None) -> int:
        """How many there are where it is computed channels-last."""
        if provider is None:
            return self._nhwc(source)[1].transposes
        if (source, provider) not in self._counted:
            with TemporaryDirectory(prefix="edge-agent-") as folder:
                graph = Path(folder) / source.name
                write_optimised(source, provider, graph)
                self._counted[source, provider] = count_transposes(graph)
        return self._counted[source, provider]

    def compiled(self, segments: SegmentRange, layout: Layout, last: Names = NO_NAMES) -> Path:
        """The run of segments compiled for a layout, in the pool; `last` as for `source`.

        Raises:
            ModelRefused: it cannot be cut out, or nothing in it has that layout.
            RuntimeUnavailable: ONNX Runtime cannot compile it.
            StorageError: it cannot be stored.
        """
        key = (self.source(segments, last), layout)
        if key not in self._compiled:
            source = self._laid_out(*key)
            disabled = DISABLED_OPTIMIZERS if layout is Layout.NHWC else ()
            self._compiled[key] = self._compiler.compiled(
                source, HOST_UNIT, layout, LEVELS[layout], disabled
            )
        return self._compiled[key]

    def named(self) -> tuple[Path, tuple[str, ...]]:
        """The whole model as a file in which no two nodes have one name, and the names by position.

        Raises: ModelRefused, StorageError: it cannot be written.
        """
        if self._named is None:
            path = self._compiler.draft("named.onnx")
            names = write_named(self.graph, path, self.specs, is_fixed=self._is_fixed)
            self._named = path, names
        return self._named

    def kept(
        self, segments: SegmentRange, *, is_half: bool = False, last: Names = NO_NAMES
    ) -> Path:
        """The run of segments as it is, or in float16, in the pool, for units that compile for
        themselves; `last` as for `source`.

        Raises: ModelRefused, RuntimeUnavailable: it cannot be cut out or converted; StorageError.
        """
        key = (self.source(segments, last), is_half)
        if key not in self._kept:
            self._kept[key] = self._compiler.as_it_is(self._given(*key))
        return self._kept[key]

    def _given(self, source: Path, is_half: bool) -> Path:
        """What a unit that compiles for itself is given of a source."""
        return self._in_half(source) if is_half else source

    def _in_half(self, source: Path) -> Path:
        if source not in self._halved:
            half = source.with_name(f"{source.stem}.half.onnx")
            try:
                write_half(source, half, to_half)
                self._halved[source] = half
            except ModelRefused as error:
                self._halved[source] = str(error)
        found = self._halved[source]
        if isinstance(found, str):
            raise ModelRefused(found)
        return found

    def on_unit(
        self,
        segments: SegmentRange,
        unit: ComputeUnit,
        use: ProviderUse,
        *,
        is_half: bool = False,
        last: Names = NO_NAMES,
    ) -> Path | None:
        """What `unit` made of the run of segments, kept in the pool; None if it keeps nothing.
        `last` as for `source`.

        Raises: ModelRefused, RunFailed: a part before it cannot be had or run; RuntimeUnavailable;
            StorageError.
        """
        source = self._given(self.source(segments, last), is_half)
        values = self.values_before(segments.start)
        declared = read_interface(source).inputs
        feeds = {
            v.name: crossing_value(values, v.name) for v in declared if is_crossing(values, v.name)
        }
        if not all(isinstance(value, np.ndarray) for value in feeds.values()):
            return None  # there is nothing to compare it on
        return self._compiler.on_unit(source, unit, use, feeds)

    def _laid_out(self, source: Path, layout: Layout) -> Path:
        if layout is not Layout.NHWC:
            return source
        path, outcome = self._nhwc(source)
        if not outcome.changed:
            raise ModelRefused(f"no NHWC form: {outcome.detail}")
        return path

    def _nhwc(self, source: Path) -> tuple[Path, NhwcRewrite]:
        if source not in self._rewritten:
            path = source.with_name(f"{source.stem}.nhwc.onnx")
            self._rewritten[source] = path, rewrite_nhwc(source, path, self.specs.tensors)
        return self._rewritten[source]

    def has_form(
        self, segments: SegmentRange, configuration: Configuration, last: Names = NO_NAMES
    ) -> bool:
        """Whether the run of segments can be had for a configuration; compiles nothing.

        Raises:
            ModelRefused: it cannot be cut out.
            RuntimeUnavailable: ONNX Runtime converts nothing.
        """
        source = self.source(segments, last)
        try:
            if configuration.is_half:
                self._in_half(source)
            elif configuration.unit == HOST_UNIT:
                self._laid_out(source, configuration.layout)
            # Other units make their layouts themselves.
        except ModelRefused:
            return False
        return True

    def feed(self, arrays: Arrays) -> None:
        """Say what the graph inputs are from now on; values between segments follow from them."""
        self._values = {0: dict(arrays)}

    def values_before(self, segment: int) -> Values:
        """Graph inputs and crossing values before a segment, as plain ONNX Runtime computes them.

        Raises:
            ModelRefused, RunFailed: a part before it cannot be cut out or run.
        """
        if segment not in self._values:
            known = max(s for s in self._values if s < segment)
            values = dict(self._values[known])
            session = self.plain(SegmentRange(start=known, stop=segment))
            values |= session.run_inside(fed(session, values), session.output_names)
            self._values[segment] = values
        return self._values[segment]

    def plain(self, segments: SegmentRange) -> Session:
        """The run of segments on plain ONNX Runtime, with one thread.

        Raises: ModelRefused: it cannot be cut out or opened; StorageError.
        """
        return Session.open(
            self.source(segments), threads=1, level=OptimisationLevel.ALL, lean=self.is_large
        )


def fed(session: Session, values: Values) -> Values:
    """Those of `values` that a session reads; inputs with a default may be missing."""
    free = (spec.name for spec in session.overridable if spec.name in values)
    return {name: crossing_value(values, name) for name in (*session.input_names, *free)}
