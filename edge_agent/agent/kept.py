"""What is on disk of a loaded model so that it comes back without building again."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import msgspec

from edge_agent.config import Settings
from edge_agent.plans import ExecutionPlan
from edge_agent.store.records import PlanStore
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import ShapeSet, TensorSpec
from edge_agent.wire.parts import (
    ShapeCounts,
    Shapes,
    Specialised,
    SubgraphFile,
)

log = logging.getLogger(__name__)


class Specialisation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of planning for one set of shapes alone."""

    shapes: ShapeSet
    plan: ExecutionPlan | None
    """None if none could be made."""
    reason: str
    serve: Specialised | None
    """None if the general plan serves these shapes."""
    is_stale: bool = False
    """Whether the general plan was made anew since."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The interface of a model, and its plan once it has one."""

    model: ModelId
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    plan: ExecutionPlan | None = None
    subgraphs: tuple[SubgraphFile, ...] = ()
    instances: int = 1
    pinned_cores: tuple[int, ...] = ()
    warm_shapes: Shapes = ()
    specialisations: tuple[Specialisation, ...] = ()
    counted: ShapeCounts = ()
    units: str = ""
    """What the config file said of the units when the plan was made (`units_text`)."""


def units_text(settings: Settings) -> str:
    """What the config file says of the units: a plan is valid as long as that stays."""
    if not settings.units:
        return ""
    return msgspec.json.encode(
        [
            dataclasses.replace(unit, file=Path())
            for unit in sorted(settings.units, key=lambda unit: unit.id)
        ],
        enc_hook=str,
    ).decode()


def save_kept(plans: PlanStore, name: str, kept: Kept) -> None:
    """Write it in place of what was kept under that name.

    Raises:
        StorageError: it cannot be written.
    """
    plans.save_plan(name, msgspec.json.encode(kept))


def load_kept(plans: PlanStore, name: str, model: ModelId) -> Kept | None:
    """What is kept of a model under that name; None if nothing is, if it is of another model, or
    if it was damaged (which is logged)."""
    content = plans.load_plan(name)
    if content is None:
        return None
    try:
        kept = msgspec.json.decode(content, type=Kept)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("the plan of %s is of another version and is made again: %s", name, error)
        return None
    return kept if kept.model == model else None
