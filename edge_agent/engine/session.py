"""Which options of ONNX Runtime a subgraph runs with, and how one session is opened and run.

Threads, measured on 2 cores with two threads per session (ONNX Runtime 1.32): by default the pool
thread spins for some 30 ms of processor time after every run (ShuffleNet at 30 requests per second:
41 ms of processor per run of 6.7 ms). `session.force_spinning_stop` ends that (14 ms), but then a
paced run takes 10.2 ms, because the woken thread often lands on the caller's core; with pool and
caller pinned to different cores it is 6.2 ms again. Switching spinning off altogether costs up to
half of the speed (8.9 ms paced, 7.6 instead of 4.8 ms back to back).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_agent.devices import ProviderUse
from edge_agent.engine.background import GiveWay, run_in_thread
from edge_agent.engine.cancel import Cancellation
from edge_agent.engine.placing import ON_CPU, create
from edge_agent.engine.refusals import loading, running
from edge_agent.engine.runtime import ERRORS_ONLY, FATAL_ONLY, load_runtime
from edge_agent.engine.values import array_of, inner_value, spec_of, value_of
from edge_agent.errors import InputMismatch
from edge_agent.tensors import Arrays, ElementType, TensorSpec


class OptimisationLevel(StrEnum):
    """How far ONNX Runtime rewrites a graph when it loads it."""

    NONE = "none"
    """Not at all: for compiled files."""
    EXTENDED = "extended"
    """Everything but layouts: the layout NCHW."""
    ALL = "all"
    """Layouts too: the layout blocked (NCHWc), where the processor has kernels for it."""


_LEVELS: Final[Mapping[OptimisationLevel, str]] = {
    OptimisationLevel.NONE: "ORT_DISABLE_ALL",
    OptimisationLevel.EXTENDED: "ORT_ENABLE_EXTENDED",
    OptimisationLevel.ALL: "ORT_ENABLE_ALL",
}


def session_options(level: OptimisationLevel, threads: int) -> Any:
    """SessionOptions for `threads` threads, without spinning between runs."""
    runtime = load_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, _LEVELS[level])
    options.intra_op_num_threads = threads
    if threads > 1:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def plain_options(threads: int | None) -> Any:
    """SessionOptions as a user gets them, but for the log level and the threads, if these are given
    or there would be more of them than cores that this process may use.

    ONNX Runtime starts one for each core of the device, and where the process has fewer, they take
    turns: ResNet-50 on one core of two took 1.8 times as long as with one thread.
    """
    options = load_runtime().SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    if threads is None:
        cores = len(os.sched_getaffinity(os.getpid()))
        threads = cores if cores < (os.cpu_count() or cores) else None
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


def open_on_cpu(path: Path, options: Any, disabled_optimizers: Any = None) -> Any:
    """An InferenceSession on the CPU provider that fails where by default it would try again.

    Raises: ModelRefused, RuntimeUnavailable, StorageError.
    """
    with loading(path):
        return create(path, options, disabled_optimizers=disabled_optimizers)


class Session:
    """One loaded graph; any number of threads may run it at once."""

    def __init__(
        self,
        inner: Any,
        path: Path,
        pinned_cores: tuple[int, ...] | None,
        use: ProviderUse | None = None,
    ) -> None:
        """Use `open`."""
        self._inner = inner
        self.path = path
        self.pinned_cores = pinned_cores
        self.memory = "" if use is None else use.memory
        """As in `ProviderUse`."""
        declared_inputs = inner.get_inputs()
        declared_outputs = inner.get_outputs()
        self.overridable: tuple[TensorSpec, ...] = tuple(
            replace(spec, has_default=True) for spec in _specs(inner.get_overridable_initializers())
        )
        """Initializers that a feed may replace: inputs too, in a model of IR version 4 or newer."""
        self.input_names: tuple[str, ...] = tuple(d.name for d in declared_inputs)
        self.output_names: tuple[str, ...] = tuple(dict.fromkeys(d.name for d in declared_outputs))
        self.inputs: tuple[TensorSpec, ...] = _specs(declared_inputs)
        self.outputs: tuple[TensorSpec, ...] = _specs(declared_outputs)
        """Each once."""
        self._types: dict[str, ElementType] = {
            s.name: s.element_type for s in (*self.inputs, *self.overridable)
        }
        self.containers = {s.name for s in (*self.inputs, *self.outputs) if s.container}
        """Inputs and outputs that are no tensors."""
        self._plain_outputs = {
            s.name
            for s in self.outputs
            if s.element_type.is_native or s.element_type is ElementType.STRING
        }
        self._is_simple = not self.containers and all(
            s.element_type.is_native for s in (*self.inputs, *self.outputs, *self.overridable)
        )
        self._optional_outputs = {d.name for d in declared_outputs if d.type.startswith("optional")}
        self.required_inputs: tuple[str, ...] = tuple(
            d.name for d in declared_inputs if not d.type.startswith("optional")
        )
        """Names of the inputs that every run must be given."""
        self._bindable = set(self.required_inputs)
        self.takes: tuple[str, ...] = (*self.input_names, *(s.name for s in self.overridable))
        """Names of everything that a run may be given."""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        threads: int | None,
        level: OptimisationLevel,
        pinned_cores: tuple[int, ...] | None = None,
        plain: bool = False,
        is_silent: bool = False,
        lean: bool = False,
        use: ProviderUse | None = None,
        is_whole: bool = True,
    ) -> Session:
        """Load the graph at `path` on the CPU provider, or on that of `use`.

        `pinned_cores`, one core for each of `threads`, binds the pool's threads to all but the
        first, which is for the caller (see `pin_caller`). Without it the pool inherits the cores
        of the calling thread, so open from a thread that is not pinned.
        `plain` gives what `onnxruntime.InferenceSession(path)` gives: `level` and `pinned_cores`
        are not used, and `threads` may be None for its own choice. `lean` leaves out the packing
        of weights: runs take longer, and weights that are mapped take next to no memory (31 MiB
        for 960 MiB, measured, instead of as much again).
        `is_silent` is for trying what may well fail: ONNX Runtime prints no errors, it raises them.
        `is_whole` says that the provider of `use` must take every node; else those that it refuses
        run on the processor, with `threads` threads.

        Raises: ModelRefused, RuntimeUnavailable.
        """
        options, pinned_cores = _options(threads, level, pinned_cores, plain, lean)
        if is_silent or use is not None:
            options.log_severity_level = FATAL_ONLY
        with loading(path):
            inner = create(path, options, use or ON_CPU, is_whole=is_whole)
        return cls(inner, path, pinned_cores, use)

    @classmethod
    def open_idle(
        cls,
        path: Path,
        *,
        threads: int | None,
        level: OptimisationLevel,
        pinned_cores: tuple[int, ...] | None = None,
        plain: bool = False,
        lean: bool = False,
    ) -> Session:
        """`open` that gives way to threads that serve, while the session's own threads do not.

        Pool threads inherit the priority of the thread that makes them, and an ordinary user may
        not raise it again. So a thread of normal priority makes the session and lowers itself
        between the making of the pool and the work on the graph: that is when ONNX Runtime reads
        `disabled_optimizers`.
        """
        options, pinned_cores = _options(threads, level, pinned_cores, plain, lean)
        inner = run_in_thread(lambda: open_on_cpu(path, options, GiveWay()))
        return cls(inner, path, pinned_cores)

    def pin_caller(self) -> None:
        """Bind the calling thread to the first of the pinned cores; nothing if there are none."""
        if self.pinned_cores:
            os.sched_setaffinity(threading.get_native_id(), {self.pinned_cores[0]})

    def run(
        self, arrays: Arrays, outputs: Sequence[str], cancel: Cancellation | None = None
    ) -> Arrays:
        """Compute `outputs` from `arrays`, by name; initializers that may be replaced included.

        Raises: InputMismatch for missing or unknown names; RunFailed; the reason of `cancel`.
        """
        check_names(self.required_inputs, self.takes, arrays, self.output_names, outputs)
        return self.run_checked(arrays, outputs, cancel)

    def run_checked(
        self, arrays: Arrays, outputs: Sequence[str], cancel: Cancellation | None = None
    ) -> Arrays:
        """`run` for a request that was compared with what the model declares before.

        Raises: RunFailed; the reason of `cancel`.
        """
        if self._is_simple and cancel is None:
            # A third of the time that binding takes, which counts for models of microseconds.
            try:
                results = self._inner.run(list(outputs), arrays)
            except Exception:
                # Entered only now: entering it costs as much as a small model.
                with running(self.path, None):
                    raise
            return dict(zip(outputs, results, strict=True))
        values = {name: self.value_of(name, array) for name, array in arrays.items()}
        computed = self.compute(values, outputs, cancel, to_arrays=True)
        return {n: array_of(n, v) for n, v in computed.items()}

    def run_inside(
        self,
        values: Mapping[str, Any],
        outputs: Sequence[str],
        cancel: Cancellation | None = None,
    ) -> dict[str, Any]:
        """`run` for a part of a model: what is no tensor comes as the value of ONNX Runtime that
        another part's `run_inside` takes.

        Raises: RunFailed; the reason of `cancel`.
        """
        feeds = {name: self.value_of(name, value) for name, value in values.items()}
        computed = self.compute(feeds, outputs, cancel)
        return {n: v if n in self.containers else array_of(n, v) for n, v in computed.items()}

    def value_of(self, name: str, array: Any) -> Any:
        """What `compute` takes for the array fed as input `name`."""
        return value_of(array, self._types.get(name)) if isinstance(array, np.ndarray) else array

    def compute(
        self,
        values: Mapping[str, Any],
        outputs: Sequence[str],
        cancel: Cancellation | None,
        *,
        to_arrays: bool = False,
        staying: Collection[str] = (),
    ) -> dict[str, Any]:
        """`outputs` from `values` (arrays or OrtValues) as values that other sessions take.

        `to_arrays` asks for arrays where there is a choice, as `InferenceSession.run` gives them.
        Those named in `staying` stay in the memory of the unit, if they can be bound.
        An optional is an array, a list or None.

        Raises: RunFailed; the reason of `cancel`.
        """
        if not outputs:
            return {}
        run_options = None if cancel is None else cancel.run_options()
        with running(self.path, cancel):
            match self._way(values, outputs, to_arrays=to_arrays):
                case "bound":
                    results = self._run_bound(values, outputs, run_options, staying)
                case "python":
                    results = self._inner.run(list(outputs), dict(values), run_options)
                case _:
                    inside = {name: inner_value(value) for name, value in values.items()}
                    results = self._inner.run_with_ort_values(list(outputs), inside, run_options)
        return dict(zip(outputs, results, strict=True))

    def _way(self, values: Mapping[str, Any], outputs: Sequence[str], *, to_arrays: bool) -> str:
        """How to run: bound, with Python values, or with OrtValues.

        A bound run costs 6 µs more than one with Python values, but its results stay in ONNX
        Runtime, whatever their type. Texts, lists, optionals and initializers cannot be bound. Of
        lists, maps and None no OrtValues can be made, and looking at a bound optional that is
        empty ends the process (1.32).
        """
        is_in_python = any(v is None or isinstance(v, (list, dict)) for v in values.values())
        if is_in_python or not self._optional_outputs.isdisjoint(outputs):
            return "python"
        is_plain = self._plain_outputs.issuperset(outputs)
        if is_plain and to_arrays:
            return "python"
        if all(n in self._bindable and _is_bindable(v) for n, v in values.items()):
            return "bound"
        return "python" if is_plain and self.containers.isdisjoint(outputs) else "inside"

    def _run_bound(
        self,
        values: Mapping[str, Any],
        outputs: Sequence[str],
        run_options: Any,
        staying: Collection[str],
    ) -> Any:
        binding = self._inner.io_binding()
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, value)
            else:
                binding.bind_ortvalue_input(name, value)
        memory, _, number = self.memory.partition(":")
        for name in outputs:
            if name in staying:
                binding.bind_output(name, memory, int(number or 0))
            else:
                binding.bind_output(name, "cpu")
        self._inner.run_with_iobinding(binding, run_options)
        return binding.get_outputs()


def check_names(
    required: Sequence[str],
    taken: Sequence[str],
    fed: Mapping[str, Any],
    offered: Sequence[str],
    wanted: Sequence[str],
) -> None:
    """Compare the names of a request with those of the model.

    Raises: InputMismatch, naming the first that is missing or unknown.
    """
    for name in required:
        if name not in fed:
            raise InputMismatch(f'input "{name}" is missing; the model wants {_quoted(required)}')
    for name in fed:
        if name not in taken:
            raise InputMismatch(f'input "{name}" is unknown; the model takes {_quoted(taken)}')
    for name in wanted:
        if name not in offered:
            raise InputMismatch(f'output "{name}" is unknown; the model gives {_quoted(offered)}')


def _is_bindable(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "OUS"
    return True


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"


def _specs(declared: Sequence[Any]) -> tuple[TensorSpec, ...]:
    found = {d.name: spec_of(d) for d in declared}
    return tuple(spec for spec in found.values() if spec is not None)


def _options(
    threads: int | None,
    level: OptimisationLevel,
    pinned_cores: tuple[int, ...] | None,
    plain: bool,
    lean: bool,
) -> tuple[Any, tuple[int, ...] | None]:
    if plain:
        return _packing(plain_options(threads), lean), None
    if threads is None or threads < 1:
        raise ValueError(f"got threads={threads}, want 1 or more (None only for plain sessions)")
    options = _packing(session_options(level, threads), lean)
    if pinned_cores is None:
        return options, None
    if len(pinned_cores) != threads:
        raise ValueError(f"got {len(pinned_cores)} pinned cores for {threads} threads")
    if threads > 1:
        # One group for each pool thread, which are one less than `threads`; cores count from 1.
        groups = ";".join(str(core + 1) for core in pinned_cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", groups)
    return options, pinned_cores


def _packing(options: Any, lean: bool) -> Any:
    if lean:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options
