"""Whose turn it is where the subgraphs of a deployment share units."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from edge_agent.devices import ProviderUse, UnitId
from edge_agent.wire.messages import Deployment
from edge_agent.wire.parts import Specialised, SubgraphFile
from edge_agent.worker.by_shape import ByShape
from edge_agent.worker.opening import ChainRunner, open_deployment
from edge_agent.worker.runners import Runner
from tests.worker.test_process import deployment, write

GPU = UnitId("gpu0")
X = np.array([[-1.0, 2.0]], np.float32)


def on_gpu(path: Path, at_once: int | None = 1) -> SubgraphFile:
    """Another unit, which is the processor under another name."""
    return SubgraphFile(
        path=str(path),
        level="all",
        threads=1,
        is_plain=False,
        unit=GPU,
        use=ProviderUse(provider="CPUExecutionProvider"),
        resource=GPU,
        at_once=at_once,
    )


def on_host(path: Path, at_once: int | None) -> SubgraphFile:
    return SubgraphFile(path=str(path), level="all", threads=1, is_plain=False, at_once=at_once)


def special(rows: int, *files: SubgraphFile, instances: int) -> Specialised:
    return Specialised(shapes=((rows, 2),), subgraphs=files, instances=instances, pinned_cores=())


def turns(runner: Runner) -> list[AbstractContextManager[Any]]:
    assert isinstance(runner, ChainRunner)
    return list(runner._chain._turns)


def chains(message: Deployment) -> list[list[AbstractContextManager[Any]]]:
    """The turns of the general chain and of those for single shapes."""
    opened = open_deployment(message, is_background=False)
    if not isinstance(opened.runner, ByShape):
        return [turns(opened.runner)]
    general, choices = opened.runner._general, opened.runner._specialised
    return [turns(general.runner), *(turns(choice.runner) for choice in choices.values())]


def places(turn: AbstractContextManager[Any]) -> int | None:
    """How many it lets in at once; None: any number."""
    if isinstance(turn, nullcontext):
        return None
    assert isinstance(turn, threading.Semaphore)
    count = 0
    while turn.acquire(blocking=False):
        count += 1
    for _ in range(count):
        turn.release()
    return count


def parts(folder: Path) -> tuple[Path, Path]:
    """v0 -> Relu -> v1, v0 -> Neg -> v1; as a chain they do not compute anything of use."""
    return write(folder / "a.onnx", "Relu"), write(folder / "b.onnx", "Neg")


def test_a_subgraph_runs_as_often_at_once_as_was_planned_for_its_unit(tmp_path: Path) -> None:
    a, b = parts(tmp_path)
    message = structs.replace(deployment(on_gpu(a), on_host(b, 2)), instances=3)
    ((gpu, host),) = chains(message)
    assert (places(gpu), places(host)) == (1, 2)


def test_subgraphs_on_one_unit_share_its_turns(tmp_path: Path) -> None:
    a, b = parts(tmp_path)
    message = structs.replace(deployment(on_gpu(a), on_host(b, 1), on_gpu(a)), instances=3)
    ((first, host, second),) = chains(message)
    assert first is second
    assert first is not host


def test_where_no_more_requests_run_at_once_than_a_unit_takes_there_are_no_turns(
    tmp_path: Path,
) -> None:
    a, b = parts(tmp_path)
    message = deployment(on_gpu(a), on_host(b, 2), on_host(b, None))
    assert [places(turn) for turn in chains(structs.replace(message, instances=1))[0]] == [None] * 3
    assert [places(turn) for turn in chains(structs.replace(message, instances=2))[0]] == [
        1,
        None,
        None,
    ]


def test_what_serves_single_shapes_shares_the_turns_of_the_general_plan(tmp_path: Path) -> None:
    a, b = parts(tmp_path)
    message = structs.replace(
        deployment(on_gpu(a), on_host(b, 2)),
        instances=3,
        specialised=(
            special(3, on_gpu(a), on_host(b, 2), instances=3),
            special(4, on_gpu(a), instances=1),
        ),
    )
    general, one, other = chains(message)
    assert one == general
    assert other == general[:1]


def test_what_was_planned_for_fewer_runs_at_once_keeps_to_that(tmp_path: Path) -> None:
    a, b = parts(tmp_path)
    message = structs.replace(
        deployment(on_gpu(a), on_host(b, 2)),
        instances=3,
        specialised=(special(3, on_gpu(a), on_host(b, 1), instances=2),),
    )
    (gpu, host), (special_gpu, special_host) = chains(message)
    assert special_gpu is gpu
    assert (places(host), places(special_host)) == (2, 1)


def test_the_most_requests_at_once_are_those_of_all_chains(tmp_path: Path) -> None:
    a, _ = parts(tmp_path)
    message = structs.replace(
        deployment(on_gpu(a)), specialised=(special(3, on_host(a, 2), instances=2),)
    )
    (general,), (host,) = chains(message)
    assert (places(general), places(host)) == (1, None)


def test_a_subgraph_on_another_unit_is_opened_there_and_serves(tmp_path: Path) -> None:
    a, _ = parts(tmp_path)
    opened = open_deployment(deployment(on_gpu(a)), is_background=False)
    np.testing.assert_array_equal(opened.runner.run({"v0": X}, ["v1"])["v1"], [[0.0, 2.0]])
