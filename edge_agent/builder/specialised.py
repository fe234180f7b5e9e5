"""Whether a plan for one set of shapes beats the general plan, which serves them as well."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edge_agent.builder.benches import Slices, Subject, WholeBench, timed
from edge_agent.engine.chain import Chain
from edge_agent.engine.files import open_file
from edge_agent.planning.explain import interval_text
from edge_agent.plans import CandidatePlan, ExecutionPlan
from edge_agent.profiling.ratio import Run, compare_with_control, is_better
from edge_agent.profiling.verify import Verification
from edge_agent.tensors import required
from edge_agent.wire.parts import General

_FINAL_PAIRS = 12


def compare_with_general(
    general: General,
    verification: Verification,
    subject: Subject,
    slices: Slices,
    plain_callers: int,
    budget_s: float,
) -> Verification:
    """`verification` with the time of the general plan over that of what it chose as its ratio.

    If it chose plain ONNX Runtime, that is compared: for these shapes the general plan, which was
    chosen for others, may be the slower one.
    """
    bench = WholeBench(subject, slices, plain_callers)
    chosen = verification.chosen
    with (
        _general_run(general, subject) as general_run,
        bench.plain() if chosen is None else _per_request(bench, chosen) as chosen_run,
    ):
        ratio, control = compare_with_control(
            general_run,
            chosen_run,
            rng=random.Random(0),
            min_pairs=_FINAL_PAIRS,
            budget_s=budget_s,
            clock_s=slices.working_s,
            grant=slices.grant,
            quiet=slices.quiet,
        )
    return replace(verification, ratio=ratio, control=control)


def judged(
    plan: ExecutionPlan, verification: Verification, against: Verification | None
) -> tuple[ExecutionPlan, bool]:
    """The plan for single shapes with what came of it, and whether it is to serve them.

    `verification` compared it with plain ONNX Runtime, `against` with the general plan, unless
    that is plain ONNX Runtime.
    """
    if against is None:
        is_used = verification.chosen is not None
        ratio = plan.plain_over_plan
        reason = plan.reason
    else:
        ratio, control = against.ratio, against.control
        assert ratio is not None
        assert control is not None
        is_used = is_better(ratio, control)
        evidence = f"general over this plan {interval_text(ratio)}; general over itself "
        evidence += interval_text(control)
        what = "measured faster" if is_used else "not measured faster beyond the noise"
        reason = f"{what} than the general plan: {evidence}"
    if not is_used:
        reason = f"the general plan serves these shapes: {reason}"
    return replace(plan, reason=reason, general_over_plan=ratio, is_specialised=True), is_used


@contextmanager
def _per_request(bench: WholeBench, plan: CandidatePlan) -> Iterator[Run]:
    with bench.runner(plan) as run:
        yield lambda: run() / plan.instances


@contextmanager
def _general_run(general: General, subject: Subject) -> Iterator[Run]:
    sessions = [open_file(file, general.pinned_cores) for file in general.subgraphs]
    summary = subject.workshop.summary
    outputs = [spec.name for spec in summary.outputs]
    chain = Chain(sessions, required(summary.inputs), outputs)
    sample = subject.samples[0]
    pinned = next((s for s in sessions if s.pinned_cores), sessions[0])

    def run_once() -> None:
        chain.run_checked(sample, outputs)

    with timed(run_once, general.instances, pinned.pin_caller) as run:
        yield lambda: run() / general.instances
