"""Models from load to unload, with real builders that admit them and workers in memory."""

from __future__ import annotations

import errno
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.agent import restarting
from edge_agent.agent.controller import Controller
from edge_agent.agent.datapath import DataPath
from edge_agent.agent.kept import Specialisation
from edge_agent.agent.lanes import Lane
from edge_agent.agent.loaded import Loaded
from edge_agent.agent.probing import Prober
from edge_agent.agent.processes import Child
from edge_agent.agent.stations import OfDivided
from edge_agent.agent.stores import Stores
from edge_agent.agent.workers import Serve, Worker, Workers
from edge_agent.config import Settings
from edge_agent.errors import (
    ModelQuarantined,
    ModelRefused,
    RuntimeUnavailable,
    UnknownModel,
    WorkerLost,
)
from edge_agent.plans import Target
from edge_agent.tensors import TensorName
from edge_agent.wire.messages import (
    Counted,
    Deployment,
    Failure,
    Load,
    Ready,
    RunError,
)
from edge_agent.wire.parts import (
    ShapeCount,
    ShapeCounts,
    Specialised,
    SubgraphFile,
    Unopened,
)
from tests.agent.rig import Rig, WorkerEnd, X, wait_until


def write(path: Path, operator: str = "Relu") -> Path:
    """float32[N,2] to float32[N,2], one operator."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in ("x", "y")]
    node = helper.make_node(operator, ["x"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


def load(path: Path, name: str | None = None) -> Load:
    return Load(
        path=str(path),
        name=name,
        target=Target.LATENCY,
        threads=None,
        shapes=(),
        subgraphs=None,
    )


class FakeProcess:
    """Dead as soon as somebody asks."""

    pid = 2**22 - 1
    returncode = 0

    def wait(self) -> int:
        return 0


class FakeChild:
    """A worker in threads of this process."""

    def __init__(self) -> None:
        self.process = FakeProcess()
        self.pid = self.process.pid
        self.end_of: WorkerEnd | None = None
        self.is_ended = False
        self.is_restored = False

    def restore_session(self) -> None:
        self.is_restored = True

    def release(self) -> None:
        return

    def kill(self) -> None:
        return

    def end(self) -> None:
        self.is_ended = True

    def how_it_ended(self) -> str:
        return "exit code 0"


Opened = Callable[[WorkerEnd], None]


def is_ready(end: WorkerEnd) -> None:
    """Opens at once and doubles its inputs."""
    end.say_ready()
    end.serve_in_thread()


class FakeOpening:
    """The opening of staged files, as a test wants it to go."""

    def __init__(self) -> None:
        self.staged: list[bytes] = []
        """What the files held that were to be opened."""
        self.then: Callable[[], None] = lambda: None

    def begin(self, file: SubgraphFile) -> None:
        self.staged.append(Path(file.path).read_bytes())

    def wait(self) -> None:
        self.then()


class FakeWorkers:
    """Starts workers that do what the next step says; without steps they are ready at once."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.steps: list[Opened] = []
        self.children: list[FakeChild] = []
        self.workers: list[Worker] = []
        self.ends: list[WorkerEnd] = []
        self.opening = FakeOpening()
        real = Workers(rig.datapath)
        self.open_beside = real.open_beside
        self.switch = real.switch
        self.discard = real.discard

    def prepare(self, *, is_background: bool) -> FakeChild:  # noqa: ARG002
        self.children.append(FakeChild())
        return self.children[-1]

    def opening_ahead(self, child: FakeChild) -> FakeOpening:  # noqa: ARG002
        return self.opening

    def start(
        self,
        lane: Lane,
        serve: Serve,
        child: FakeChild,
        on_lost: Callable[[Worker], None],
        on_counted: Callable[[Worker, ShapeCounts], None],
        told: Callable[[OfDivided], None] | None = None,
    ) -> Worker:
        assert told is None
        worker = Worker(lane, cast(Child, child), serve, on_lost, on_counted)
        ours, end = self.rig.stream()
        deployment = Deployment(
            epoch=serve.epoch,
            subgraphs=serve.subgraphs,
            instances=1,
            pinned_cores=(),
            inputs=serve.inputs,
            outputs=serve.outputs,
            warm_shapes=(),
        )
        worker.station = self.rig.datapath.attach(lane, deployment, ours, worker)
        end.take_deployment()
        self.workers.append(worker)
        self.ends.append(end)
        (self.steps.pop(0) if self.steps else is_ready)(end)
        return worker


