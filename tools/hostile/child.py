"""Does to hostile models what a builder does, in a process that may die of them.

`python -m hostile.child FOLDER KIND` reads numbers of cases from its standard input, one a line,
and writes JSON lines: the step that it is about to take, and in the end what came of the case.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edge_agent.builder.admitting import admit
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.made_up import find_samples
from edge_agent.builder.quantised import is_quantised
from edge_agent.builder.specs import general_specs, inner_specs
from edge_agent.builder.workshop import Workshop
from edge_agent.config import Limits, Settings
from edge_agent.devices import Layout
from edge_agent.engine.cancel import Cancellation, cancelled_after
from edge_agent.engine.chain import Chain
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.errors import EdgeAgentError, ModelRefused, RuntimeUnavailable
from edge_agent.model.divide import legal_cuts, summarise
from edge_agent.model.extract import extract
from edge_agent.model.graph import ModelGraph
from edge_agent.profiling.device import device_key
from edge_agent.profiling.tolerance import disagreement
from edge_agent.store.models import ModelStore
from edge_agent.store.pool import POOL_FOLDER, Pool
from edge_agent.subgraphs import SegmentRange
from edge_agent.tensors import Arrays, TensorName
from edge_agent.wire.messages import Admitted
from hostile.cases import MODEL_FILE, sound, write_case
from hostile.seeds import Seed

MEMORY_BYTES = 4 << 30
RUN_S = 2.0
MOST_CUTS = 3
SMALL_LIMITS = Limits(
    max_model_bytes=64 << 20, max_external_bytes=1 << 20, max_request_bytes=1 << 20
)

Step = Callable[[str], None]


class Wrong(Exception):
    """The product did what it must not do."""


def judge(path: Path, folder: Path, step: Step) -> str:
    """What came of the model at `path`, in words; the store lies in `folder`.

    Raises:
        Wrong: it was divided wrongly, or something of it is where it should not be.
    """
    settings = Settings(
        socket=folder / "s", state=folder / "state", cache=folder / "cache", limits=SMALL_LIMITS
    )
    before = _files(path.parent)
    step("admit")
    try:
        admitted = admit(path, settings, on_staged=lambda _: None, wait_until_movable=lambda: None)
    except EdgeAgentError as error:
        _check_message(error)
        if left := _files(settings.state):
            raise Wrong(f"a refused model left {sorted(left)}") from error
        return f"refused: {type(error).__name__}: {error}"
    finally:
        if (after := _files(path.parent)) != before:
            raise Wrong(f"beside the model there are {sorted(after)}, were {sorted(before)}")
    _verify(admitted, settings)
    step("graph")
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        return _divided(admitted, settings, scratch, step)
    finally:
        _verify(admitted, settings)


def _pool(settings: Settings) -> Pool:
    return Pool(settings.state / POOL_FOLDER, settings.limits.max_compiled_bytes)


def _verify(admitted: Admitted, settings: Settings) -> None:
    """Raises: StorageError if the model is not stored as it was admitted."""
    entry = _pool(settings).get(admitted.model, thorough=True)
    if entry is None:
        ModelStore(settings.state).verify(admitted.model)
    else:
        entry.release()


def _divided(admitted: Admitted, settings: Settings, scratch: Path, step: Step) -> str:
    graph = ModelGraph.load(Path(admitted.path))
    try:
        step("open the whole with ONNX Runtime")
        whole = Session.open(graph.path, threads=1, level=OptimisationLevel.NONE)
        step("run the whole with ONNX Runtime")
        feeds = _feeds(whole)
    except EdgeAgentError as error:
        whole, feeds = None, None
        outcome = f"admitted, not opened: {error}"
    else:
        outcome = "admitted, opened, not run"
    fed: dict[str, Any] = dict(feeds or {})
    shapes = {TensorName(n): a.shape for n, a in fed.items() if isinstance(a, np.ndarray)}
    step("specs")
    specs = inner_specs(graph, shapes, scratch / "probe.onnx")
    step("summarise")
    summary = summarise(graph, admitted.model, shapes, specs)
    msgspec.msgpack.encode(summary)  # it goes to the agent
    step("general specs")
    specs = general_specs(graph, specs)
    step("cuts")
    legal = legal_cuts(graph, specs)
    chosen = sorted(random.Random(0).sample(legal, min(MOST_CUTS, len(legal))))
    wanted = None
    if whole is not None and feeds is not None:
        step("run the whole with ONNX Runtime")
        wanted = _run(lambda cancel: whole.run(feeds, whole.output_names, cancel))
        outcome = "admitted, runs" if wanted is not None else outcome
    for cut in chosen:
        for start, stop in ((0, cut), (cut, len(graph.nodes))):
            step(f"extract {start} to {stop}")
            extract(graph, start, stop, scratch / f"{start}-{stop}.onnx", specs)
        if wanted is not None and feeds is not None and summary.undivided_because is None:
            _compare(graph, cut, feeds, wanted, scratch, step)
            outcome = "admitted, divided, right"
    if whole is not None:
        with Compiler(_pool(settings), admitted.model, device_key()) as compiler:
            workshop = Workshop(graph, summary, specs, compiler)
            for layout in (Layout.NCHW, Layout.NHWC, Layout.BLOCKED):
                step(f"compile for {layout} with ONNX Runtime")
                with suppress(ModelRefused, RuntimeUnavailable):
                    workshop.compiled(SegmentRange(start=0, stop=len(summary.segments)), layout)
    return outcome


def _compare(
    graph: ModelGraph, cut: int, feeds: Arrays, wanted: Arrays, scratch: Path, step: Step
) -> None:
    step(f"open the parts at {cut} with ONNX Runtime")
    try:
        sessions = [
            Session.open(scratch / f"{a}-{b}.onnx", threads=1, level=OptimisationLevel.NONE)
            for a, b in ((0, cut), (cut, len(graph.nodes)))
        ]
        chain = Chain(sessions, graph.inputs, tuple(wanted))
    except (EdgeAgentError, ValueError) as error:
        raise Wrong(f"runs whole, but not in parts at {cut}: {error}") from error
    step(f"run the parts at {cut} with ONNX Runtime")
    try:
        fed = {n: a for n, a in feeds.items() if n in graph.inputs}
        got = _run(lambda cancel: chain.run(fed, (), cancel))
    except EdgeAgentError as error:
        raise Wrong(f"runs whole, but not in parts at {cut}: {error}") from error
    if got is None:
        return
    different = disagreement(got, wanted, is_quantised=is_quantised(graph))
    if different is not None:
        raise Wrong(f"the parts at {cut} give something else: {different}")


def _feeds(whole: Session) -> Arrays | None:
    found = find_samples(whole, {}, SMALL_LIMITS.max_request_bytes, run_s=RUN_S)
    return None if found is None else found.arrays[0]


def _run(run: Callable[[Cancellation], Arrays]) -> Arrays | None:
    """What it gives; None if it takes too long."""
    with cancelled_after(RUN_S) as cancel:
        try:
            return run(cancel)
        except EdgeAgentError:
            if cancel.is_cancelled:
                return None
            raise


def _check_message(error: EdgeAgentError) -> None:
    text = str(error)
    if MODEL_FILE not in text:
        raise Wrong(f"the message does not name the file: {text[:300]}") from error
    if len(text) > 20_000:
        raise Wrong(f"the message has {len(text)} characters: {text[:300]}") from error


def _files(folder: Path) -> set[str]:
    return {
        str((Path(place) / name).relative_to(folder))
        for place, _, names in os.walk(folder)
        for name in names
    }


def _one(number: int, among: Sequence[Seed], folder: Path, step: Step) -> str:
    source = folder / "source"
    source.mkdir(parents=True)
    step("damage")
    path, _ = write_case(number, among, source)
    return judge(path, folder, step)


def main(arguments: list[str]) -> None:
    """Judge the cases that come in, one after the other."""
    root, kind = Path(arguments[0]), arguments[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    among = sound(with_operators=kind == "operators")
    for line in sys.stdin:
        number = int(line)
        folder = root / str(number)

        def tell(number: int = number, **said: str) -> None:
            print(json.dumps({"case": number, **said}), flush=True)

        try:
            outcome = _one(number, among, folder, lambda what: tell(step=what))
        except Wrong as error:
            tell(wrong=str(error))
        except BaseException:
            tell(wrong=traceback.format_exc())
        else:
            tell(outcome=outcome)
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()


if __name__ == "__main__":
    main(sys.argv[1:])
