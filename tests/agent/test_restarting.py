"""What is suspected where workers that use other units than the processor die."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from edge_agent.agent.kept import Kept, save_kept, units_text
from edge_agent.agent.loaded import Loaded, Planning
from edge_agent.agent.restoring import restored
from edge_agent.config import Settings, UnitSettings
from edge_agent.devices import Layout, ProviderUse, UnitId
from edge_agent.wire.messages import RunError
from edge_agent.wire.parts import Banned, Specialised, SubgraphFile
from tests.agent.rig import WorkerEnd, X, wait_until
from tests.agent.test_controller import Models, load, models, write
from tests.builder.made_units import GPU, OTHER
from tests.made_plans import PLAN

__all__ = ["models"]  # the fixture

NPU = UnitId("npu0")
DIED = "the worker died again and again"
USE = OTHER.use(Layout.NATIVE, 0)


def on(unit: UnitId, use: ProviderUse = USE) -> SubgraphFile:
    return SubgraphFile(
        path=f"/c/{unit}.onnx",
        level="none",
        threads=1,
        is_plain=False,
        compiled_for="this device",
        unit=unit,
        use=use,
        resource=unit,
        at_once=1,
    )


ON_HOST = SubgraphFile(
    path="/c/cpu.onnx", level="none", threads=1, is_plain=False, compiled_for="this device"
)
ON_GPU, ON_NPU = on(GPU), on(NPU)


class Builds:
    """The plans that are to be made, which nobody makes here."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        """Whether each is to be measured again."""

    def start(self, loaded: Loaded, *, is_fresh: bool) -> None:
        self.asked.append(is_fresh)
        builder, loaded.builder = loaded.builder, None
        if builder is not None:
            builder.close()


@pytest.fixture
def builds(models: Models, monkeypatch: pytest.MonkeyPatch) -> Builds:
    made = Builds()
    monkeypatch.setattr(models.controller, "start_build", made.start)
    return made


def dies_with_a_request(end: WorkerEnd) -> None:
    end.say_ready()
    threading.Thread(target=lambda: (end.take(), end.close())).start()


def cannot_open(end: WorkerEnd) -> None:
    end.send(RunError(end.epoch, -1, "runtime-unavailable", "the unit is gone"))


def special(*files: SubgraphFile) -> Specialised:
    return Specialised(shapes=((1, 2),), subgraphs=files, instances=1, pinned_cores=())


def loaded_as(
    models: Models,
    folder: Path,
    *files: SubgraphFile,
    specialised: tuple[Specialised, ...] = (),
    planning: str = "done",
) -> Loaded:
    """A model whose first worker dies with the first request; the next one opens these files."""
    models.workers.steps = [dies_with_a_request]
    loaded = models.controller.load(load(write(folder / "m.onnx")))
    loaded.plan = PLAN
    loaded.planning = Planning(planning, 1.0, planning)
    loaded.serve = replace(loaded.serve, subgraphs=files, specialised=specialised)
    return loaded


def served(models: Models) -> list[tuple[SubgraphFile, ...]]:
    return [worker.serve.files for worker in models.workers.workers]


def test_units_whose_worker_dies_twice_in_a_row_are_left_out_and_plain_serves(
    models: Models, builds: Builds, tmp_path: Path
) -> None:
    loaded = loaded_as(models, tmp_path, ON_GPU, ON_HOST, ON_NPU, ON_GPU)
    models.workers.steps = [dies_with_a_request]
    builds.asked.clear()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    plain, on_units, again = served(models)
    assert on_units == (ON_GPU, ON_HOST, ON_NPU, ON_GPU)
    assert again == plain
    assert [file.is_plain for file in again] == [True]
    assert again[0].path == str(models.stores.model_path(loaded.record.model))
    assert loaded.banned == (Banned(GPU, DIED), Banned(NPU, DIED))
    assert loaded.asked_for(is_fresh=False, device=None).banned == loaded.banned
    assert builds.asked == [False]
    assert loaded.planning.state == "waiting"
    assert loaded.plan is None
    assert loaded.serve.epoch.number > models.workers.workers[1].serve.epoch.number
    assert loaded.lane.quarantine is None


def test_one_death_suspects_no_unit(models: Models, builds: Builds, tmp_path: Path) -> None:
    loaded = loaded_as(models, tmp_path, ON_GPU)
    builds.asked.clear()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert served(models)[1:] == [(ON_GPU,)]
    assert loaded.banned == ()
    assert builds.asked == []
    assert loaded.plan is PLAN


def test_an_answer_between_two_deaths_clears_the_units(
    models: Models, builds: Builds, tmp_path: Path
) -> None:
    loaded = loaded_as(models, tmp_path, ON_GPU)
    builds.asked.clear()
    ends: list[WorkerEnd] = []

    def serves_until_it_is_killed(end: WorkerEnd) -> None:
        ends.append(end)
        end.say_ready()
        end.serve_in_thread()

    models.workers.steps = [serves_until_it_is_killed]
    models.infer("m")
    ends[0].stream.socket.shutdown(2)
    wait_until(lambda: len(models.workers.workers) == 3, "another worker")
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert served(models)[1:] == [(ON_GPU,)] * 2
    assert loaded.banned == ()
    assert builds.asked == []


def test_the_processor_is_no_suspect(models: Models, builds: Builds, tmp_path: Path) -> None:
    loaded = loaded_as(models, tmp_path, ON_HOST)
    models.workers.steps = [dies_with_a_request]
    builds.asked.clear()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert served(models)[1:] == [(ON_HOST,)] * 2
    assert loaded.banned == ()
    assert builds.asked == []


def test_a_unit_that_only_a_specialisation_used_is_left_out_and_the_plan_goes_on(
    models: Models, builds: Builds, tmp_path: Path
) -> None:
    loaded = loaded_as(models, tmp_path, ON_HOST, specialised=(special(ON_GPU),))
    models.workers.steps = [dies_with_a_request]
    builds.asked.clear()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert served(models)[1:] == [(ON_HOST, ON_GPU), (ON_HOST,)]
    assert loaded.banned == (Banned(GPU, DIED),)
    assert loaded.plan is PLAN
    assert builds.asked == [False]
    assert loaded.planning.state == "waiting"


def test_units_of_plan_and_specialisation_are_left_out_together(
    models: Models, builds: Builds, tmp_path: Path
) -> None:
    loaded = loaded_as(models, tmp_path, ON_GPU, specialised=(special(ON_NPU),))
    models.workers.steps = [dies_with_a_request]
    builds.asked.clear()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert loaded.banned == (Banned(GPU, DIED), Banned(NPU, DIED))
    assert [file.is_plain for file in served(models)[-1]] == [True]
    assert builds.asked == [False]


def test_a_plan_that_was_made_while_its_units_killed_the_worker_is_made_again(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [(ON_HOST, ON_GPU), (ON_HOST,)]
    asked: list[tuple[bool, tuple[Banned, ...]]] = []
    deployed: list[tuple[SubgraphFile, ...]] = []

    def ask(loaded: Loaded, is_fresh: bool) -> SimpleNamespace:
        asked.append((is_fresh, loaded.banned))
        loaded.banned = (Banned(GPU, DIED),)
        return SimpleNamespace(subgraphs=plans.pop(0))

    def deploy(loaded: Loaded, built: SimpleNamespace) -> None:
        deployed.append(built.subgraphs)
        loaded.planning = Planning("done", 1.0, "done")

    monkeypatch.setattr(models.controller, "_ask_builder", ask)
    monkeypatch.setattr(models.controller, "_deploy", deploy)
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    wait_until(lambda: loaded.planning.state == "done", "it is planned")
    assert deployed == [(ON_HOST,)]
    assert asked == [(False, ()), (False, (Banned(GPU, DIED),))]


@pytest.mark.parametrize("planning", ["waiting", "working"])
def test_no_second_plan_is_begun_while_one_is_in_the_making(
    models: Models, builds: Builds, tmp_path: Path, planning: str
) -> None:
    loaded = loaded_as(models, tmp_path, ON_GPU, planning=planning)
    models.workers.steps = [dies_with_a_request]
    builds.asked.clear()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert loaded.banned == (Banned(GPU, DIED),)
    assert builds.asked == []
    assert loaded.planning.state == planning


def test_planning_again_forgets_which_units_were_left_out(
    models: Models, builds: Builds, tmp_path: Path
) -> None:
    loaded = loaded_as(models, tmp_path, ON_HOST)
    loaded.banned = (Banned(GPU, DIED),)
    builds.asked.clear()
    models.controller.replan("m")
    assert loaded.banned == ()
    assert loaded.asked_for(is_fresh=True, device=None).banned == ()
    assert builds.asked == [True]
    np.testing.assert_array_equal(models.infer("m"), X * 2)


def test_a_plan_whose_unit_does_not_open_gives_way_to_plain_and_no_unit_is_left_out(
    models: Models, builds: Builds, tmp_path: Path
) -> None:
    loaded = loaded_as(models, tmp_path, ON_GPU)
    models.workers.steps = [cannot_open]
    builds.asked.clear()
    np.testing.assert_array_equal(models.infer("m"), X * 2)
    assert [file.is_plain for file in served(models)[-1]] == [True]
    assert loaded.banned == ()
    assert builds.asked == [False]


# ---- what the config file says of the units


def unit(**changes: object) -> UnitSettings:
    known: dict[str, object] = {"id": GPU, "file": Path("/etc/config.toml")}
    return UnitSettings(**(known | changes))  # type: ignore[arg-type]


def settings(models: Models, *units: UnitSettings) -> Settings:
    return Settings(
        socket=models.rig.path, state=models.folder, cache=models.folder / "cache", units=units
    )


def test_what_the_config_file_says_of_units_is_a_text_wherever_it_says_so(models: Models) -> None:
    def text(*units: UnitSettings) -> str:
        return units_text(settings(models, *units))

    assert text() == ""
    said = {
        text(unit()),
        text(unit(id=NPU)),
        text(unit(off=True)),
        text(unit(threads=2)),
        text(unit(memory_bytes=1 << 30)),
        text(unit(options=(("a", "1"),))),
        text(unit(library=Path("/lib/p.so"))),
        text(unit(), unit(id=NPU)),
    }
    assert len(said) == 8
    assert text(unit(off=True)) == text(unit(off=True, file=Path("/home/me/c.toml")))


@pytest.mark.parametrize(
    ("before", "now", "is_used"),
    [
        ((), (), True),
        ((unit(threads=2),), (unit(threads=2, file=Path("/moved.toml")),), True),
        ((), (unit(off=True),), False),
        ((unit(threads=2),), (), False),
        ((unit(threads=2),), (unit(threads=3),), False),
    ],
)
def test_a_plan_is_made_again_where_the_config_file_says_otherwise_of_the_units(
    models: Models,
    builds: Builds,
    tmp_path: Path,
    before: tuple[UnitSettings, ...],
    now: tuple[UnitSettings, ...],
    is_used: bool,
) -> None:
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    assert builds.asked == [False]
    (plain,) = loaded.serve.subgraphs
    file = msgspec.structs.replace(plain, is_plain=False, threads=1)
    kept = Kept(
        model=loaded.record.model,
        inputs=loaded.lane.inputs,
        outputs=loaded.lane.outputs,
        plan=PLAN,
        subgraphs=(file,),
        instances=3,
        units=units_text(settings(models, *before)),
    )
    save_kept(models.stores.plans, "m", kept)
    again = restored(loaded.record, models.stores, settings(models, *now), models.controller.epoch)
    assert (again.plan is not None) == is_used
    assert again.planning.state == ("done" if is_used else "waiting")
    assert again.serve.subgraphs == ((file,) if is_used else (plain,))
    assert again.serve.instances == (3 if is_used else 1)
    assert again.lane.inputs == loaded.lane.inputs
    again.hold(())


@pytest.mark.usefixtures("builds")
def test_what_is_kept_says_what_the_config_file_said(models: Models, tmp_path: Path) -> None:
    loaded = models.controller.load(load(write(tmp_path / "m.onnx")))
    text = units_text(settings(models, unit(off=True)))
    assert loaded.kept(text).units == text