class Models:
    """A controller with all it needs."""

    def __init__(self, rig: Rig, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.rig = rig
        self.folder = folder
        settings = Settings(socket=rig.path, state=folder, cache=folder / "cache")
        self.stores = Stores(settings)
        self.workers = FakeWorkers(rig)
        self.controller = Controller(
            settings,
            self.stores,
            1,
            cast(DataPath, rig.datapath),
            cast(Workers, self.workers),
            executor,
            Prober(settings),
        )

    def infer(self, model: str) -> np.ndarray:
        client = self.rig.client()
        client.infer("r", model=model)
        try:
            return client.y()
        finally:
            client.close()


@pytest.fixture
def models() -> Iterator[Models]:
    folder = Path(tempfile.mkdtemp(prefix="edge-agent-"))
    with Rig() as rig, ThreadPoolExecutor(4) as executor:
        made = Models(rig, folder, executor)
        yield made
        # Plans are made by processes of their own, which these tests do not wait for.
        made.controller.stop()
        for loaded in made.controller.all_loaded():
            made.controller.unload(loaded.record.name)
        wait_until(
            lambda: not any(t.name.startswith("build-") for t in threading.enumerate()),
            "all builders have ended",
        )
    shutil.rmtree(folder)


def test_a_model_serves_from_its_load_to_its_unload(models: Models, tmp_path: Path) -> None:
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    assert [child.is_restored for child in models.workers.children] == [True]
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert models.stores.models.ids() == (loaded.record.model,)
    assert models.controller.loaded("m") is loaded
    models.controller.unload("m")
    assert models.stores.models.ids() == ()
    assert models.stores.registry.load()[0] == ()
    with pytest.raises(UnknownModel, match='"m" is not loaded; loaded: none'):
        models.controller.loaded("m")


def test_a_model_that_cannot_be_opened_leaves_nothing(models: Models, tmp_path: Path) -> None:
    def refuse(end: WorkerEnd) -> None:
        end.send(RunError(end.epoch, -1, "runtime-unavailable", "no such operator"))

    models.workers.steps = [refuse]
    with pytest.raises(RuntimeUnavailable, match="no such operator"):
        models.controller.load(load(write(tmp_path / "m.onnx")))
    assert models.stores.models.ids() == ()
    assert models.controller.all_loaded() == []
    assert all(child.is_ended for child in models.workers.children)


def test_a_worker_that_dies_while_it_opens_a_model_refuses_it(
    models: Models, tmp_path: Path
) -> None:
    models.workers.steps = [WorkerEnd.close]
    with pytest.raises(ModelRefused, match="died while it opened the model"):
        models.controller.load(load(write(tmp_path / "m.onnx")))
    assert models.stores.models.ids() == ()


def nothing_is_left_of_it(models: Models) -> bool:
    folders = [models.stores.models.ids(), [*(models.folder / "staging").iterdir()]]
    return not any(folders) and models.controller.all_loaded() == []


def test_a_model_is_opened_while_it_is_checked_and_stored_only_then(
    models: Models, tmp_path: Path
) -> None:
    stored: list[tuple[str, ...]] = []
    models.workers.opening.then = lambda: stored.append(models.stores.models.ids())
    source = write(tmp_path / "m.onnx")
    models.controller.load(load(source))
    assert models.workers.opening.staged == [source.read_bytes()]
    assert stored == [()]
    (worker,) = models.workers.workers
    (file,) = worker.serve.subgraphs
    assert file.path == str(models.stores.model_path(worker.serve.epoch.model))


def test_a_worker_that_dies_of_a_staged_file_refuses_it_and_nothing_is_left(
    models: Models, tmp_path: Path
) -> None:
    def die() -> None:
        raise WorkerLost("the worker died while it opened the model (signal 11)")

    models.workers.opening.then = die
    path = write(tmp_path / "m.onnx")
    with pytest.raises(ModelRefused) as told:
        models.controller.load(load(path))
    assert str(told.value) == f"{path}: the worker died while it opened the model (signal 11)"
    assert models.workers.workers == []
    assert nothing_is_left_of_it(models)
    assert all(child.is_ended for child in models.workers.children)


def test_the_reason_of_the_check_goes_before_that_of_the_worker(
    models: Models, tmp_path: Path
) -> None:
    def die() -> None:
        raise WorkerLost("never asked")

    models.workers.opening.then = die
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelRefused, match=r"^m\.onnx: .*no ONNX model"):
        models.controller.load(load(path))
    assert models.workers.opening.staged == [b"no model"]
    assert nothing_is_left_of_it(models)
    assert all(child.is_ended for child in models.workers.children)


