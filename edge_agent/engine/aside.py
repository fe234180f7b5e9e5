"""Whether creating a session leaves the other threads of the process running, found by trying.

Measured on two busy cores, the longest pause of another thread while a graph of 2,000 nodes is
opened: ONNX Runtime 1.32 3 to 10 ms of 34 to 270 ms; 1.27 64 to 90 ms of 92 to 142 ms; 1.24 31 to
87 ms of 51 to 114 ms, because they keep Python's interpreter lock meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Final

from edge_agent import clock
from edge_agent.engine.runtime import load_runtime
from edge_agent.engine.tiny import chain_model

_NODES: Final = 2000
_TRIES: Final = 3
"""Of which the best counts: others may keep the processor busy."""
_TICK_S: Final = 5e-4
_MOST_FRACTION: Final = 0.25


def opens_aside(provider: str) -> bool:
    """Whether other threads go on while a session on that provider is created.

    Raises: what ONNX Runtime raises where the provider does not work.
    """
    runtime = load_runtime()
    model = chain_model(_NODES)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL

    def create() -> None:
        runtime.InferenceSession(model, options, providers=[provider], enable_fallback=0)

    create()  # what the first one sets up for the process is not meant
    return min(paused_fraction(create) for _ in range(_TRIES)) <= _MOST_FRACTION


def paused_fraction(work: Callable[[], object]) -> float:
    """The longest pause of another thread while `work` runs, over the time that it takes."""
    seen_s: list[float] = []
    is_running, is_over = threading.Event(), threading.Event()

    def tick() -> None:
        while not is_over.is_set():
            seen_s.append(clock.precise_s())
            is_running.set()
            clock.sleep_s(_TICK_S)

    thread = threading.Thread(target=tick, name="tick")
    thread.start()
    is_running.wait()
    started_s = clock.precise_s()
    try:
        work()
        ended_s = clock.precise_s()
    finally:
        is_over.set()
        thread.join()
    within_s = [started_s, *(s for s in seen_s if started_s < s < ended_s), ended_s]
    pauses_s = (after - before for before, after in itertools.pairwise(within_s))
    return max(pauses_s) / (ended_s - started_s)
