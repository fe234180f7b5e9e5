"""Knows how one side of a comparison runs and times itself, alone in its process.

An idle pool of ONNX Runtime spins for about 45 ms after each run, so two sides in one process
disturb each other. A side is `python -m bench.child SPEC`; it answers one line of JSON on stdout
per line of JSON on stdin, and ends at the end of stdin.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np

import edge_agent
from bench import plan
from edge_agent import clock
from edge_agent.devices import ProviderUse
from edge_agent.engine.session import OptimisationLevel, Session
from models.inputs import Arrays

Run = Callable[[], object]

BURST_S = 0.005
"""One sample lasts about this long: shorter runs are repeated and their median taken."""
MOST_RUNS = 50
WARM_BELOW_S = 0.02
"""Shorter runs notice caches that the other side emptied: as many go before, untimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSpec:
    """What one side runs; `inputs` is a file as numpy.savez writes it."""

    kind: str
    """plain: onnxruntime in this process; unit: the same on another provider, with what it refuses
    on the processor; served: Client; plan: see bench.plan."""
    inputs: str
    path: str = ""
    """The model file (plain)."""
    level: str = "default"
    """Optimisation of plain ONNX Runtime: default, extended or all."""
    threads: int | None = None
    """Threads of plain ONNX Runtime; None: its own default."""
    use: str = ""
    """A `ProviderUse` as JSON (unit)."""
    socket: str = ""
    model: str = ""

    @property
    def can_be_stopped(self) -> bool:
        """Whether all that runs for this side is its process: it may be stopped meanwhile."""
        return self.kind in ("plain", "unit") or (self.kind == "plan" and plan.RUNS_IN_THIS_PROCESS)

    def to_json(self) -> str:
        """The argument of `python -m bench.child`."""
        return json.dumps(asdict(self))


def open_run(spec: SideSpec, inputs: Arrays) -> Run:
    """A callable that does one request; safe to call from several threads."""
    match spec.kind:
        case "plain":
            return _plain(spec, inputs)
        case "unit":
            return _unit(spec, inputs)
        case "served":
            client = edge_agent.Client(spec.socket)
            return lambda: client.infer(spec.model, inputs)
        case "plan":
            return plan.plan_runner(spec.socket, spec.model, inputs)
        case other:
            raise ValueError(f"kind: got {other!r}, want plain, unit, served or plan")


def _plain(spec: SideSpec, inputs: Arrays) -> Run:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    levels = {
        "default": options.graph_optimization_level,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    options.graph_optimization_level = levels[spec.level]
    if spec.threads is not None:
        options.intra_op_num_threads = spec.threads
    session = ort.InferenceSession(spec.path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def _unit(spec: SideSpec, inputs: Arrays) -> Run:
    session = Session.open(
        Path(spec.path),
        threads=spec.threads or 1,
        level=OptimisationLevel.ALL,
        use=msgspec.json.decode(spec.use, type=ProviderUse),
        is_whole=False,
    )
    return lambda: session.run(inputs, session.output_names)


class Stopwatch:
    """Times a side's runs in the ways that the benchmarks ask for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last_s = max(self._timed() for _ in range(3))

    def one_s(self) -> float:
        """Seconds of one run: the median of a short burst."""
        runs = min(MOST_RUNS, max(1, round(BURST_S / self._last_s)))
        for _ in range(runs if self._last_s < WARM_BELOW_S else 0):
            self._run()
        self._last_s = float(np.median([self._timed() for _ in range(runs)]))
        return self._last_s

    def latencies_s(self, count: int, period_s: float) -> list[float]:
        """Seconds of each of `count` runs that start `period_s` apart, or later if one is late."""
        due_s, found = clock.monotonic_s(), []
        for _ in range(count):
            clock.sleep_s(max(0.0, due_s - clock.monotonic_s()))
            found.append(self._timed())
            due_s += period_s
        return found

    def per_request_s(self, callers: int, duration_s: float) -> float:
        """Seconds per request when `callers` threads ask back to back for about `duration_s`.

        What wakes from a pause is not throughput, so one request goes before.
        """
        self._run()
        counts = [0] * callers
        start_s = clock.precise_s()

        def call(caller: int) -> None:
            while not counts[caller] or clock.precise_s() - start_s < duration_s:
                self._run()
                counts[caller] += 1

        threads = [threading.Thread(target=call, args=(i,)) for i in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (clock.precise_s() - start_s) / sum(counts)

    def _timed(self) -> float:
        start_s = clock.precise_s()
        self._run()
        return clock.precise_s() - start_s


def serve(stopwatch: Stopwatch, commands: TextIO, answers: TextIO) -> None:
    """Answer commands until their end."""
    print(json.dumps("ready"), file=answers, flush=True)
    for line in commands:
        command = json.loads(line)
        match command["do"]:
            case "one":
                answer: object = stopwatch.one_s()
            case "latencies":
                answer = stopwatch.latencies_s(command["count"], command["period_s"])
            case "per_request":
                answer = stopwatch.per_request_s(command["callers"], command["duration_s"])
            case other:
                raise ValueError(f"do: got {other!r}, want one, latencies or per_request")
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Run the side that the first argument describes."""
    spec = SideSpec(**json.loads(sys.argv[1]))
    # Libraries may print to file descriptor 1; the protocol keeps its own copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with np.load(spec.inputs) as file:
        inputs = {name: file[name] for name in file.files}
    serve(Stopwatch(open_run(spec, inputs)), sys.stdin, answers)


if __name__ == "__main__":
    main()