def test_a_model_that_is_refused_does_not_take_another_one_with_it_that_is_being_loaded(
    models: Models, tmp_path: Path
) -> None:
    is_opening, may_open = threading.Event(), threading.Event()

    def open_late(end: WorkerEnd) -> None:
        is_opening.set()
        may_open.wait(20.0)
        is_ready(end)

    models.workers.steps = [open_late]
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"no model")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(models.controller.load, load(write(tmp_path / "m.onnx")))
        assert is_opening.wait(20.0)
        with pytest.raises(ModelRefused):
            models.controller.load(load(wrong))
        may_open.set()
        loaded = loading.result()
    assert models.stores.models.ids() == (loaded.record.model,)
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_new_version_takes_the_name_and_the_old_one_is_removed(
    models: Models, tmp_path: Path
) -> None:
    old = models.controller.load(load(write(tmp_path / "a.onnx"), "m"))
    new = models.controller.load(load(write(tmp_path / "b.onnx", "Neg"), "m"))
    assert models.controller.loaded("m") is new
    assert models.stores.models.ids() == (new.record.model,)
    assert old.is_gone.is_set()
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_worker_that_dies_is_replaced(models: Models, tmp_path: Path) -> None:
    ends: list[WorkerEnd] = []

    def die_with_the_first_request(end: WorkerEnd) -> None:
        end.say_ready()
        ends.append(end)

    models.workers.steps = [die_with_the_first_request]
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    client = models.rig.client()
    client.infer()
    ends[0].take()
    ends[0].close()
    np.testing.assert_array_equal(client.y(), X * 2)
    wait_until(lambda: loaded.lane.restarts == 1, "the restart is counted")
    assert loaded.worker is models.workers.workers[-1]


def test_a_worker_that_dies_between_being_ready_and_serving_is_replaced(
    models: Models, tmp_path: Path
) -> None:
    def die(end: WorkerEnd) -> None:
        end.say_ready()
        end.close()
        attached = models.workers.workers[-1].station
        wait_until(
            lambda: models.rig.counters["workers lost"] == 1, f"{attached.epoch} is known dead"
        )

    models.workers.steps = [die]
    models.controller.load(load(write(tmp_path / "m.onnx")))
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_worker_reported_dead_after_its_model_was_unloaded_is_not_replaced(
    models: Models, tmp_path: Path
) -> None:
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    worker = models.workers.workers[0]
    lock = models.controller._name_lock("m")
    with ThreadPoolExecutor(1) as pool, lock:
        # It is looked up while the model is there, and waits for what is done to the model.
        reporting = pool.submit(models.controller.worker_lost, worker)
        wait_until(lambda: reporting.running(), "the death is reported")
        models.controller.unload("m")
        started = len(models.workers.workers)
        assert loaded.is_gone.is_set()
    reporting.result(10.0)
    assert len(models.workers.workers) == started


SPECIAL = Specialised(
    shapes=((1, 2),),
    subgraphs=(SubgraphFile(path="/c/s.onnx", level="none", threads=1, is_plain=False),),
    instances=1,
    pinned_cores=(),
)


def specialised(loaded: Loaded) -> None:
    """As if subgraphs of its own served one shape of the model."""
    made = Specialisation(shapes=SPECIAL.shapes, plan=None, reason="it is faster", serve=SPECIAL)
    loaded.specialisations = (made,)
    loaded.serve = replace(loaded.serve, specialised=(SPECIAL,))


def test_specialised_subgraphs_are_served_by_a_new_worker_that_takes_over(
    models: Models, tmp_path: Path
) -> None:
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    before = loaded.serve.epoch.number
    models.controller.deploy_specialised(loaded, (SPECIAL,))
    assert models.workers.workers[-1].serve.specialised == (SPECIAL,)
    assert loaded.worker is models.workers.workers[-1]
    assert loaded.serve.epoch.number > before
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_what_a_worker_cannot_open_is_not_used_and_told(models: Models, tmp_path: Path) -> None:
    def without(end: WorkerEnd) -> None:
        unopened = (Unopened(SPECIAL.shapes, "the file is damaged"),)
        end.send(Ready(end.epoch, (), (), 0.1, unopened=unopened))
        end.serve_in_thread()

    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    specialised(loaded)
    models.workers.steps = [without]
    models.controller.deploy_specialised(loaded, (SPECIAL,))
    assert loaded.serve.specialised == ()
    (found,) = loaded.specialisations
    assert (found.serve, found.reason) == (None, "the file is damaged")
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_worker_that_dies_again_is_replaced_by_one_without_specialised_subgraphs(
    models: Models, tmp_path: Path
) -> None:
    def die_with_the_first_request(end: WorkerEnd) -> None:
        end.say_ready()
        threading.Thread(target=lambda: (end.take(), end.close())).start()

    models.workers.steps = [die_with_the_first_request, die_with_the_first_request]
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    specialised(loaded)
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert [len(w.serve.specialised) for w in models.workers.workers] == [0, 1, 0]
    assert loaded.specialisations[0].reason == "the worker died again and again"


