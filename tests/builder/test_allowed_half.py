"""When float16 is offered beside what the model says."""

from __future__ import annotations

import pytest

from edge_agent.builder.allowed import allow
from edge_agent.devices import ComputeUnit, Layout, UnitId, UnitKind
from edge_agent.plans import Target
from edge_agent.profiles import HOST_UNIT, Configuration, Placement
from edge_agent.subgraphs import ModelId
from edge_agent.summaries import ModelSummary, Segment


def unit(name: str, *, cores: int = 0, takes_floats: bool = True) -> ComputeUnit:
    return ComputeUnit(
        id=UnitId(name),
        kind=UnitKind.CPU if name == HOST_UNIT else UnitKind.GPU,
        provider="P",
        provider_version="1",
        layouts=(Layout.NCHW, Layout.NHWC),
        cores=cores,
        takes_floats=takes_floats,
    )


def summary() -> ModelSummary:
    segment = Segment(
        index=0,
        start=0,
        stop=1,
        operators=(("Add", 1),),
        operations=1,
        activation_bytes=1,
        weight_bytes=1,
        parallel_operations=1,
    )
    return ModelSummary(
        model=ModelId("m"),
        inputs=(),
        outputs=(),
        segments=(segment,),
        cuts=(),
        shapes=(),
        nodes=1,
        weight_bytes=1,
    )


def placement(one: ComputeUnit) -> Placement:
    return Placement(unit=one.id, taken=1, refused=(), removed=0, evidence="")


def allowed(*others: ComputeUnit, is_half: bool) -> tuple[list[Configuration], list[str]]:
    """The configurations, and what is said of the others."""
    found = allow(
        summary(),
        (unit("cpu", cores=2), *others),
        placement,
        target=Target.LATENCY,
        cores=2,
        pinned=(None,),
        is_fixed=True,
        is_half=is_half,
    )
    return found.configurations, [
        f"{r.candidate}: {r.reason}, {r.detail}" for r in found.rejections
    ]


def test_without_the_users_word_nothing_computes_in_float16() -> None:
    found, said = allowed(unit("gpu"), is_half=False)
    assert not any(c.is_half for c in found)
    assert said == []


def test_with_it_every_configuration_of_a_unit_that_takes_floats_competes_in_float16_too() -> None:
    found, said = allowed(unit("gpu"), is_half=True)
    assert said == []
    assert [str(c) for c in found if c.unit == "gpu"] == [
        *("gpu/NCHW", "gpu/NHWC", "gpu/NCHW/fp16", "gpu/NHWC/fp16")
    ]
    assert not any(c.is_half for c in found if c.unit == HOST_UNIT)


@pytest.mark.parametrize("is_half", [False, True])
def test_a_unit_that_takes_only_what_is_quantised_never_does(is_half: bool) -> None:
    found, said = allowed(unit("npu", takes_floats=False), unit("gpu"), is_half=is_half)
    assert [str(c) for c in found if c.unit == "npu"] == ["npu/NCHW", "npu/NHWC"]
    assert said == ["npu/fp16: refused, not tried: it is made for what is quantised"] * is_half


def test_where_there_is_nothing_beside_the_processor_that_is_said() -> None:
    _, said = allowed(is_half=True)
    assert said == [
        "fp16: refused, the processor computes as the model says, and there is no other unit"
    ]
    assert allowed(is_half=False)[1] == []
