"""Which divisions of a model are the same, so that what was measured of one is of use."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.subgraphs import ModelId
from edge_agent.tensors import TensorName
from tests.planning.made_models import chain, segment, summary

MODEL = replace(chain(3), shapes=((TensorName("x"), (1, 3)), (TensorName("y"), (2,))))


def test_a_division_is_the_same_whatever_is_counted_of_its_segments() -> None:
    counted = tuple(replace(one, operations=7) for one in MODEL.segments)
    other = replace(MODEL, segments=counted, shapes=MODEL.shapes[::-1])
    assert other.division == MODEL.division


def test_other_models_shapes_and_segments_are_other_divisions() -> None:
    finer = summary([segment(at, nodes=1) for at in range(9)])
    same = replace(finer, shapes=MODEL.shapes)
    assert same.nodes == MODEL.nodes
    found = {
        MODEL.division,
        replace(MODEL, model=ModelId("ff" * 32)).division,
        replace(MODEL, shapes=MODEL.shapes[:1]).division,
        same.division,
    }
    assert len(found) == 4
