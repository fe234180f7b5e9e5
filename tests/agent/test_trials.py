"""What a try to divide a model does with what was done before."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_agent.agent import trials
from edge_agent.agent.layouts import Layout, PlacedStage
from edge_agent.agent.loaded import Loaded
from edge_agent.agent.trials import Means, Trial
from edge_agent.devices import DeviceId
from edge_agent.plans import ExecutionPlan
from edge_agent.stages import Blob, StageModel
from edge_agent.store.cuts import CutKey, CutStore
from edge_agent.subgraphs import SegmentRange
from edge_agent.wire.cutting import CutStages
from tests.store.made_stage import MODEL, stage

FIRST, SECOND, WHOLE = (SegmentRange(start=a, stop=b) for a, b in ((0, 1), (1, 3), (0, 3)))
STARTS = (0, 4, 6)


def placed(number: int, segments: SegmentRange) -> PlacedStage:
    return PlacedStage(number=number, route=0, device=DeviceId("pi"), segments=segments)


LAYOUT = Layout(stages=(placed(0, FIRST), placed(1, SECOND)), shares=(1.0,))


class World:
    """A model that is loaded, whose stages a builder cuts out at once."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cuts = CutStore(root)
        self.asked: list[tuple[SegmentRange, ...]] = []
        self.missing: set[str] = set()
        """Stages of which something is gone."""
        monkeypatch.setattr(trials, "Builder", self._builder)
        monkeypatch.setattr(trials, "missing", self._missing_of)
        segments = tuple(SimpleNamespace(nodes=(at,)) for at in STARTS)
        self.plan = SimpleNamespace(shapes=(), segments=segments)
        stores = SimpleNamespace(cuts=self.cuts, pool=None)
        means = SimpleNamespace(
            stores=stores,
            settings=None,
            datapath=None,
            host=SimpleNamespace(building=SimpleNamespace(held=_held)),
        )
        attempt = SimpleNamespace(is_stopped=lambda: False, report=lambda *_: None)
        loaded = SimpleNamespace(record=SimpleNamespace(model=MODEL, samples=None))
        self.trial = Trial(
            cast(Means, means),
            cast(Loaded, loaded),
            cast(Any, attempt),
            cast(ExecutionPlan, self.plan),
            lambda _: None,
            is_fresh=False,
        )

    def keep(self, *parts: SegmentRange) -> dict[SegmentRange, StageModel]:
        """They were cut out before."""
        made = {part: stage(f"{part}") for part in parts}
        for part, one in made.items():
            key = CutKey(model=MODEL, shapes=(), samples=None, starts=STARTS, segments=part)
            self.cuts.put(key, one)
        return made

    def _missing_of(self, one: StageModel, _pool: object) -> tuple[Blob, ...]:
        return one.tensors if one.id in self.missing else ()

    def _builder(self, *_: Any, **__: Any) -> Any:
        def cut(message: CutStages, _grant: object) -> tuple[Any, ...]:
            self.asked.append(message.ranges)
            return tuple(SimpleNamespace(segments=part) for part in message.ranges)

        return SimpleNamespace(cut_stages=cut, close=lambda: None)


@contextmanager
def _held(_is_stopped: object) -> Any:
    yield True


def test_stages_that_were_cut_out_before_need_no_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    kept = world.keep(FIRST, SECOND, WHOLE)
    world.trial._cut(LAYOUT)
    assert world.asked == []
    assert world.trial._models == kept


def test_only_what_is_not_there_is_cut_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    kept = world.keep(FIRST, SECOND)
    world.missing.add(kept[SECOND].id)
    world.trial._cut(LAYOUT)
    assert world.asked == [(WHOLE, SECOND)]
    assert world.trial._models[FIRST] == kept[FIRST]
    world.trial._cut(LAYOUT)
    assert len(world.asked) == 1


def test_stages_of_another_division_are_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.keep(FIRST, SECOND, WHOLE)
    world.plan.shapes = (("x", (1, 3)),)
    world.trial._cut(LAYOUT)
    assert world.asked == [(FIRST, WHOLE, SECOND)]
