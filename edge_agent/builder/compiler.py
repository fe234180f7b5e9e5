"""Under what key a compiled graph may be used again, whatever model, cut or epoch asks for it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec

from edge_agent.devices import ComputeUnit, Layout, ProviderUse, UnitId
from edge_agent.engine.compile import compile_graph
from edge_agent.engine.compiled_form import NoForm, compile_on
from edge_agent.engine.session import OptimisationLevel
from edge_agent.errors import ModelRefused, RuntimeUnavailable
from edge_agent.model.weights import adopt_compiled, fingerprint
from edge_agent.store.folder import require_free_bytes
from edge_agent.store.manifests import Entry, EntryKind
from edge_agent.store.pool import Pool
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import Arrays

log = logging.getLogger(__name__)

_COMPILED = "compiled"
_LEAST_FREE_BYTES = 1 << 20


class _NothingKept(Exception):
    """A unit has no form of a graph that could be kept; says why."""


class Compiler:
    """Compiles into the pool what is not there yet, for one model on this device.

    What it returned stays there until it is closed. Use as a context manager.
    """

    def __init__(self, pool: Pool, model: ModelId, device_key: str) -> None:
        """`device_key` names processor, build and version of ONNX Runtime. Raises: StorageError."""
        self._pool = pool
        self._model = model
        self._device_key = device_key
        self._held = ExitStack()
        self._drafts = self._held.enter_context(pool.drafts())

    def draft(self, name: str) -> Path:
        """Where a graph may be written that is needed until this is closed; tensors in the pool
        lie below its folder."""
        return self._drafts.path(name)

    def compiled(
        self,
        source: Path,
        unit: UnitId,
        layout: Layout,
        level: OptimisationLevel,
        disabled: Sequence[str] = (),
    ) -> Path:
        """The graph at `source`, optimised to `level` without the optimisers `disabled`.

        Raises: ModelRefused, RuntimeUnavailable: it cannot be compiled; StorageError.
        """
        described = (fingerprint(source), unit, layout, level, disabled, self._device_key)

        def make(scratch: Path) -> Path:
            try:
                return compile_graph(source, scratch / _COMPILED, level, disabled)
            except (ModelRefused, RuntimeUnavailable):
                # ONNX Runtime says of a full disk only that it could not write.
                require_free_bytes(scratch, _LEAST_FREE_BYTES)
                raise

        return self._held_entry(described, make).graph

    def as_it_is(self, source: Path) -> Path:
        """The graph at `source` without changes, for units that compile for themselves.

        Raises: ModelRefused, StorageError.
        """
        return self._held_entry((fingerprint(source), "as it is"), lambda _scratch: source).graph

    def on_unit(
        self, source: Path, unit: ComputeUnit, use: ProviderUse, feeds: Arrays
    ) -> Path | None:
        """What `unit` made of the graph at `source`, kept so that it is opened quickly with
        OptimisationLevel.NONE; None, which is logged, if nothing can be kept. It may end the
        process.

        Raises: RuntimeUnavailable, StorageError.
        """
        described = (fingerprint(source), unit.provider_version, use, unit.keeps, self._device_key)

        def make(scratch: Path) -> Path:
            made = compile_on(use, unit.keeps, source, scratch / _COMPILED, feeds)
            if isinstance(made, NoForm):
                raise _NothingKept(made.because)
            return made.graph

        try:
            return self._held_entry(described, make).graph
        except _NothingKept as error:
            log.info("%s keeps nothing of %s: %s", unit.id, source.name, error)
            return None

    def _held_entry(self, described: tuple[object, ...], make: Callable[[Path], Path]) -> Entry:
        """The compiled graph that is `described` so: found in the pool, or made in a scratch
        folder and put there. It stays until this is closed."""
        description = msgspec.json.encode(described)
        key = hashlib.sha256(description).hexdigest()
        self._pool.note(self._model, key)
        found = self._pool.get(key)
        if found is None:
            with self._pool.workspace() as scratch:
                made = make(scratch.path)
                with self._pool.adding(EntryKind.COMPILED) as adding:
                    graph = adopt_compiled(made, adding)
                    found = adding.publish(key, graph, description.decode())
            self._pool.evict()
        self._held.enter_context(found)
        return found

    def close(self) -> None:
        """Let go of what it returned. May be called again."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
