"""The problems that the benchmark of the planner plans, and that it runs."""

from __future__ import annotations

import json
import random
import runpy
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.chained import chained
from bench.posed import CONFIGURATIONS, MIXES, crowd_problem, mixed_problem
from bench.repeated import repeated
from edge_agent.builder.summarising import SummarisedModel, summarise_file
from edge_agent.config import Limits
from edge_agent.planning.tables import usable
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.profiles import HOST_UNIT
from models.fetch import default_cache
from tests.system.made_models import convolving

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_planner"


@pytest.fixture
def model(tmp_path: Path) -> SummarisedModel:
    return summarise_file(convolving(tmp_path / "net.onnx"), Limits(), {}, ())


def _crowd(model: SummarisedModel, *, noise: float = 0.1, seed: int = 0) -> Problem:
    rng = random.Random(seed)
    long = chained([model], 50, rng)
    return crowd_problem(long, 14, rng, noise=noise, is_for_throughput=True)


def test_a_chain_has_the_segments_of_its_models_one_behind_the_other(
    model: SummarisedModel,
) -> None:
    own = model.summary
    count = len(own.segments)
    assert count > 1
    found = chained([model], 2 * count + 1, random.Random(0))
    segments = found.summary.segments
    assert [s.index for s in segments] == list(range(2 * count + 1))
    assert [s.operations for s in segments[:-1]] == [s.operations for s in own.segments] * 2
    assert all(a.stop == b.start for a, b in pairwise(segments))
    crossing = [cut.crossing_bytes for cut in found.summary.cuts]
    inner = [cut.crossing_bytes for cut in own.cuts]
    assert crossing == [*inner, model.input_bytes, *inner, model.input_bytes]
    assert (found.input_bytes, found.output_bytes) == (model.input_bytes, inner[0])
    whole = chained([model], count, random.Random(0))
    assert whole.output_bytes == model.output_bytes
    assert whole.summary.weight_bytes == own.weight_bytes


def test_a_crowd_has_nine_configurations_on_each_device_and_every_link(
    model: SummarisedModel,
) -> None:
    problem = _crowd(model)
    assert len(problem.devices) == 14
    assert len(problem.links) == 14 * 13
    for device in problem.devices:
        assert len(usable(problem, device, Target.THROUGHPUT)) == CONFIGURATIONS


def test_equal_seeds_make_equal_crowds(model: SummarisedModel) -> None:
    assert _crowd(model) == _crowd(model)
    assert _crowd(model) != _crowd(model, seed=1)


def test_noise_stays_around_the_estimate(model: SummarisedModel) -> None:
    plain, noisy = _crowd(model, noise=0.0), _crowd(model, noise=0.5)
    ratios = [
        b / a
        for one, other in zip(plain.devices, noisy.devices, strict=True)
        for x, y in zip(one.times, other.times, strict=True)
        if x.configuration.unit == HOST_UNIT
        for a, b in zip(x.segment_s, y.segment_s, strict=True)
        if a
    ]
    # The pace of each device is between 0.8 and 1.25 of its own.
    assert 0.5 * 0.8 / 1.25 < min(ratios) < 0.7
    assert 1.3 < max(ratios) < 1.5 * 1.25 / 0.8


def test_devices_of_a_mix_have_the_links_that_were_said(model: SummarisedModel) -> None:
    mix = next(mix for mix in MIXES if mix.others)
    ((name, own), *_) = mix.others
    problem = mixed_problem(mix, model, is_for_throughput=False)
    assert problem.owner == mix.profiles[0]
    for link in problem.links:
        wire = own if name in (link.source, link.target) else mix.wire
        assert link.goodput_bytes_per_s == wire.goodput_bytes_per_s
        assert link.latency_s == wire.latency_s


def test_a_repeated_call_is_timed_each_time_but_the_first() -> None:
    calls: list[int] = []
    found = repeated(lambda: calls.append(1), budget_s=5.0, least=2, most=3)
    assert (len(calls), len(found.took_s), found.result) == (4, 3, None)
    assert 0 <= found.median_s <= found.p95_s
    assert len(found.processor_s) == 3


def test_a_call_that_takes_longer_than_the_budget_is_not_repeated() -> None:
    calls: list[int] = []
    assert len(repeated(lambda: calls.append(1), budget_s=0.0, least=3).took_s) == len(calls) == 1


def test_calls_that_give_unequal_results_are_refused() -> None:
    numbers = iter(range(9))
    with pytest.raises(ValueError, match="unequal results"):
        repeated(lambda: next(numbers), budget_s=5.0)


@pytest.mark.long
@pytest.mark.zoo
def test_the_smallest_run_prints_every_figure(
    zoo: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not {"arname_decoder", "magika"} <= set(zoo):
        pytest.skip("arname_decoder or magika is not fetched: run tools/zoo")
    cache = default_cache()
    monkeypatch.setattr(sys, "argv", ["bench_planner", "--smoke", "--json", "--cache", str(cache)])
    assert runpy.run_path(str(TOOL))["main"]() == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    targets = [row["target"] for row in rows if row.get("problems") == "adversarial"]
    assert targets == ["latency", "throughput", "Pareto of 3"]
    ratios = [row["even split"] for row in rows if "model" in row]
    assert ratios
    assert all(ratio >= 1 - 1e-9 for ratio in ratios)
