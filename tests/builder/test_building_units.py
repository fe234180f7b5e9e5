"""Whole builds for a device with another unit than the processor."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from edge_agent.builder.admitting import admit
from edge_agent.builder.benches import Slices
from edge_agent.builder.building import Building
from edge_agent.config import Budgets, Settings
from edge_agent.devices import Device, UnitId
from edge_agent.errors import ModelRefused
from edge_agent.plans import Pin, Target
from edge_agent.profiles import HOST_UNIT
from edge_agent.store.profiled import ProfiledModel, ProfiledStore
from edge_agent.subgraphs import ModelId
from edge_agent.wire.messages import Build, Built
from edge_agent.wire.parts import Banned
from tests.builder.made_units import GPU, OTHER, device
from tests.builder.test_workshop import write_convolutions
from tests.model.nhwc_graphs import node, value, write

ALL = Pin(pattern="*", unit=GPU)


class Stores:
    """Where one model is, and what it was built like."""

    def __init__(self, folder: Path, source: Path | None = None) -> None:
        self._settings = Settings(
            socket=folder / "s",
            state=folder / "state",
            cache=folder / "cache",
            planning=Budgets(profile_s=0.2, verify_s=0.2),
        )
        if source is None:
            source = write_convolutions(folder / "m.onnx", 2)
        admitted = admit(
            source, self._settings, on_staged=lambda _path: None, wait_until_movable=lambda: None
        )
        self.model: ModelId = admitted.model
        self.tried: list[tuple[tuple[UnitId, ...], bool]] = []
        self.grants = 0

    def build(
        self,
        *pins: Pin,
        banned: tuple[Banned, ...] = (),
        is_fresh: bool = False,
        on: Device | None = None,
        subgraphs: int | None = None,
        name: str | None = None,
    ) -> Built:
        def grant() -> None:
            self.grants += 1

        self.tried.clear()
        slices = Slices(grant, lambda _fraction, _what: None, self._tell)
        message = Build(
            model=self.model,
            target=Target.LATENCY,
            threads=None,
            shapes=(),
            is_fresh=is_fresh,
            pins=pins,
            banned=banned,
            device=on or device(OTHER),
            subgraphs=subgraphs,
            name=name,
        )
        return Building(message, self._settings, slices).build()

    def kept(self, name: str) -> ProfiledModel:
        """What was kept of the model that was built under that name."""
        return ProfiledStore(self._settings.state).load(name, self.model)

    def _tell(self, units: tuple[UnitId, ...], is_keeping: bool) -> None:
        self.tried.append((units, is_keeping))


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_a_plan_on_a_unit_that_was_measured_before_is_made_again_without_measuring(
    stores: Stores,
) -> None:
    first = stores.build(ALL)
    (file,) = first.subgraphs
    assert (file.unit, file.level) == (GPU, "none")
    assert Path(file.path).exists()
    assert ((GPU,), False) in stores.tried
    grants = stores.grants
    assert grants > 0
    again = stores.build(ALL)
    assert again.subgraphs == first.subgraphs
    assert str(again.plan) == str(first.plan)
    assert stores.grants == grants


@pytest.mark.long
def test_what_a_build_finds_out_is_kept_for_planning_over_devices(stores: Stores) -> None:
    stores.build(ALL, name="pinned")
    stores.build(name="free")
    pinned, free = stores.kept("pinned"), stores.kept("free")
    assert set(pinned.pinned) == {GPU}
    assert set(free.pinned) == {None}
    (spec,) = pinned.summary.inputs
    size = 4 * math.prod(dim for dim in spec.dims or () if isinstance(dim, int))
    assert pinned.input_bytes == free.input_bytes == size
    assert pinned.output_bytes is not None
    assert pinned.output_bytes > 0


def test_a_plan_whose_pins_name_a_unit_that_is_banned_is_refused_with_the_reason(
    stores: Stores,
) -> None:
    with pytest.raises(ModelRefused) as told:
        stores.build(ALL, banned=(Banned(GPU, "the worker died again and again"),))
    assert str(told.value) == 'pin "*=gpu0" cannot hold: the worker died again and again'
    assert stores.tried == []


def test_a_unit_that_is_banned_is_not_tried_and_the_plan_says_so(stores: Stores) -> None:
    for reason in ("its provider ended the builder", "the worker died again and again"):
        built = stores.build(banned=(Banned(GPU, reason),))
        assert stores.tried == []
        assert [r.detail for r in built.plan.rejections if r.candidate == GPU] == [reason]
        assert all(file.use is None for file in built.subgraphs)


def test_a_unit_that_may_only_not_keep_anything_is_used_and_keeps_nothing(stores: Stores) -> None:
    built = stores.build(ALL, banned=(Banned(GPU, "it died of it", is_keeping=True),))
    (file,) = built.subgraphs
    assert (file.unit, file.level) == (GPU, "all")
    assert ((GPU,), True) not in stores.tried


@pytest.mark.long
def test_a_model_is_planned_with_pins_and_without_whatever_was_planned_before(
    stores: Stores,
) -> None:
    """Pins part segments that are one without them, on the processor alone as well."""
    first = Pin(pattern="c0", unit=HOST_UNIT)
    for pins in ((), (first,), (), (first,)):
        built = stores.build(*pins, on=device())
        assert built.plan.subgraphs
        assert built.subgraphs


def test_more_subgraphs_than_segments_are_refused_before_anything_is_measured(
    stores: Stores,
) -> None:
    with pytest.raises(ModelRefused, match="cannot be divided into 99 subgraphs: it has 2 segm"):
        stores.build(on=device(), subgraphs=99)
    assert stores.grants == 0


def test_a_model_with_a_scalar_input_is_planned(tmp_path: Path) -> None:
    nodes = [node("Mul", "x k", "a"), node("Relu", "a", "y")]
    inputs = [value("x", [1, 64]), value("k", [])]
    source = write(tmp_path / "m.onnx", nodes, inputs, [value("y", [1, 64])], {})
    plan = Stores(tmp_path, source).build(on=device()).plan
    assert dict(plan.shapes) == {"x": (1, 64), "k": ()}
    assert plan.measured_s is not None