def test_specialised_subgraphs_that_cannot_be_opened_do_not_take_the_plan_with_them(
    models: Models, tmp_path: Path
) -> None:
    ends: list[WorkerEnd] = []

    def first(end: WorkerEnd) -> None:
        end.say_ready()
        ends.append(end)

    models.workers.steps = [first, WorkerEnd.close]
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    specialised(loaded)
    general = loaded.serve.subgraphs
    ends[0].close()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert loaded.serve.specialised == ()
    assert loaded.serve.subgraphs == general
    assert loaded.specialisations[0].reason.startswith("the worker could not be opened: ")


def test_what_the_worker_counts_is_known_and_goes_on_with_the_next_one(
    models: Models, tmp_path: Path
) -> None:
    ends: list[WorkerEnd] = []

    def counting(end: WorkerEnd) -> None:
        is_ready(end)
        ends.append(end)

    models.workers.steps = [counting]
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    assert models.workers.workers[0].serve.counted == ()
    counts = (ShapeCount(((1, 2),), 20),)
    ends[0].send(Counted(counts))
    wait_until(lambda: loaded.counted == counts, "the counts are known")
    models.controller.deploy_specialised(loaded, (SPECIAL,))
    assert models.workers.workers[1].serve.counted == counts


def kill_worker(models: Models) -> None:
    models.workers.ends[-1].stream.socket.shutdown(socket.SHUT_RDWR)


def test_where_no_process_can_be_started_it_is_tried_until_one_can(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.controller.load(load(write(tmp_path / "m.onnx")))
    prepare, tries = models.workers.prepare, []

    def prepare_at_last(*, is_background: bool) -> FakeChild:
        tries.append(is_background)
        if len(tries) < 4:
            raise OSError(errno.EMFILE, "Too many open files")
        return prepare(is_background=is_background)

    monkeypatch.setattr(restarting, "NO_ROOM_S", 0.01)
    monkeypatch.setattr(models.workers, "prepare", prepare_at_last)
    kill_worker(models)
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert len(tries) == 4


def test_a_model_of_which_neither_plan_nor_graph_can_be_opened_tells_so(
    models: Models, tmp_path: Path
) -> None:
    def refuse(end: WorkerEnd) -> None:
        end.send(RunError(end.epoch, -1, "storage", "it is damaged"))

    found = models.controller.load(load(write(tmp_path / "m.onnx")))
    gone = str(models.stores.pool.folder / "gone.onnx")
    file = msgspec.structs.replace(
        found.serve.subgraphs[0], path=gone, compiled_for="device", is_plain=False
    )
    found.serve = replace(found.serve, subgraphs=(file,))
    models.workers.steps = [refuse] * 5
    models.stores.models.remove(found.record.model)
    kill_worker(models)
    client = models.rig.client()
    client.infer("r")
    answer = client.answer()
    assert isinstance(answer, Failure)
    assert answer.code == "model-quarantined"
    assert "cannot be opened" in answer.message
    models.controller.unload("m")
    assert models.controller.all_loaded() == []


def test_what_is_gone_is_not_written_down_again(models: Models, tmp_path: Path) -> None:
    found = models.controller.load(load(write(tmp_path / "m.onnx")))
    models.controller.unload("m")
    models.controller.keep_on(found)
    assert models.stores.plans.load_plan("m") is None
    assert found.leases == ()


def test_plans_for_shapes_of_a_model_in_quarantine_are_refused(
    models: Models, tmp_path: Path
) -> None:
    found = models.controller.load(load(write(tmp_path / "m.onnx")))
    models.rig.datapath.call(found.lane.isolate)
    with pytest.raises(ModelQuarantined):
        models.controller.specialiser.plan_for(found, {TensorName("x"): (3, 2)})
