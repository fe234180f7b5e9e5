"""What commands show of a plan over several devices."""

from __future__ import annotations

from edge_agent.cli.output import size_text
from edge_agent.plans import DividedPlan
from edge_agent.wire.parts import ModelState


def divided_lines(plan: DividedPlan | None, state: ModelState) -> list[str]:
    """What was tried over several devices, in a few lines; [] if there is nothing to tell."""
    lines = []
    if state.dividing in ("waiting", "working", "failed"):
        done = f" {state.dividing_fraction:.0%}" if state.dividing == "working" else ""
        lines.append(f"over several devices: {state.dividing}{done}: {state.dividing_progress}")
    if plan is None:
        return lines
    lines.append(f"over several devices, {'serving' if plan.is_used else 'not used'}: {plan}")
    lines.append(f"  {plan.reason}")
    for stage in plan.stages:
        took = "" if stage.measured_s is None else f", {stage.measured_s * 1e3:.3g} ms a run there"
        sent = f", {size_text(stage.received_bytes)} were sent" if stage.received_bytes else ""
        lines.append(
            f"  stage {stage.number}: segments {stage.segments} on {stage.name}: "
            f"{stage.plan}{took}{sent}"
        )
    if plan.measured_per_s is not None:
        lines.append(
            f"  predicted {_rate(plan.predicted_per_s)} and {_ms(plan.predicted_latency_s)} for "
            f"one request, measured {_rate(plan.measured_per_s)} and "
            f"{_ms(plan.measured_latency_s)}; this device alone {_rate(plan.alone_per_s)}"
        )
    if plan.deployed_s is not None:
        lines.append(f"  ready on all devices within {plan.deployed_s:.2g} s")
    lines += [f"  {_end(s.source)} → {_end(s.target)}: sent as {s.wire}" for s in plan.sent_as]
    if not plan.is_encrypted:
        lines.append("  tensors cross between devices UNENCRYPTED, for benchmarks")
    if plan.wire_refused:
        lines.append(f"  tensors are sent as they are: in fewer bits, {plan.wire_refused}")
    lines += [f"  route {number} is lost: {why}" for number, why in enumerate(plan.lost) if why]
    return lines


def _end(stage: int) -> str:
    return "owner" if stage < 0 else f"stage {stage}"


def _rate(per_s: float | None) -> str:
    return "an unknown rate" if per_s is None else f"{per_s:.4g} per s"


def _ms(took_s: float | None) -> str:
    return "an unknown time" if took_s is None else f"{took_s * 1e3:.4g} ms"
