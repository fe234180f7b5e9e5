"""Pieces of one model: cut out, rewritten for a layout, compiled; and the values between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.builder.compiler import Compiler
from edge_agent.devices import ComputeUnit, Layout, ProviderUse
from edge_agent.engine.half import to_half
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import ModelRefused
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.model.half import write_half
from edge_agent.model.interface import read_interface
from edge_agent.model.naming import write_named
from edge_agent.model.nhwc import DISABLED_OPTIMIZERS, rewrite_nhwc
from edge_agent.profiles import HOST_UNIT, Configuration
from edge_agent.subgraphs import ModelSummary, SegmentRange
from edge_agent.tensors import Arrays, ValueSpecs

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
        self._extracted: dict[SegmentRange, Path] = {}
        self._rewritten: dict[SegmentRange, Path | str] = {}
        """The NHWC form, or why there is none."""
        self._compiled: dict[tuple[SegmentRange, Layout], Path] = {}
        self._halved: dict[SegmentRange, Path | str] = {}
        """The float16 form, or why there is none."""
        self._kept: dict[tuple[SegmentRange, bool], Path] = {}
        self._values: dict[int, Values] = {}
        self._named: tuple[Path, tuple[str, ...]] | None = None

    def nodes(self, segments: SegmentRange) -> tuple[int, int]:
        """The nodes [start, stop) of a run of segments."""
        parts = self.summary.segments
        return parts[segments.start].start, parts[segments.stop - 1].stop

    def source(self, segments: SegmentRange) -> Path:
        """The run of segments as a model file of its own.

        Raises:
            ModelRefused: it cannot be cut out.
        """
        if segments not in self._extracted:
            start, stop = self.nodes(segments)
            path = self._compiler.draft(f"{start}-{stop}.onnx")
            extract(self.graph, start, stop, path, self.specs, is_fixed=self._is_fixed)
            self._extracted[segments] = path
        return self._extracted[segments]

    def compiled(self, segments: SegmentRange, layout: Layout) -> Path:
        """The run of segments compiled for a layout, in the pool.

        Raises:
            ModelRefused: it cannot be cut out, or nothing in it has that layout.
            RuntimeUnavailable: ONNX Runtime cannot compile it.
            StorageError: it cannot be stored.
        """
        key = (segments, layout)
        if key not in self._compiled:
            source = self._laid_out(segments, layout)
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

    def kept(self, segments: SegmentRange, *, is_half: bool = False) -> Path:
        """The run of segments as it is, or in float16, in the pool, for units that compile for
        themselves.

        Raises: ModelRefused, RuntimeUnavailable: it cannot be cut out or converted; StorageError.
        """
        key = (segments, is_half)
        if key not in self._kept:
            source = self._in_half(segments) if is_half else self.source(segments)
            self._kept[key] = self._compiler.as_it_is(source)
        return self._kept[key]

    def _in_half(self, segments: SegmentRange) -> Path:
        if segments not in self._halved:
            source = self.source(segments)
            half = source.with_name(f"{source.stem}.half.onnx")
            try:
                write_half(source, half, to_half)
                self._halved[segments] = half
            except ModelRefused as error:
                self._halved[segments] = str(error)
        found = self._halved[segments]
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
    ) -> Path | None:
        """What `unit` made of the run of segments, kept in the pool; None if it keeps nothing.

        Raises: ModelRefused, RunFailed: a part before it cannot be had or run; RuntimeUnavailable;
            StorageError.
        """
        source = self._in_half(segments) if is_half else self.source(segments)
        values = self.values_before(segments.start)
        declared = read_interface(source).inputs
        feeds = {v.name: values[v.name] for v in declared if v.name in values}
        if not all(isinstance(value, np.ndarray) for value in feeds.values()):
            return None  # there is nothing to compare it on
        return self._compiler.on_unit(source, unit, use, feeds)

    def _laid_out(self, segments: SegmentRange, layout: Layout) -> Path:
        if layout is not Layout.NHWC:
            return self.source(segments)
        if segments not in self._rewritten:
            source = self.source(segments)
            rewritten = source.with_name(f"{source.stem}.nhwc.onnx")
            outcome = rewrite_nhwc(source, rewritten, self.specs.tensors)
            self._rewritten[segments] = rewritten if outcome.changed else outcome.detail
        found = self._rewritten[segments]
        if isinstance(found, str):
            raise ModelRefused(f"no NHWC form: {found}")
        return found

    def has_form(self, segments: SegmentRange, configuration: Configuration) -> bool:
        """Whether the run of segments can be had for a configuration; compiles nothing.

        Raises:
            ModelRefused: it cannot be cut out.
            RuntimeUnavailable: ONNX Runtime converts nothing.
        """
        self.source(segments)
        try:
            if configuration.is_half:
                self._in_half(segments)
            elif configuration.unit == HOST_UNIT:
                self._laid_out(segments, configuration.layout)
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
            session = self._plain(SegmentRange(start=known, stop=segment))
            values |= session.run_inside(fed(session, values), session.output_names)
            self._values[segment] = values
        return self._values[segment]

    def _plain(self, segments: SegmentRange) -> Session:
        return Session.open(
            self.source(segments), threads=1, level=OptimisationLevel.ALL, lean=self.is_large
        )


def fed(session: Session, values: Values) -> Values:
    """Those of `values` that a session reads; inputs with a default may be missing."""
    free = (spec.name for spec in session.overridable if spec.name in values)
    return {name: values[name] for name in (*session.input_names, *free)}
