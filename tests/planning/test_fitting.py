"""Measured times that do not fit the model as it is divided are told, with what differs."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.devices import Layout, UnitId
from edge_agent.hardware import MeasuredTimes
from edge_agent.planning.fitting import why_unfit
from edge_agent.profile_files.reading import decode
from edge_agent.profiles import Configuration
from edge_agent.tensors import TensorName
from tests.planning.made_models import segment, summary
from tests.profile_files.made_profiles import WHOLE

PROFILE = decode(WHOLE, "board.toml")
(MEASURED,) = PROFILE.latency
IMAGES = TensorName("images")


def _told(*found: MeasuredTimes, starts: tuple[int, ...] = (0, 12), size: int = 224) -> str:
    ends = (*starts[1:], 24)
    segments = [
        replace(segment(index), start=start, stop=stop)
        for index, (start, stop) in enumerate(zip(starts, ends, strict=True))
    ]
    model = replace(summary(segments), model=MEASURED.model, shapes=((IMAGES, (1, 3, size, size)),))
    return why_unfit(replace(PROFILE, latency=found), model)


def test_nothing_is_told_of_times_that_fit_or_are_of_another_model() -> None:
    assert _told(MEASURED) == ""
    assert _told(replace(MEASURED, model="ee" * 32)) == ""
    assert _told() == ""


def test_other_shapes_are_told_with_both() -> None:
    assert _told(MEASURED, size=64) == (
        "the measured times of this model on cpu are not used: they are for images[1,3,224,224], "
        "and here are images[1,3,64,64]"
    )


def test_another_division_is_told_with_both() -> None:
    assert _told(MEASURED, starts=(0, 5, 9)) == (
        "the measured times of this model on cpu are not used: they are of 2 segments that begin "
        "at nodes 0, 12, and here are 0, 5, 9"
    )


def test_each_unit_needs_times_of_its_own_that_fit() -> None:
    npu = Configuration(unit=UnitId("npu"), layout=Layout.NATIVE, threads=0)
    other = replace(MEASURED, times=replace(MEASURED.times, configuration=npu), starts=(0, 3))
    assert _told(MEASURED, replace(MEASURED, starts=(0, 3))) == ""
    assert _told(MEASURED, other).startswith("the measured times of this model on npu are not")
