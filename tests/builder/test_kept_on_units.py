"""What is in the pool of a graph that runs on another unit, and what a plan says of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec import structs

from edge_agent.builder.benches import Slices
from edge_agent.builder.compiler import Compiler
from edge_agent.builder.plan_files import PlanFiles
from edge_agent.builder.workshop import Workshop
from edge_agent.devices import ComputeUnit, Keeping, Layout, ProviderUse, UnitId
from edge_agent.engine.files import open_file
from edge_agent.engine.session import OptimisationLevel, Session
from edge_agent.model.divide import summarise
from edge_agent.model.graph import ModelGraph
from edge_agent.model.specs import infer_specs
from edge_agent.plans import Target
from edge_agent.profiles import HOST, HOST_UNIT, Configuration
from edge_agent.store.manifests import EntryKind
from edge_agent.store.pool import Adding, Pool
from edge_agent.subgraphs import ModelId, SegmentRange
from edge_agent.wire.messages import Build
from edge_agent.wire.parts import Banned, General, SubgraphFile
from tests.builder.made_units import GPU, ON_OTHER, OTHER, device, keeping
from tests.builder.test_workshop import (
    X,
    made_workshop,
    quiet_slices,
    reference,
    whole,
    write_convolutions,
)
from tests.made_plans import chosen_plan
from tests.model.made_models import graph_of, held, model, node, value

M = ModelId("m")
RUN_LIMIT_S = 7.0
KEY = "a device"
USE = OTHER.use(Layout.NATIVE, 0)
ON_HOST = Configuration(unit=HOST_UNIT, layout=Layout.BLOCKED, threads=1)


class CountingPool(Pool):
    """Tells how often anything was added."""

    added = 0

    def adding(self, kind: EntryKind) -> AbstractContextManager[Adding]:
        self.added += 1
        return super().adding(kind)


@pytest.fixture
def pool(tmp_path: Path) -> CountingPool:
    return CountingPool(tmp_path / "pool", max_compiled_bytes=1 << 30)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_convolutions(tmp_path / "source.onnx", 2)


def outputs(path: Path, level: OptimisationLevel, use: ProviderUse = USE) -> np.ndarray:
    session = Session.open(path, threads=1, level=level, use=use)
    return session.run({"v0": X}, ["v2"])["v2"]


def plain(path: Path) -> np.ndarray:
    session = Session.open(path, threads=1, level=OptimisationLevel.NONE)
    return session.run({"v0": X}, ["v2"])["v2"]


def on_unit(
    pool: Pool,
    source: Path,
    unit: ComputeUnit = OTHER,
    use: ProviderUse = USE,
    key: str = KEY,
) -> Path | None:
    with Compiler(pool, M, key) as compiler:
        return compiler.on_unit(source, unit, use, {"v0": X})


def graphs(pool: Pool) -> set[Path]:
    return set(pool.folder.glob("*.onnx"))


# ---- Compiler.as_it_is


def test_a_graph_is_kept_as_it_is_in_the_pool(pool: Pool, source: Path) -> None:
    with Compiler(pool, M, KEY) as compiler:
        kept = compiler.as_it_is(source)
    assert kept.parent == pool.folder
    want, got = onnx.load(source), onnx.load(kept)
    assert [n.op_type for n in got.graph.node] == [n.op_type for n in want.graph.node]
    np.testing.assert_array_equal(plain(kept), plain(source))


def test_it_stays_when_the_compiler_is_closed_as_long_as_its_model_does(
    pool: Pool, source: Path
) -> None:
    with Compiler(pool, M, KEY) as compiler:
        kept = compiler.as_it_is(source)
    pool.collect({M})
    assert kept.exists()
    pool.collect(set())
    assert not kept.exists()


def test_it_stays_as_long_as_the_compiler_is_open(pool: Pool, source: Path) -> None:
    with Compiler(pool, M, KEY) as compiler:
        kept = compiler.as_it_is(source)
        assert compiler.as_it_is(source) == kept
        pool.collect(set())
        assert kept.exists()
    pool.collect(set())
    assert not kept.exists()


def test_it_is_written_once_for_every_device_and_model(pool: CountingPool, source: Path) -> None:
    with Compiler(pool, M, KEY) as compiler:
        kept = compiler.as_it_is(source)
        assert compiler.as_it_is(source) == kept
    with Compiler(pool, ModelId("n"), "another device") as compiler:
        assert compiler.as_it_is(source) == kept
    assert pool.added == 1
    pool.collect({ModelId("n")})
    assert kept.exists()


def test_another_graph_is_another_file(pool: Pool, source: Path, tmp_path: Path) -> None:
    other = write_convolutions(tmp_path / "other.onnx", 3)
    with Compiler(pool, M, KEY) as compiler:
        assert compiler.as_it_is(source) != compiler.as_it_is(other)


# ---- Compiler.on_unit


def test_what_a_unit_made_of_a_graph_is_kept_and_opened_as_it_is(pool: Pool, source: Path) -> None:
    kept = on_unit(pool, source)
    assert kept is not None
    assert kept.parent == pool.folder
    assert "Relu" not in {n.op_type for n in onnx.load(kept).graph.node}  # part of Conv
    np.testing.assert_allclose(
        outputs(kept, OptimisationLevel.NONE), plain(source), rtol=1e-4, atol=1e-5
    )


def test_what_a_unit_made_is_made_once(pool: CountingPool, source: Path) -> None:
    kept = on_unit(pool, source)
    assert kept is not None
    assert on_unit(pool, source) == kept
    assert pool.added == 1


def test_what_a_unit_made_stays_as_long_as_its_model(pool: Pool, source: Path) -> None:
    kept = on_unit(pool, source)
    assert kept is not None
    pool.collect({M})
    assert kept.exists()
    pool.collect(set())
    assert not kept.exists()


def test_what_a_unit_made_stays_as_long_as_the_compiler_is_open(pool: Pool, source: Path) -> None:
    with Compiler(pool, M, KEY) as compiler:
        kept = compiler.on_unit(source, OTHER, USE, {"v0": X})
        assert kept is not None
        pool.collect(set())
        assert kept.exists()
    pool.collect(set())
    assert not kept.exists()


def test_what_a_unit_made_is_of_no_use_to_other_versions_options_or_devices(
    pool: Pool, source: Path
) -> None:
    made = [
        on_unit(pool, source),
        on_unit(pool, source, replace(OTHER, provider_version="2")),
        on_unit(pool, source, use=replace(USE, memory="elsewhere")),
        on_unit(pool, source, key="another device"),
    ]
    assert None not in made
    assert len(set(made)) == 4


@pytest.mark.parametrize("keeps", [Keeping.NOTHING, Keeping.CONTEXT])
def test_a_unit_that_can_keep_nothing_leaves_nothing_and_it_is_told_why(
    pool: Pool, source: Path, keeps: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert on_unit(pool, source, keeping(keeps)) is None
    assert graphs(pool) == set()
    assert "gpu0 keeps nothing of source.onnx: CPUExecutionProvider" in caplog.text


def test_what_was_kept_in_one_form_is_not_taken_for_another(pool: Pool, source: Path) -> None:
    assert on_unit(pool, source) is not None
    assert on_unit(pool, source, keeping(Keeping.CONTEXT)) is None


# ---- Workshop


@pytest.fixture
def workshop(tmp_path: Path, pool: Pool) -> Iterator[Workshop]:
    with Compiler(pool, M, KEY) as compiler:
        made = made_workshop(tmp_path, compiler)
        made.feed({"v0": X})
        yield made


def parts(workshop: Workshop) -> tuple[SegmentRange, SegmentRange]:
    count = len(workshop.summary.segments)
    return SegmentRange(start=0, stop=1), SegmentRange(start=1, stop=count)


def test_a_part_is_kept_as_it_is_once(workshop: Workshop, pool: Pool) -> None:
    _, second = parts(workshop)
    kept = workshop.kept(second)
    assert kept.parent == pool.folder
    assert workshop.kept(second) is kept
    source, found = onnx.load(workshop.source(second)), onnx.load(kept)
    assert [n.op_type for n in found.graph.node] == [n.op_type for n in source.graph.node]
    assert workshop.kept(whole(workshop)) != kept


def test_a_part_is_tried_on_what_comes_before_it(workshop: Workshop) -> None:
    _, second = parts(workshop)
    kept = workshop.on_unit(second, OTHER, USE)
    assert kept is not None
    session = Session.open(kept, threads=1, level=OptimisationLevel.NONE, use=USE)
    values = workshop.values_before(1)
    got = session.run({n: values[n] for n in session.input_names}, ["v4"])
    np.testing.assert_allclose(got["v4"], reference(workshop)["v4"], rtol=1e-4, atol=1e-5)


def test_nothing_is_kept_of_a_part_that_takes_what_is_no_tensor(tmp_path: Path, pool: Pool) -> None:
    made = model(
        [
            node("Exp", ["x"], ["a"]),
            node("SplitToSequence", ["a"], ["s"], axis=0),
            node("SequenceAt", ["s", "at"], ["b"]),
            node("Exp", ["b"], ["y"]),
        ],
        [value("x", [3])],
        [value("y", [1])],
        [held("at", np.array(0, np.int64))],
    )
    graph = graph_of(made, tmp_path)
    specs = infer_specs(graph, {})
    summary = summarise(graph, M, {}, specs, apart=(2,))
    starts = [segment.start for segment in summary.segments]
    with Compiler(pool, M, KEY) as compiler:
        workshop = Workshop(graph, summary, specs, compiler)
        workshop.feed({"x": np.zeros(3, np.float32)})
        before = SegmentRange(start=0, stop=starts.index(2))
        behind = SegmentRange(start=starts.index(2), stop=len(starts))
        assert workshop.on_unit(before, OTHER, USE) is not None
        assert workshop.on_unit(behind, OTHER, USE) is None


# ---- PlanFiles


class Tried:
    """What the agent was told of units that are at work."""

    def __init__(self) -> None:
        self.told: list[tuple[tuple[UnitId, ...], bool]] = []
        self.slices = Slices(lambda: None, lambda _fraction, _what: None, self._tell)

    def _tell(self, units: tuple[UnitId, ...], is_keeping: bool) -> None:
        self.told.append((units, is_keeping))


BUILD = Build(model=M, target=Target.LATENCY, threads=None, shapes=(), is_fresh=False)


def files(
    workshop: Workshop,
    *configurations: Configuration,
    unit: ComputeUnit = OTHER,
    message: Build = BUILD,
    slices: Slices | None = None,
) -> tuple[SubgraphFile, ...]:
    """The files of a plan whose first segment runs in the first configuration and so on."""
    plan = chosen_plan(workshop, range(1, len(configurations)), configurations)
    making = PlanFiles(message, workshop, device(unit), KEY, slices or quiet_slices(), RUN_LIMIT_S)
    return making.files(plan)


def test_a_file_on_a_unit_that_keeps_what_it_makes_is_opened_as_it_was_made(
    workshop: Workshop,
) -> None:
    (file,) = files(workshop, ON_OTHER)
    kept = workshop.on_unit(whole(workshop), OTHER, USE)
    assert file == SubgraphFile(
        path=str(kept),
        level="none",
        threads=1,
        is_plain=False,
        compiled_for=KEY,
        unit=GPU,
        use=USE,
        falls_back=False,
        resource="gpu0",
        at_once=1,
        run_limit_s=RUN_LIMIT_S,
    )
    got = open_file(file, ()).run({"v0": X}, ["v4"])["v4"]
    np.testing.assert_allclose(got, reference(workshop)["v4"], rtol=1e-4, atol=1e-5)


BANNED = structs.replace(BUILD, banned=(Banned(GPU, "it died of it", is_keeping=True),))


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (keeping(Keeping.NOTHING), BUILD),
        (keeping(Keeping.CONTEXT), BUILD),
        (OTHER, BANNED),
    ],
    ids=["keeps nothing", "cannot keep this", "is banned from keeping"],
)
def test_a_unit_that_keeps_nothing_gets_the_graph_as_it_is_and_optimises_it(
    workshop: Workshop, unit: ComputeUnit, message: Build
) -> None:
    (file,) = files(workshop, ON_OTHER, unit=unit, message=message)
    assert file.path == str(workshop.kept(whole(workshop)))
    assert (file.level, file.unit, file.use, file.compiled_for) == ("all", GPU, USE, KEY)
    got = open_file(file, ()).run({"v0": X}, ["v4"])["v4"]
    np.testing.assert_allclose(got, reference(workshop)["v4"], rtol=1e-4, atol=1e-5)


def test_the_ban_of_another_unit_or_from_more_than_keeping_is_none_from_keeping(
    workshop: Workshop,
) -> None:
    others = (Banned(UnitId("npu0"), "", is_keeping=True), Banned(GPU, "", is_keeping=False))
    (file,) = files(workshop, ON_OTHER, message=structs.replace(BUILD, banned=others))
    assert file.level == "none"


def test_the_agent_is_told_that_a_unit_makes_what_it_can_do_without(workshop: Workshop) -> None:
    tried = Tried()
    files(workshop, ON_OTHER, slices=tried.slices)
    assert tried.told == [((GPU,), True), ((), False)]


@pytest.mark.parametrize(("unit", "message"), [(keeping(Keeping.NOTHING), BUILD), (OTHER, BANNED)])
def test_it_is_told_nothing_where_nothing_is_kept(
    workshop: Workshop, unit: ComputeUnit, message: Build
) -> None:
    tried = Tried()
    files(workshop, ON_OTHER, unit=unit, message=message, slices=tried.slices)
    assert tried.told == []


def test_what_falls_back_to_the_processor_is_kept_as_it_is_and_is_on_its_cores(
    workshop: Workshop,
) -> None:
    falling = replace(ON_OTHER, falls_back=True, threads=2)
    (file,) = files(workshop, falling)
    assert file.path == str(workshop.kept(whole(workshop)))
    assert (file.level, file.threads, file.falls_back) == ("all", 2, True)
    assert (file.unit, file.resource) == (GPU, HOST)


def test_a_part_on_the_processor_beside_one_on_a_unit_is_compiled(workshop: Workshop) -> None:
    twice = replace(ON_HOST, instances=2)
    host, other = files(workshop, twice, ON_OTHER)
    first, second = parts(workshop)
    assert host == SubgraphFile(
        path=str(workshop.compiled(first, Layout.BLOCKED)),
        level="none",
        threads=1,
        is_plain=False,
        compiled_for=KEY,
        unit=HOST_UNIT,
        use=None,
        falls_back=False,
        resource=HOST,
        at_once=2,
    )
    assert other.path == str(workshop.on_unit(second, OTHER, USE))
    assert (other.unit, other.resource, other.at_once) == (GPU, "gpu0", 1)


def test_a_unit_with_threads_of_its_own_is_told_how_many(workshop: Workshop) -> None:
    unit = replace(OTHER, cores=2, threads_option="arena_extend_strategy", keeps=Keeping.NOTHING)
    (file,) = files(workshop, replace(ON_OTHER, threads=2, instances=3), unit=unit)
    assert file.use is not None
    assert file.use.options == (("arena_extend_strategy", "2"),)
    assert (file.threads, file.resource, file.at_once) == (2, HOST, 3)


def test_what_a_plan_names_is_there_when_the_builder_is_done(tmp_path: Path, pool: Pool) -> None:
    with Compiler(pool, M, KEY) as compiler:
        workshop = made_workshop(tmp_path, compiler)
        workshop.feed({"v0": X})
        made = [
            *files(workshop, ON_HOST, ON_OTHER),
            *files(workshop, ON_OTHER, unit=keeping(Keeping.NOTHING)),
        ]
    pool.collect({M})
    assert len({file.path for file in made}) == 3
    assert all(pool.holds(Path(file.path)) for file in made)


def test_without_a_plan_it_is_the_whole_model_compiled_or_open_for_shapes_of_its_own(
    workshop: Workshop,
) -> None:
    def made(message: Build) -> SubgraphFile:
        making = PlanFiles(message, workshop, device(OTHER), KEY, quiet_slices(), RUN_LIMIT_S)
        (file,) = making.files(None)
        return file

    compiled = made(BUILD)
    assert compiled.path == str(workshop.compiled(whole(workshop), Layout.BLOCKED))
    assert (compiled.is_plain, compiled.compiled_for, compiled.at_once) == (True, KEY, None)
    general = General(is_plain=True, subgraphs=(), instances=1, pinned_cores=())
    special = made(structs.replace(BUILD, general=general))
    assert special.path == str(workshop.graph.path)
    assert (special.is_plain, special.level, special.compiled_for) == (True, "all", None)


def test_the_graph_of_the_whole_is_that_of_its_workshop(workshop: Workshop) -> None:
    assert ModelGraph.load(workshop.kept(whole(workshop))).outputs == workshop.graph.outputs
